"""systemd units back to what they were: stopped and off if they were, running again if they ran."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from typing import Any

from ...app import LAST_UNIT
from ..errors import REPAIRABLE, AdapterError
from ..units import show

STOP_SECONDS = 60
POLL_SECONDS = 0.1
RUNNING = ("active", "activating", "reloading", "deactivating")
AT_BOOT = ("enabled", "enabled-runtime", "linked")


def stop_units(noted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Stop and disable each unit, and see that it stopped. One that does not exist has stopped already."""
    states = show(list(noted))
    order = sorted(noted, key=lambda name: (name == LAST_UNIT, name))
    return [f"unit {name} stopped" for name in order if stop_unit(name, states.get(name, {}))]


def stop_unit(name: str, state: Mapping[str, str]) -> bool:
    """Stop it, keep it from starting at boot, and see that it stopped; whether there was anything to do."""
    running, at_boot = state.get("ActiveState") in RUNNING, state.get("UnitFileState") in AT_BOOT
    if at_boot:
        _systemctl("disable", name)
    if running or state.get("ActiveState") == "failed":
        _systemctl("--no-block", "stop", name)
        _await_stop(name)
        _systemctl("reset-failed", name)
    return running or at_boot


def bring_back_units(noted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Units that were there before us run, and start at boot, as they did then."""
    changes = []
    for name, before in sorted(noted.items()):
        if before.get("UnitFileState") in AT_BOOT:
            _systemctl("enable", name)
            changes.append(f"unit {name} enabled")
        if before.get("ActiveState") == "active":
            _systemctl("restart", name)
            changes.append(f"unit {name} started")
    return changes


def units_left(noted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Units that are not as they were."""
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
    _systemctl("daemon-reload")


def _await_stop(name: str) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while show([name]).get(name, {}).get("ActiveState") in RUNNING:
        if time.monotonic() > deadline:
            raise AdapterError(
                "unit_does_not_stop",
                f"{name}.service did not stop within {STOP_SECONDS} s. Look at `systemctl status {name}` on the host,"
                " end what holds it, then ask again.",
                REPAIRABLE,
            )
        time.sleep(POLL_SECONDS)


def _systemctl(*arguments: str) -> None:
    # What matters is what units are like afterwards, and that is looked at.
    subprocess.run(["systemctl", *arguments], capture_output=True, check=False, timeout=120)
