"""A member's units stopped in order, or restarted if they are older than what asked for it.

Ages are taken by the host's own monotonic clock: no two hosts' clocks are ever compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import INTERVENTION, AdapterError
from .restore.entries import of_kind
from .restore.units import stop_unit
from .units import enable, restart, show, started_monotonic


def found_running(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Units that ran before we came, with that as the reason why they are not ours to stop."""
    ran = [name for name, before in of_kind(entries, "unit").items() if before.get("ActiveState") == "active"]
    return dict.fromkeys(ran, "it ran before this cluster came to the host")


def stop_in_order(names: Iterable[str], others: Mapping[str, str], dry: bool) -> tuple[list[str], dict[str, str]]:
    """What changed, and which units were left with the reason. Each has stopped before the next is asked to.

    `others` are units that are not ours to stop, with the reason.
    """
    changes: list[str] = []
    left: dict[str, str] = {}
    for name in names:
        state = show([name]).get(name, {})
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
        state = show([name]).get(name, {})
        if state.get("LoadState") == "masked":
            raise AdapterError(
                "unit_masked",
                f"Somebody masked {name}.service on the host. Find out why, run `systemctl unmask {name}`, then retry.",
                INTERVENTION,
            )
        if state.get("UnitFileState") != "enabled":
            changes.append(f"unit {name} enabled")
            if not dry:
                enable(name)
        if state.get("ActiveState") == "active" and seconds is not None and age(state) < seconds:
            continue
        changes.append(f"unit {name} restarted")
        if not dry:
            restart(dict(unit))
    return changes


def age(state: dict[str, str]) -> float:
    return time.monotonic() - started_monotonic(state)
