"""Processes of a fork server that has loaded the runner: a start takes milliseconds instead of 0.6 s of CPU.

The process is a real one, with its own session, environment, files and end. But /proc/PID/cmdline and
/proc/PID/environ show the values of the fork server, so tests of those need the real command.
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
# Modules that every child would load otherwise; pytest too, because a child imports its ancestor's main module.
_FORKS.set_forkserver_preload(
    [
        "runner.cli.main",
        "sandbox.cli",
        "ansible_runner",
        "httpcore",
        "hvac",
        "pytest",
        __name__,
        "tests.contract.killable_runner",
    ]
)
_LOCK = threading.Lock()


def start(target: Callable[..., None], *args: Any) -> Any:
    """Start a process that calls the target; target and arguments must be importable and picklable."""
    process = _FORKS.Process(target=target, args=args)
    with _LOCK, _without_terminal():
        process.start()
    return process


def exit_code(process: Any, seconds: float | None) -> int | None:
    """The exit code; None while the process runs. Under the lock: a start also polls, and a code is read only once."""
    if not wait([process.sentinel], seconds):
        return None
    with _LOCK:
        code: int = process.exitcode
        return code


@dataclass(frozen=True)
class Start:
    """Arguments, environment and files of a process at its start."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    stdout: Path
    stderr: Path
    directory: Path
    umask: int


def apply_start(given: Start) -> None:
    """Give this child of the fork server the state of a program that was just started."""
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
    tempfile.tempdir = None  # forget the fork server's value
    sys.argv = list(given.argv)


def current_umask() -> int:
    """Read from /proc: os.umask would change it for a moment, also for other threads."""
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
        output = [path.read_text() if path.exists() else "" for path in (out, err)]
    if code is None:
        raise subprocess.TimeoutExpired(list(argv), timeout, *output)
    return subprocess.CompletedProcess(list(argv), code, *output)


def _program(main: Callable[[], object], given: Start) -> None:
    apply_start(given)
    try:
        sys.exit(main())  # type: ignore[arg-type]
    finally:
        atexit._run_exitfuncs()


def _end(process: Any) -> None:
    """Kill the process and its group if it still runs, and release its resources."""
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
