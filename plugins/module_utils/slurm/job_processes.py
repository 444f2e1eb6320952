"""Jobs on this host by its processes, for use when no controller can be asked."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

STEP_DAEMON = "slurmstepd"
# slurmstepd shows its step in its command line: `slurmstepd: [12.batch]`.
STEP = re.compile(r"\[(\d+)\.")
# With cgroup v2 slurmd keeps a slurmstepd without a step, which keeps the cgroup scope.
IDLE = "infinity"
END_SECONDS = 20


def running_jobs(proc: Path = Path("/proc")) -> list[str]:
    """Ids of jobs with a step on this host; a step without a readable id counts too.

    A slurmstepd without child processes has ended its step: it only waits for a controller.
    """
    found = set()
    for pid in _steps(proc):
        if _with_children(proc, [pid]) == [pid]:
            continue
        line = _text(proc / str(pid) / "cmdline").replace("\0", " ")
        if IDLE not in line.split():
            step = STEP.search(line)
            found.add(step[1] if step else f"of process {pid}")
    return sorted(found)


def end_jobs(proc: Path = Path("/proc")) -> list[str]:
    """Kill every step with its child processes, and wait until they are gone."""
    ended = running_jobs(proc)
    deadline = time.monotonic() + END_SECONDS
    while (steps := _steps(proc)) and time.monotonic() < deadline:
        # Children first, so that a step logs their end.
        for pid in reversed(_with_children(proc, steps)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
    return [f"job {name} ended" for name in ended]


def _steps(proc: Path) -> list[int]:
    found = [int(path.parent.name) for path in proc.glob("[0-9]*/comm") if _text(path).strip() == STEP_DAEMON]
    # A zombie process runs nothing.
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
