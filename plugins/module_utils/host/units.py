"""systemd units that run with the files now on disk, and are shown to be ready.

A unit is restarted if it does not run, or if a path in its `watches` changed after it started. Both are read from the
host (times of files and of the process), not from what this run did: a run that was killed between writing a file and
restarting the daemon is completed by the next run.
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
POLLS_PER_SHOW = 10
TOLERATED_RESTARTS = 2
LISTENING = "0A"
# Options of a module for each unit that it restarts: those that `restart` reads.
UNIT_OPTIONS: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "ready_port": {"type": "int"},
    "ready_path": {"type": "path"},
    "timeout": {"type": "float", "default": 45},
}


def dropin_path(unit: str) -> str:
    return f"/etc/systemd/system/{unit}.service.d/{NAME}.conf"


def show(units: list[str]) -> dict[str, dict[str, str]]:
    if not units:
        return {}
    answer = systemctl("show", f"--property={PROPERTIES}", *units).stdout
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in answer.strip().split("\n\n")]
    return {block["Id"].removesuffix(".service"): block for block in blocks if block.get("Id")}


def state_of(name: str) -> dict[str, str]:
    """The properties of one unit; empty if systemd does not answer."""
    return show([name]).get(name, {})


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
        systemctl("daemon-reload", check=True)
        states = show(names)
    return states


def started_monotonic(state: dict[str, str]) -> float:
    """When the unit's process started, by the host's monotonic clock; 0 without a process."""
    return int(state.get("ExecMainStartTimestampMonotonic") or 0) / 1e6


def needs_restart(state: dict[str, str], watched: list[str]) -> bool:
    """Whether a watched path changed after the unit's process started."""
    started = started_monotonic(state)
    if not started:
        return False
    started_at = time.time() - (time.monotonic() - started)
    return any(changed_at > started_at for changed_at in map(_changed_at, watched))


def listening(port: int, tables: tuple[str, ...] = ("/proc/net/tcp", "/proc/net/tcp6")) -> bool:
    """Whether a process listens on the port. Read from /proc: daemons log a connection without a request."""
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
    name = str(unit["name"])
    refuse_masked(name, state)
    changes: list[str] = []
    if unit["enabled"]:
        changes += enable(name, state, dry)
    running = state.get("ActiveState") == "active"
    if running and not unit.get("restart") and not needs_restart(state, [*unit["watches"], dropin_path(name)]):
        return changes
    changes.append(f"unit {name} {'restarted' if running else 'started'}")
    if not dry:
        restart(unit)
    return changes


def refuse_masked(name: str, state: dict[str, str]) -> None:
    if state.get("LoadState") == "masked":
        raise AdapterError(
            "unit_masked",
            f"{name}.service is masked on the host. Find out why, run `systemctl unmask {name}`, then retry.",
            INTERVENTION,
        )


def enable(name: str, state: dict[str, str], dry: bool) -> list[str]:
    """Start the unit at boot. Returns what changed."""
    if state.get("UnitFileState") == "enabled":
        return []
    if not dry:
        systemctl("--quiet", "enable", name, check=True)
    return [f"unit {name} enabled"]


def restart(unit: dict[str, Any]) -> None:
    requested_at = time.monotonic()
    request("restart", unit["name"])
    _wait_until_up(unit, requested_at)


def request(verb: str, name: str) -> None:
    """Have systemd start or restart a unit without waiting: the caller has its own deadline and error."""
    systemctl("reset-failed", name)
    systemctl("--no-block", verb, name)


def _wait_until_up(unit: dict[str, Any], requested_at: float) -> None:
    """Wait until a process that started after the request is active and ready, by ready_port and ready_path."""
    name, since, deadline = unit["name"], time.time(), time.monotonic() + unit["timeout"]
    polls = 0
    while True:
        # systemctl costs CPU time that the starting daemon needs. It is called when the unit seems ready, and at every
        # tenth poll.
        polls += 1
        if not _ready(unit) and polls % POLLS_PER_SHOW and time.monotonic() <= deadline:
            time.sleep(POLL_SECONDS)
            continue
        state = state_of(name)
        active = state.get("ActiveState")
        if active == "active" and _ready(unit) and started_monotonic(state) >= requested_at:
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
    log = f" Its last log lines: {' | '.join(lines)}." if lines else ""
    return AdapterError(
        "unit_failed",
        f"{name}.service did not come up, {why} ({state.get('SubState', 'unknown')}).{log}"
        f" Read `journalctl -u {name}` on the host, correct the cause, then retry.",
        REPAIRABLE,
    )


def journal(name: str, since: float, lines: int = 5) -> list[str]:
    """The last log lines of the unit since then. Lines of an earlier start would be misleading."""
    answer = subprocess.run(
        ["journalctl", "--unit", name, "--output=cat", "--no-pager", f"--since=@{since:.0f}"],
        capture_output=True,
        text=True,
        check=False,
    )
    # systemd's own start and stop lines do not name a cause.
    own = [line for line in answer.stdout.splitlines() if not line.startswith((f"{name}.service:", "Start", "Stop"))]
    return own[-lines:]


def _changed_at(watched: str) -> float:
    """The time of a path, or of `package:NAME`: dpkg rewrites the file list of a package when it unpacks it."""
    kind, _, name = watched.partition(":")
    paths = [Path(watched)]
    if kind == "package":
        paths = list(Path("/var/lib/dpkg/info").glob(f"{name}.list")) or list(
            Path("/var/lib/dpkg/info").glob(f"{name}:*.list")
        )
    times = [path.stat().st_mtime for path in paths if path.exists()]
    return max(times, default=0.0)


def systemctl(*arguments: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False, timeout=120)
    if check and done.returncode != 0:
        raise AdapterError(
            "systemctl_failed",
            f"`systemctl {' '.join(arguments)}` failed: {done.stderr.strip()}. Check systemd on the host, then retry.",
            REPAIRABLE,
        )
    return done
