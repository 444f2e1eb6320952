"""Jobs that run on this host, as the host itself sees them: for when no controller can be asked any more."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

STEP_DAEMON = "slurmstepd"
# It shows its step as `slurmstepd: [12.batch]`.
STEP = re.compile(r"\[(\d+)\.")
# With cgroup v2, slurmd keeps one that runs no step at all, so that their scope stays.
IDLE = "infinity"
END_SECONDS = 20


def running_jobs(proc: Path = Path("/proc")) -> list[str]:
    """Ids of jobs with a step here; a step that does not tell its id counts as well.

    A step without a process of its own has ended: its daemon stays to tell a controller that may never answer again.
    """
    found = set()
    for pid in _steps(proc):
        if _with_children(proc, [pid]) == [pid]:
            continue
        line = _text(proc / str(pid) / "cmdline").replace("\0", " ")
        if IDLE not in line.split():
            told = STEP.search(line)
            found.add(told[1] if told else f"of process {pid}")
    return sorted(found)


def end_jobs(proc: Path = Path("/proc")) -> list[str]:
    """End every step and all it started, and see that they are gone."""
    ended = running_jobs(proc)
    deadline = time.monotonic() + END_SECONDS
    while (steps := _steps(proc)) and time.monotonic() < deadline:
        # Parents last: a step that lost its children first says so in its log.
        for pid in reversed(_with_children(proc, steps)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
    return [f"job {name} ended" for name in ended]


def _steps(proc: Path) -> list[int]:
    found = [int(path.parent.name) for path in proc.glob("[0-9]*/comm") if _text(path).strip() == STEP_DAEMON]
    # One that has ended and waits for its parent to notice runs nothing.
    return sorted(pid for pid in found if ") Z " not in _text(proc / str(pid) / "stat"))


def _with_children(proc: Path, roots: list[int]) -> list[int]:
    parents = {}
    for path in proc.glob("[0-9]*/stat"):
        fields = _text(path).rpartition(")")[2].split()
        if len(fields) > 1:
            parents[int(path.parent.name)] = int(fields[1])
    tree = list(roots)
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid and child not in tree]
    return tree


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
