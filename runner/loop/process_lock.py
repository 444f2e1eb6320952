"""One runner at a time, on a platform that cannot tell two apart.

Claims need ETags: without them two runners may both believe that they were first. A lock on this machine has to do
then. It lies on an open file, so the kernel gives it back when its holder dies, however that happens.
"""

import fcntl
import os
from collections.abc import Sequence
from types import TracebackType

from runner import log
from runner.model.platform import AppInstance
from runner.settings import Settings


class AnotherRunner(Exception):
    """Another runner of this project is at work on this machine, and the platform cannot keep us apart."""


class ProcessLock:
    """Takes the lock the first time it is needed, and keeps it until the end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._file: int | None = None

    def __enter__(self) -> "ProcessLock":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def make_sure(self, instances: Sequence[AppInstance]) -> None:
        """Do nothing where the platform sends ETags; else hold the lock, or raise NotAlone."""
        if self._file is not None or all(instance.etag for instance in instances):
            return
        directory = self._settings.state_directory
        path = directory / f"project-{self._settings.project_id}.lock"
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise AnotherRunner(
                f"the platform sends no ETags, so one runner at a time must hold {path}, which cannot be opened:"
                f" {error.strerror}. Set GPUAAS_STATE_DIRECTORY to a directory this user may write"
            ) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 200).decode(errors="replace").strip() or "somebody"
            os.close(file)
            raise AnotherRunner(
                f"the platform sends no ETags, so only one runner may work on project {self._settings.project_id}, and"
                f" {holder} does: leave it to that one, or wait for its end (the lock is {path})"
            ) from None
        os.ftruncate(file, 0)
        os.write(file, f"runner {self._settings.runner_id} (process {os.getpid()})\n".encode())
        self._file = file
        log.get().warning(
            "the platform sends no ETags: one runner only, guarded by a lock on this machine", lock=str(path)
        )
