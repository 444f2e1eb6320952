"""Allows one runner, or one command of a person, at a time on this machine if the platform sends no ETags.

Claims need ETags: without them two runners may both conclude that they were first, and a write may undo another. The
lock is on an open file, so the kernel releases it when its process ends, however it ends.
"""

import fcntl
import os
from collections.abc import Sequence
from types import TracebackType

from runner import log
from runner.model.platform import AppInstance
from runner.platform.client import Client
from runner.settings import Settings


class AnotherRunner(Exception):
    """Another runner of this project or shared runtime holds the lock on this machine."""


class ProcessLock:
    """Takes the lock when it is first needed, and keeps it until the end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._file: int | None = None

    def __enter__(self) -> "ProcessLock":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def require_for(self, client: Client, instance: AppInstance) -> None:
        """The same, for a person's command on one instance. A list may come without the ETags of a single read."""
        self.require([instance if instance.etag else client.instance(instance.id)])

    def require(self, instances: Sequence[AppInstance]) -> None:
        """Hold the lock unless the platform sends ETags; AnotherRunner if another process has it."""
        if self._file is not None or all(instance.etag for instance in instances):
            return
        directory = self._settings.state_directory
        path = directory / f"{str(self._settings.scope).replace(' ', '-')}.lock"
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
            holder = os.read(file, 200).decode(errors="replace").strip() or "another runner"
            os.close(file)
            raise AnotherRunner(
                f"the platform sends no ETags, so only one runner may work on {self._settings.scope}, and"
                f" {holder} is running. Wait until it ends, or stop its service (the lock is {path})"
            ) from None
        if os.geteuid() == 0 and os.fstat(file).st_size == 0:
            # Root's command may come first, and the service has a user of its own.
            owner = directory.stat()
            os.fchown(file, owner.st_uid, owner.st_gid)
        os.ftruncate(file, 0)
        os.write(file, f"runner {self._settings.runner_id} (process {os.getpid()})\n".encode())
        self._file = file
        log.get().warning(
            "the platform sends no ETags: one runner only, guarded by a lock on this machine", lock=str(path)
        )
