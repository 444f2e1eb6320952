"""Refuse a host with Slurm or munge daemons that the adapter did not start: it belongs to another cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..host.errors import INTERVENTION, AdapterError
from ..host.units import show

# Daemon to the unit that runs it.
UNITS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "munged": "munge"}


def refuse_foreign_daemons(entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise an error if a daemon runs whose unit is not in the ledger."""
    unknown = {daemon: unit for daemon, unit in UNITS.items() if f"unit:{unit}" not in entries}
    states = show(list(unknown.values()))
    active = {daemon for daemon, unit in unknown.items() if states.get(unit, {}).get("ActiveState") == "active"}
    found = sorted(active | (set(running()) & set(unknown)))
    if found:
        raise AdapterError(
            "host_has_slurm",
            f"{' and '.join(found)} runs on the host and was not started by this adapter, so the host belongs to"
            " another cluster. Nothing was changed. Remove that cluster from the host, or choose another allocation.",
            INTERVENTION,
        )


def running(proc: Path = Path("/proc")) -> Iterator[str]:
    """Names of the host's processes, without those of its containers."""
    ours = _namespace(proc / "self")
    for process in proc.glob("[0-9]*"):
        try:
            name = (process / "comm").read_text().strip()
        except OSError:
            continue  # the process has ended
        if name in UNITS and _namespace(process) == ours:
            yield name


def _namespace(process: Path) -> str | None:
    try:
        return str((process / "ns" / "pid").readlink())
    except OSError:
        return None
