"""Processes of a fork server that has loaded the runner already: a start takes milliseconds instead of 0.6 s of CPU.

The process is a real one, with its own session, environment, files and death. What the kernel keeps from the start of a
program is the fork server's: /proc/PID/cmdline, /proc/PID/environ. Tests of those need the real command.
"""

import atexit
import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

_FORKS = multiprocessing.get_context("forkserver")
# What every child would load otherwise; pytest is there because a child looks at its ancestor's main module.
_FORKS.set_forkserver_preload(
    [
        "runner.cli.main",
        "sandbox.cli",
        "ansible_runner",
        "httpcore",
        "hvac",
        "pytest",
        __name__,
        "tests.contract.mortal_runner",
    ]
)
_LOCK = threading.Lock()


def start(target: Callable[..., None], *args: Any) -> Any:
    """A new process that calls the target; both must be importable and picklable."""
    process = _FORKS.Process(target=target, args=args)
    with _LOCK, _without_terminal():
        process.start()
    return process


def exit_code(process: Any, seconds: float | None) -> int | None:
    """None while it lives. Whoever starts a process looks at all others too, and a code can be read only once."""
    if not wait([process.sentinel], seconds):
        return None
    with _LOCK:
        code: int = process.exitcode
        return code


@dataclass(frozen=True)
class Start:
    """What a process is given at its start."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    stdout: Path
    stderr: Path
    directory: Path
    umask: int


def apply_start(given: Start) -> None:
    """Make this child of the fork server what the start of a program would have made it."""
    os.setsid()
    for number, path, mode in (
        (0, Path(os.devnull), os.O_RDONLY),
        (1, given.stdout, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
        (2, given.stderr, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
    ):
        opened = os.open(path, mode, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(given.environment)
    time.tzset()
    os.chdir(given.directory)
    os.umask(given.umask)
    tempfile.tempdir = None  # whatever the fork server had found
    sys.argv = list(given.argv)


def current_umask() -> int:
    """Read without setting it, which other threads would notice."""
    found = re.search(r"^Umask:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1], 8)


def run(
    main: Callable[[], object], argv: Sequence[str], environment: Mapping[str, str], timeout: float
) -> "subprocess.CompletedProcess[str]":
    """Like subprocess.run with captured output, for a program whose entry point is `main`."""
    with tempfile.TemporaryDirectory() as directory:
        out, err = Path(directory) / "stdout", Path(directory) / "stderr"
        given = Start(list(argv), dict(environment), out, err, Path.cwd(), current_umask())
        process = start(_program, main, given)
        try:
            code = exit_code(process, timeout)
        finally:
            _end(process)
        said = [path.read_text() if path.exists() else "" for path in (out, err)]
    if code is None:
        raise subprocess.TimeoutExpired(list(argv), timeout, *said)
    return subprocess.CompletedProcess(list(argv), code, *said)


def _program(main: Callable[[], object], given: Start) -> None:
    apply_start(given)
    try:
        sys.exit(main())  # type: ignore[arg-type]
    finally:
        atexit._run_exitfuncs()


def _end(process: Any) -> None:
    """Kill the process and its group if it still lives, and forget it."""
    if exit_code(process, 0) is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it may not have had a group of its own yet
            os.killpg(process.pid, signal.SIGKILL)
        exit_code(process, None)
    with _LOCK:
        process.close()


@contextlib.contextmanager
def _without_terminal() -> Iterator[None]:
    """Start the server itself without a terminal: rich decides at import whether to write in colours."""
    if forkserver._forkserver._forkserver_pid is not None or not any(map(os.isatty, (0, 1, 2))):  # type: ignore[attr-defined]
        yield
        return
    kept = [os.dup(number) for number in (0, 1, 2)]
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        yield
    finally:
        for number, old in enumerate(kept):
            os.dup2(old, number)
            os.close(old)
        os.close(nothing)
