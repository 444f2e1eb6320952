"""Directories for one run: closed to others, and gone at its end. What a killed runner left goes with the next tick.

Each is locked by whoever uses it. The lock lies on an open file, so the kernel gives it back when its holder dies,
however that happens: what no living process holds may be removed.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from runner import log

PREFIX = "gpuaas-runner-"
SOCKETS = "cp"  # where a play has its ssh masters; short, since the path of a socket is


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A fresh directory that only we can enter; nothing of it is left behind, ssh masters included."""
    directory, lock = _make()
    try:
        yield directory
    finally:
        _remove(directory)
        os.close(lock)


def sweep() -> None:
    """Remove what runners of this user left that are dead."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another runner was quicker, or it is not ours to look at
            if directory.lstat().st_uid != os.geteuid():
                continue
            lock = _open(directory)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end_processes(directory)
                _remove(directory)
                log.get().info("removed what a killed runner left", directory=str(directory))
            finally:
                os.close(lock)


def _make() -> tuple[Path, int]:
    while True:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        with contextlib.suppress(FileNotFoundError):  # swept in the moment before it was locked: make another
            lock = _open(directory)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if directory.exists():
                return directory, lock
            os.close(lock)


def _open(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def end_processes(directory: Path) -> None:
    """End what is left of a play that was stopped, or of a dead runner's: Ansible ignores the loss of its terminal.

    A play's processes have paths of the directory in their environment, and only they.
    """
    mark = f"={directory}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if mark in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
                log.get().info("ended a process that a play left", process=int(process.name))


def _remove(directory: Path) -> None:
    """An ssh master outlives its play, and a killed runner, by a minute: whoever finds its socket could use it."""
    for control in directory.glob(f"{SOCKETS}/*"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            command = ["ssh", "-O", "exit", "-S", str(control), "-q", "gone"]
            subprocess.run(command, capture_output=True, check=False, timeout=10)
    shutil.rmtree(directory, ignore_errors=True)
