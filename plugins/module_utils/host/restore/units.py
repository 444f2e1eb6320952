"""systemd units as they were before the cluster: running or stopped, enabled or not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ...app import LAST_UNIT
from ..errors import REPAIRABLE, AdapterError
from ..units import show, state_of, systemctl

STOP_SECONDS = 60
POLL_SECONDS = 0.1
RUNNING = ("active", "activating", "reloading", "deactivating")
AT_BOOT = ("enabled", "enabled-runtime", "linked")


def stop_units(noted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Stop and disable each unit, and wait until it stopped. A unit that does not exist counts as stopped."""
    states = show(list(noted))
    order = sorted(noted, key=lambda name: (name == LAST_UNIT, name))
    return [f"unit {name} stopped" for name in order if stop_unit(name, states.get(name, {}))]


def stop_unit(name: str, state: Mapping[str, str]) -> bool:
    """Stop and disable a unit and wait until it stopped. Returns whether it ran or was enabled."""
    running, at_boot = state.get("ActiveState") in RUNNING, state.get("UnitFileState") in AT_BOOT
    if at_boot:
        systemctl("disable", name)
    if running or state.get("ActiveState") == "failed":
        systemctl("--no-block", "stop", name)
        _await_stop(name)
        systemctl("reset-failed", name)
    return running or at_boot


def restart_former_units(noted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Start and enable the units that ran or were enabled before the cluster."""
    changes = []
    for name, before in sorted(noted.items()):
        if before.get("UnitFileState") in AT_BOOT:
            systemctl("enable", name)
            changes.append(f"unit {name} enabled")
        if before.get("ActiveState") == "active":
            systemctl("restart", name)
            changes.append(f"unit {name} started")
    return changes


def units_left(noted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Units that differ from their state before the cluster."""
    states = show(list(noted))
    left = []
    for name, before in sorted(noted.items()):
        state = states.get(name, {})
        ran, runs = before.get("ActiveState") == "active", state.get("ActiveState") in RUNNING
        was_off = before.get("UnitFileState") not in AT_BOOT
        if ran != runs or (was_off and state.get("UnitFileState") in AT_BOOT):
            left.append(f"unit {name}")
    return left


def reload_units() -> None:
    systemctl("daemon-reload")


def _await_stop(name: str) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while state_of(name).get("ActiveState") in RUNNING:
        if time.monotonic() > deadline:
            raise AdapterError(
                "unit_does_not_stop",
                f"{name}.service did not stop within {STOP_SECONDS} s. Read `systemctl status {name}` on the host, end"
                " the process that keeps it running, then retry.",
                REPAIRABLE,
            )
        time.sleep(POLL_SECONDS)
