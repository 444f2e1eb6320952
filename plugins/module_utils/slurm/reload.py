"""How a changed configuration goes live: by `scontrol reconfigure`, or by a restart of slurmctld. Pure.

Up to 23.02 a reconfigure re-reads the file inside the running daemon: many keys do not take, a wrong one ends it, and a
dynamic node whose job runs through it stays allocated for ever (seen with 22.05). From 23.11 on it starts a new process
and hands over only if that comes up. What even that cannot change is listed here.
"""

from __future__ import annotations

RESTART, RECONFIGURE = "restart", "reconfigure"
ALWAYS_RESTART = frozenset({"22.05", "23.02"})
# A new process takes over the listening socket and the identity of the old one.
_SINCE_23_11 = frozenset(
    """
    authalttypes authinfo authtype credtype selecttype slurmctldhost slurmctldparameters
    slurmctldpidfile slurmctldport slurmdport slurmduser slurmuser statesavelocation
    """.split()  # noqa: SIM905 - reads better than a list of strings
)
NEEDS_RESTART: dict[str, frozenset[str]] = dict.fromkeys(("23.11", "24.05", "24.11", "25.05"), _SINCE_23_11)


def settings_of(text: str) -> dict[str, str]:
    """Plain settings by their name in small letters; lines of node sets and partitions by the whole of their name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.partition("#")[0].strip()
        key, sign, value = stripped.partition("=")
        if sign and key.strip():
            name = key.strip().lower()
            # NodeSet=a and NodeSet=b are two things.
            found[f"{name}={value.split()[0]}" if name in ("nodeset", "partitionname") else name] = value.strip()
    return found


def changed_settings(before: str, after: str) -> set[str]:
    old, new = settings_of(before), settings_of(after)
    return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


def how_to_load(series: str, before: dict[str, str], after: dict[str, str]) -> str:
    """`before` and `after` are the files of the configuration by name. A series nobody has tried is restarted."""
    known = NEEDS_RESTART.get(series)
    if series in ALWAYS_RESTART or known is None:
        return RESTART
    others = [name for name in before.keys() | after.keys() if name != "slurm.conf"]
    if any(before.get(name) != after.get(name) for name in others):
        return RESTART
    keys = changed_settings(before.get("slurm.conf", ""), after.get("slurm.conf", ""))
    return RESTART if keys & known else RECONFIGURE


def pushes_to_workers(series: str) -> bool:
    """Whether a reconfigure may be used to hand the configuration to workers; else each of them has to fetch it."""
    return series not in ALWAYS_RESTART and series in NEEDS_RESTART
