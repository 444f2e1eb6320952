"""The files of a fleet (podman keeps the rest), and the locks that keep two commands apart."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def state_root() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "gpuaas-slurm"


def state_dir(fleet: str) -> Path:
    return state_root() / fleet


def known_fleets() -> set[str]:
    """Names of all fleets that have a state directory."""
    root = state_root()
    return {entry.name for entry in root.iterdir() if entry.is_dir()} if root.is_dir() else set()


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock of this user; the kernel releases it when the process ends, also when it is killed."""
    path = state_root() / f".{name}.lock"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        with path.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # The holder removes the file when it is done, and a lock on a removed file protects nothing: try again.
            if not _is_same_file(path, handle.fileno()):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in one step."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as handle:
        handle.write(text)
    scratch.replace(path)


def forget(fleet: str) -> None:
    """Remove the fleet's state directory."""
    shutil.rmtree(state_dir(fleet), ignore_errors=True)
