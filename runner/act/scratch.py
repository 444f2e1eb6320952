"""Private directories that last for one run. The next run removes those of a killed runner.

Each directory is locked by the process that uses it. The kernel releases the lock when that process ends, however it
ends: a directory without a lock may be removed.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from runner import log

PREFIX = "gpuaas-runner-"
END_SECONDS = 10.0  # a killed process that is in the kernel ends when its call returns
SOCKETS = "cp"  # for the ssh masters of a play; short, because the path of a socket must be


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A new private directory. It is removed at the end, and its ssh masters are ended."""
    directory, lock = _make()
    try:
        yield directory
    finally:
        _remove(directory)
        os.close(lock)


def sweep() -> None:
    """Remove the directories of dead runners of this user."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another runner was faster, or we have no access
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
        with contextlib.suppress(FileNotFoundError):  # removed by `sweep` before it was locked: make another
            lock = _open(directory)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if directory.exists():
                return directory, lock
            os.close(lock)


def _open(directory: Path) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def end_processes(directory: Path) -> None:
    """End the processes of a stopped play, or of a dead runner's play: Ansible does not end with its parent.

    The processes of a play, and no others, have paths of its directory in their environment. A process may start
    another one while the list is read, and a killed process takes a moment to end: look again until none is left.
    """
    deadline = time.monotonic() + END_SECONDS
    logged: set[int] = set()
    while found := set(_processes_of(directory)):
        for process in found:
            with contextlib.suppress(OSError):  # it has ended
                os.kill(process, signal.SIGKILL)
        for process in sorted(found - logged):
            log.get().info("ended a process that a play left", process=process)
        logged |= found
        if time.monotonic() > deadline:
            log.get().warning("processes of a play do not end", processes=sorted(found))
            return
        time.sleep(0.02)


def _processes_of(directory: Path) -> Iterator[int]:
    marker = f"={directory}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            if marker in (process / "environ").read_bytes():
                yield int(process.name)


def _remove(directory: Path) -> None:
    """An ssh master outlives its play by a minute, and anyone with access to its socket could use the connection."""
    for control in directory.glob(f"{SOCKETS}/*"):
        with contextlib.suppress(subprocess.TimeoutExpired):
            command = ["ssh", "-O", "exit", "-S", str(control), "-q", "gone"]
            subprocess.run(command, capture_output=True, check=False, timeout=10)
    shutil.rmtree(directory, ignore_errors=True)
