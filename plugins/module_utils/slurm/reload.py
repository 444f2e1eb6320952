"""How a changed configuration goes live: by `scontrol reconfigure`, or by a restart of slurmctld. Pure.

Up to 23.02 a reconfigure re-reads the file inside the running daemon: many keys have no effect, a wrong key ends the
daemon, and a dynamic node with a running job stays allocated permanently (seen with 22.05). From 23.11 on it starts a
new process, which takes over only if it comes up. Keys that need a restart even then are listed here.
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
    """Settings by their name in lower case; node sets and partitions by kind and name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.partition("#")[0].strip()
        key, sign, value = stripped.partition("=")
        if sign and key.strip():
            name = key.strip().lower()
            # NodeSet=a and NodeSet=b are two entries.
            found[f"{name}={value.split()[0]}" if name in ("nodeset", "partitionname") else name] = value.strip()
    return found


def changed_settings(before: str, after: str) -> set[str]:
    old, new = settings_of(before), settings_of(after)
    return {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}


def how_to_load(series: str, before: dict[str, str], after: dict[str, str]) -> str:
    """`before` and `after` are the files of the configuration by name. A series that is not listed is restarted."""
    needs_restart = NEEDS_RESTART.get(series)
    if series in ALWAYS_RESTART or needs_restart is None:
        return RESTART
    others = [name for name in before.keys() | after.keys() if name != "slurm.conf"]
    if any(before.get(name) != after.get(name) for name in others):
        return RESTART
    keys = changed_settings(before.get("slurm.conf", ""), after.get("slurm.conf", ""))
    return RESTART if keys & needs_restart else RECONFIGURE


def pushes_to_workers(series: str) -> bool:
    """Whether a reconfigure sends the configuration to workers; otherwise each worker has to fetch it."""
    return series not in ALWAYS_RESTART and series in NEEDS_RESTART
