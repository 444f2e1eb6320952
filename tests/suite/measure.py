"""Runs one command and records the CPU time of all its processes: python -m tests.suite.measure FILE COMMAND...

Platforms and agents that a test starts outlive their parents. As a subreaper this process inherits and reaps them, so
that their CPU time counts for the command that used it.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
PATIENCE_SECONDS = 5.0


def main() -> None:
    cost, *argv = sys.argv[1:]
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: object) -> None:
        for child in children:
            child.send_signal(number)

    # Before the command starts, since it would inherit an ignored SIGINT, as in a background job of a script.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    with contextlib.suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)  # a killed suite leaves no part running
    child = subprocess.Popen(argv)
    children.append(child)
    code = _wait(child.pid)
    _reap_orphans()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    Path(cost).write_text(json.dumps({"cpu": used.ru_utime + used.ru_stime}))
    sys.exit(code)


def _wait(wanted: int) -> int:
    while True:
        ended, status = os.wait()
        if ended == wanted:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _reap_orphans() -> None:
    """Wait for processes that end shortly after the command, such as a fork server, but not for others."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)


if __name__ == "__main__":
    main()
