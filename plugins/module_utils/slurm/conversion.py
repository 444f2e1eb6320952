"""Start slurmdbd on a database that it may have to convert first, which can take hours.

Until the conversion is done slurmdbd runs but does not listen. The adapter waits while it works: while it uses CPU
time, or the database server runs a statement on its database. One call waits for a limited time and then returns the
progress. The caller stores the observations, so the next call continues, also after a call that was killed. slurmdbd is
never restarted while it works.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..host.errors import REPAIRABLE, AdapterError
from ..host.facts import utc_time
from ..host.units import TOLERATED_RESTARTS, journal, listening, needs_restart, reload_changed, request, state_of

UNIT = "slurmdbd"
ALIVE = ("active", "activating", "reloading")
POLL_SECONDS = 0.2
LOOK_SECONDS = 2
# A daemon that only waits uses less than this share of a core.
WORKING_SHARE = 0.01
# Newer units have Type=notify, whose start systemd would end after 90 s.
DROPIN = Path("/run/systemd/system/slurmdbd.service.d/gpuaas-slurm-conversion.conf")
DROPIN_TEXT = "[Service]\nTimeoutStartSec=infinity\n"
STATEMENTS = (
    "SELECT COUNT(*) FROM information_schema.processlist WHERE db = '{database}'"
    " AND command NOT IN ('Sleep', 'Daemon') AND COALESCE(state, '') NOT LIKE 'Waiting for%lock%'"
)


@dataclass(frozen=True)
class Patience:
    """How long one call waits, how long slurmdbd may do nothing, and how long it may take in all, in seconds."""

    round: float = 45
    idle: float = 900
    limit: float = 7 * 86400


class StillConverting(Exception):
    """slurmdbd works and does not listen yet. Not a failure: call again later."""

    def __init__(self, progress: dict[str, Any]) -> None:
        super().__init__("slurmdbd does not listen yet")
        self.progress = progress


Record = dict[str, Any]


def start_slurmdbd(
    unit: dict[str, Any], database: str, record: Record, save: Callable[[Record], None], patience: Patience
) -> list[str]:
    """Start the installed slurmdbd and wait until it listens. Returns the changes made.

    `record` is what an earlier call saved. Raises StillConverting while slurmdbd works, and AdapterError if it died,
    was idle for too long or took too long. After such an error the next call starts again.
    """
    try:
        return _start_and_wait(unit, database, record, save, patience)
    except AdapterError:
        save({})
        raise


def _start_and_wait(
    unit: dict[str, Any], database: str, record: Record, save: Callable[[Record], None], patience: Patience
) -> list[str]:
    since, deadline = time.time(), time.monotonic() + patience.round
    before = reload_changed([UNIT]).get(UNIT, {})
    changes = _start(unit, record)
    # Restarts by systemd before this attempt do not count; a restart by the adapter resets the count.
    tolerated = record.get("restarts", 0 if changes else int(before.get("NRestarts") or 0)) + TOLERATED_RESTARTS
    while True:
        state = state_of(UNIT)
        alive = state.get("ActiveState") in ALIVE and not _is_old(state, unit, record)
        if alive and state.get("ActiveState") == "active" and listening(unit["ready_port"]):
            save({})
            _lift_time_limit(False)
            return changes
        _check_alive(state, tolerated, since)
        if alive and time.time() - record.get("seen", 0) >= LOOK_SECONDS:
            record = _look(record, state, database) | {"restarts": tolerated - TOLERATED_RESTARTS}
            save(record)
            _check_patience(record, patience)
        if time.monotonic() > deadline:
            if not record:
                raise _failed(f"systemd did not start it within {patience.round:.0f} s", since)
            raise StillConverting(_progress(record))
        time.sleep(POLL_SECONDS)


def _start(unit: dict[str, Any], record: Record) -> list[str]:
    state = state_of(UNIT)
    runs = state.get("ActiveState") in ALIVE
    if runs and not _is_old(state, unit, record):
        return []
    _lift_time_limit(True)
    request("restart", UNIT)
    return [f"unit {UNIT} {'restarted' if runs else 'started'}"]


def _lift_time_limit(lift: bool) -> None:
    if lift:
        DROPIN.parent.mkdir(parents=True, exist_ok=True)
        DROPIN.write_text(DROPIN_TEXT)
    else:
        DROPIN.unlink(missing_ok=True)
    reload_changed([UNIT])


def _is_old(state: dict[str, str], unit: dict[str, Any], record: Record) -> bool:
    """Whether the process started before the new package. A process in the record did not, whatever clocks show."""
    return record.get("process") != _process(state) and needs_restart(state, unit["watches"])


def _process(state: dict[str, str]) -> str:
    return f"{state.get('MainPID')}/{state.get('ExecMainStartTimestampMonotonic')}"


def _look(record: Record, state: dict[str, str], database: str) -> Record:
    """The record after one more observation. CPU time of a process that systemd restarted does not count."""
    now, cpu = time.time(), cpu_seconds(state.get("MainPID") or "0")
    if not record:
        return {"process": _process(state), "since": now, "seen": now, "active": now, "cpu": cpu}
    elapsed = max(0.0, now - record["seen"])
    used = cpu - record["cpu"] if record["process"] == _process(state) else 0.0
    works = used > WORKING_SHARE * elapsed or statement_runs(database)
    return {
        "process": _process(state),
        "since": min(record["since"], now),
        "seen": now,
        "active": now if works else min(record["active"], now),
        "cpu": cpu,
    }


def cpu_seconds(process: str, proc: Path = Path("/proc")) -> float:
    """CPU time of a process and of its children that have ended; 0 if it is gone."""
    try:
        fields = (proc / process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def statement_runs(database: str) -> bool:
    """Whether the server executes a statement on the database now. One that waits for a lock does not count."""
    command = ["mariadb", "--batch", "--skip-column-names", "--execute", STATEMENTS.format(database=database)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip().isdigit() and int(done.stdout) > 0


def _check_alive(state: dict[str, str], tolerated: int, since: float) -> None:
    active = state.get("ActiveState")
    if active == "inactive" and state.get("ConditionResult") == "no":
        raise _failed("systemd skipped it on a condition", since)
    if active == "failed" or int(state.get("NRestarts") or 0) > tolerated:
        raise _failed(f"it keeps ending (now {active})", since)


def _check_patience(record: Record, patience: Patience) -> None:
    idle, lasted = record["seen"] - record["active"], record["seen"] - record["since"]
    if idle > patience.idle:
        raise _failed(f"it used no CPU time and ran no statement on its database for {idle:.0f} s", record["since"])
    if lasted > patience.limit:
        raise _failed(f"the conversion did not end within {lasted:.0f} s", record["since"])


def _progress(record: Record) -> dict[str, Any]:
    lines = journal(UNIT, record["since"], 1)
    return {
        "since": utc_time(record["since"]),
        "seconds": round(record["seen"] - record["since"]),
        "idle_seconds": round(record["seen"] - record["active"]),
        "cpu_seconds": round(record["cpu"]),
        "last_line": lines[-1][:200] if lines else "",
    }


def _failed(why: str, since: float) -> AdapterError:
    lines = " | ".join(journal(UNIT, since, 3))[-300:]
    log = f" Its last log lines: {lines}." if lines else ""
    return AdapterError(
        "slurmdbd_not_ready",
        f"slurmdbd.service did not become ready: {why}.{log} Read `journalctl -u slurmdbd` there, then retry.",
        REPAIRABLE,
    )
