"""Slurm or munge on a host that the adapter did not start: such a host belongs to somebody else's cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..host.errors import INTERVENTION, AdapterError
from ..host.units import show

# Daemon to the unit that runs it.
UNITS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "munged": "munge"}


def refuse_foreign_daemons(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """A daemon whose unit is not in our ledger was not started by us."""
    unknown = {daemon: unit for daemon, unit in UNITS.items() if f"unit:{unit}" not in entries}
    states = show(list(unknown.values()))
    active = {daemon for daemon, unit in unknown.items() if states.get(unit, {}).get("ActiveState") == "active"}
    found = sorted(active | (set(running()) & set(unknown)))
    if found:
        raise AdapterError(
            "host_has_slurm",
            f"{' and '.join(found)} runs on the host and was not started by this adapter, so the host belongs to"
            " another cluster. Nothing was changed. Remove it there, or choose another allocation.",
            INTERVENTION,
        )


def running(proc: Path = Path("/proc")) -> Iterator[str]:
    """Names of the host's processes, without those of its containers."""
    ours = _namespace(proc / "self")
    for process in proc.glob("[0-9]*"):
        try:
            name = (process / "comm").read_text().strip()
        except OSError:
            continue  # it has ended
        if name in UNITS and _namespace(process) == ours:
            yield name


def _namespace(process: Path) -> str | None:
    try:
        return str((process / "ns" / "pid").readlink())
    except OSError:
        return None
