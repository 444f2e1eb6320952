"""systemd units: running what is on disk now, and proven to run.

A unit is restarted when it does not run, or when something it watches changed after it started. That is read
from the host (times of files and of the process), not from what this run did: a run killed between writing a
file and restarting its daemon is put right by the next.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from ..app import NAME
from .errors import INTERVENTION, REPAIRABLE, AdapterError
from .ledger import Ledger

PROPERTIES = "Id,LoadState,ActiveState,SubState,UnitFileState,MainPID,NRestarts,NeedDaemonReload"
PROPERTIES += ",ExecMainStartTimestampMonotonic,ConditionResult"
POLL_SECONDS = 0.05
POLLS_A_LOOK = 10
TOLERATED_RESTARTS = 2
LISTENING = "0A"


def dropin_path(unit: str) -> str:
    return f"/etc/systemd/system/{unit}.service.d/{NAME}.conf"


def show(units: list[str]) -> dict[str, dict[str, str]]:
    if not units:
        return {}
    answer = _systemctl("show", f"--property={PROPERTIES}", *units).stdout
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in answer.strip().split("\n\n")]
    return {block["Id"].removesuffix(".service"): block for block in blocks if block.get("Id")}


def note_units(ledger: Ledger, units: list[dict[str, Any]]) -> None:
    states = show([unit["name"] for unit in units])
    for unit in units:
        state = states.get(unit["name"], {})
        before = {key: state.get(key) for key in ("LoadState", "UnitFileState", "ActiveState")}
        ledger.note("unit", unit["name"], before)


def converge_units(units: list[dict[str, Any]], dry: bool) -> list[str]:
    names = [unit["name"] for unit in units]
    states = show(names) if dry else reload_changed(names)
    changes: list[str] = []
    for unit in units:
        changes += _converge(unit, states.get(unit["name"], {}), dry)
    return changes


def reload_changed(names: list[str]) -> dict[str, dict[str, str]]:
    """The units' states, after systemd has read unit files that changed."""
    states = show(names)
    if any(state.get("NeedDaemonReload") == "yes" for state in states.values()):
        _systemctl("daemon-reload", check=True)
        states = show(names)
    return states


def started_monotonic(state: dict[str, str]) -> float:
    """When the unit's process started, by the host's monotonic clock; 0 if it has none."""
    return int(state.get("ExecMainStartTimestampMonotonic") or 0) / 1e6


def needs_restart(state: dict[str, str], watched: list[str]) -> bool:
    """True if the unit's process started before the last change of what it watches."""
    started = started_monotonic(state)
    if not started:
        return False
    started_at = time.time() - (time.monotonic() - started)
    return any(changed_at > started_at for changed_at in map(_changed_at, watched))


def listening(port: int, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> bool:
    """Whether something listens on the port: read, not dialled, since daemons log a dial without a request."""
    wanted = f":{port:04X}"
    for table in tables:
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        if any(row.split()[1].endswith(wanted) and row.split()[3] == LISTENING for row in rows):
            return True
    return False


def _converge(unit: dict[str, Any], state: dict[str, str], dry: bool) -> list[str]:
    name, changes = unit["name"], []
    if state.get("LoadState") == "masked":
        raise AdapterError(
            "unit_masked",
            f"Somebody masked {name}.service on the host. Find out why, run `systemctl unmask {name}`, then retry.",
            INTERVENTION,
        )
    if unit["enabled"] and state.get("UnitFileState") != "enabled":
        if not dry:
            enable(name)
        changes.append(f"unit {name} enabled")
    running = state.get("ActiveState") == "active"
    if running and not unit.get("restart") and not needs_restart(state, [*unit["watches"], dropin_path(name)]):
        return changes
    changes.append(f"unit {name} {'restarted' if running else 'started'}")
    if not dry:
        restart(unit)
    return changes


def enable(name: str) -> None:
    _systemctl("--quiet", "enable", name, check=True)


def restart(unit: dict[str, Any]) -> None:
    asked = time.monotonic()
    _systemctl("reset-failed", unit["name"])
    # Not blocking: a start that hangs is noticed by our own clock, which knows the reason to give.
    _systemctl("--no-block", "restart", unit["name"])
    _wait_until_up(unit, asked)


def _wait_until_up(unit: dict[str, Any], asked: float) -> None:
    """Active, and ready in the way the caller named. A unit that systemd skipped or that keeps dying is neither.

    Nor is one that is the old process still: systemd may take a moment to begin.
    """
    name, since, deadline = unit["name"], time.time(), time.monotonic() + unit["timeout"]
    polls = 0
    while True:
        # Asking systemd costs processes, here and in it, while a daemon wants to start: it is asked when the unit seems
        # ready, and now and then in between.
        polls += 1
        if not _ready(unit) and polls % POLLS_A_LOOK and time.monotonic() <= deadline:
            time.sleep(POLL_SECONDS)
            continue
        state = show([name]).get(name, {})
        active = state.get("ActiveState")
        if active == "active" and _ready(unit) and started_monotonic(state) >= asked:
            return
        skipped = active == "inactive" and state.get("ConditionResult") == "no"
        dying = active == "failed" or int(state.get("NRestarts") or 0) > TOLERATED_RESTARTS
        if skipped or dying or time.monotonic() > deadline:
            why = "systemd skipped it on a condition" if skipped else f"it is {active}"
            if active == "active":
                why = f"it runs but was not ready after {unit['timeout']:.0f} s"
            raise _unit_failed(name, state, why, journal(name, since))
        time.sleep(POLL_SECONDS)


def _ready(unit: dict[str, Any]) -> bool:
    port, path = unit.get("ready_port"), unit.get("ready_path")
    return (port is None or listening(port)) and (path is None or Path(path).exists())


def _unit_failed(name: str, state: dict[str, str], why: str, lines: list[str]) -> AdapterError:
    said = f" Its last words: {' | '.join(lines)}." if lines else ""
    return AdapterError(
        "unit_failed",
        f"{name}.service did not come up, {why} ({state.get('SubState', 'unknown')}).{said}"
        f" Read `journalctl -u {name}` on the host, put right what it names, then retry.",
        REPAIRABLE,
    )


def journal(name: str, since: float, lines: int = 5) -> list[str]:
    """What the unit said since then; words of an earlier start would point the wrong way."""
    answer = subprocess.run(
        ["journalctl", "--unit", name, "--output=cat", "--no-pager", f"--since=@{since:.0f}"],
        capture_output=True,
        text=True,
        check=False,
    )
    # systemd's own start and stop lines say less than the daemon's.
    told = [line for line in answer.stdout.splitlines() if not line.startswith((f"{name}.service:", "Start", "Stop"))]
    return told[-lines:]


def _changed_at(watched: str) -> float:
    """A path, or `package:NAME`: dpkg rewrites a package's file list whenever it unpacks it."""
    kind, _, name = watched.partition(":")
    paths = [Path(watched)]
    if kind == "package":
        paths = list(Path("/var/lib/dpkg/info").glob(f"{name}.list")) or list(
            Path("/var/lib/dpkg/info").glob(f"{name}:*.list")
        )
    times = [path.stat().st_mtime for path in paths if path.exists()]
    return max(times, default=0.0)


def _systemctl(*arguments: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False, timeout=120)
    if check and done.returncode != 0:
        raise AdapterError(
            "systemctl_failed",
            f"`systemctl {' '.join(arguments)}` failed: {done.stderr.strip()}. Look at the host's systemd, then retry.",
            REPAIRABLE,
        )
    return done
