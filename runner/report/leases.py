"""Renews leases from the first claim to the release, and detects lost ones."""

import threading
import time
from collections.abc import Callable
from contextvars import copy_context

from runner import context, log
from runner.model.errors import PlatformError


class LostLease(Exception):
    """Another runner holds the claim now: stop before the next write."""

    code = "lease_lost"


class OperationEnded(LostLease):
    """A person cancelled the operation while it was carried out."""


class Outdated(Exception):
    """The records that a decision was based on have changed: read again, then decide again."""


class Renewal:
    """Calls `renew` three times per lease, in a thread of its own, from the first claim until `stop`."""

    def __init__(self, renew: Callable[[], None], lease_seconds: float) -> None:
        self._renew = renew
        self._lease_seconds = lease_seconds
        self._lost = threading.Event()
        self._done = threading.Event()
        self._context = copy_context()  # the thread logs with the ids of the tick
        self._good_until: float  # set by start()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """To be called right before each claim is sent; only the first call starts the thread."""
        if self._thread is not None:
            return
        self._good_until = time.monotonic() + self._lease_seconds
        self._thread = threading.Thread(target=self._context.run, args=(self._keep,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Renew no longer. Leases that are not released expire."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def is_lost(self) -> bool:
        """Whether another runner may hold the claims. A process that was suspended detects it by the clock."""
        return self._lost.is_set() or (self._thread is not None and time.monotonic() >= self._good_until)

    def check(self) -> None:
        if self.is_lost:
            raise LostLease("the lease was lost, or expired before it could be renewed")

    def _keep(self) -> None:
        while not self._done.wait(self._lease_seconds / 3):
            sent_at = time.monotonic()
            try:
                self._renew()
                self._good_until = sent_at + self._lease_seconds
            except PlatformError as error:
                with context.bound_to(error):
                    log.get().warning("lease not renewed", error_code=error.code, problem=error.message)
                if time.monotonic() >= self._good_until:
                    self._lost.set()  # expired: another runner may have the claims already
                    return
            except Exception as problem:
                # LostLease, or a bug: without renewal the claims are as good as lost.
                with context.bound_to(problem):
                    log.get().error(
                        "lease lost",
                        **log.error_code(problem, "lease_lost"),
                        problem=str(problem) or type(problem).__name__,
                    )
                self._lost.set()
                return
