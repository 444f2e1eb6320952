"""Stop a member's units in order, or restart those that started before a request.

Ages are measured with the host's monotonic clock: clocks of two hosts are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from .restore.entries import of_kind
from .restore.units import stop_unit
from .units import enable, refuse_masked, restart, started_monotonic, state_of


def found_running(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Units that ran before the cluster was set up, each with the reason why it is not stopped."""
    ran = [name for name, before in of_kind(entries, "unit").items() if before.get("ActiveState") == "active"]
    return dict.fromkeys(ran, "it ran before this cluster came to the host")


def stop_in_order(names: Iterable[str], others: Mapping[str, str], dry: bool) -> tuple[list[str], dict[str, str]]:
    """Returns what changed, and the units that were not stopped with the reason. Waits for each unit to stop.

    `others` are units that belong to others, with the reason.
    """
    changes: list[str] = []
    left: dict[str, str] = {}
    for name in names:
        state = state_of(name)
        if name in others:
            left[name] = others[name]
        elif (not dry and stop_unit(name, state)) or (dry and state.get("ActiveState") == "active"):
            changes.append(f"unit {name} stopped")
    return changes, left


def restart_older(units: Iterable[Mapping[str, Any]], seconds: float | None, dry: bool) -> list[str]:
    """Restart each unit that does not run or started longer than `seconds` ago; without seconds, all."""
    changes: list[str] = []
    for unit in units:
        name = unit["name"]
        state = state_of(name)
        refuse_masked(name, state)
        changes += enable(name, state, dry)
        if state.get("ActiveState") == "active" and seconds is not None and age(state) < seconds:
            continue
        changes.append(f"unit {name} restarted")
        if not dry:
            restart(dict(unit))
    return changes


def age(state: dict[str, str]) -> float:
    return time.monotonic() - started_monotonic(state)
