"""Keeping a lease from the claim until it is handed back, and noticing when it is lost."""

import threading
import time
from collections.abc import Callable
from contextvars import copy_context

from runner import log
from runner.model.errors import PlatformError


class LostLease(Exception):
    """Another runner works on it now: stop before the next write."""


class OperationEnded(LostLease):
    """A person called the operation off while we were at it."""


class Outdated(Exception):
    """What a decision stood on has changed meanwhile: read again, then decide again."""


class Renewal:
    """Calls `renew` three times a lease, in a thread of its own, from the first claim on until `stop`."""

    def __init__(self, renew: Callable[[], None], lease_seconds: float) -> None:
        self._renew = renew
        self._lease_seconds = lease_seconds
        self._lost = threading.Event()
        self._done = threading.Event()
        self._good_until = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """To be called right before a claim is sent; again is as good as once."""
        if self._thread is not None:
            return
        self._good_until = time.monotonic() + self._lease_seconds
        # The log's context is the tick's own.
        self._thread = threading.Thread(target=copy_context().run, args=(self._keep,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Whatever is held from here on runs out by itself."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def is_lost(self) -> bool:
        """Whether another runner may be at work. A process that was suspended learns it here, by the clock."""
        return self._lost.is_set() or (self._thread is not None and time.monotonic() >= self._good_until)

    def check(self) -> None:
        if self.is_lost:
            raise LostLease("the lease was lost, or ran out before it could be renewed")

    def _keep(self) -> None:
        while not self._done.wait(self._lease_seconds / 3):
            asked = time.monotonic()
            try:
                self._renew()
                self._good_until = asked + self._lease_seconds
            except LostLease as problem:
                log.get().error("lease lost", problem=str(problem))
                self._lost.set()
                return
            except PlatformError as error:
                log.get().warning("lease not renewed", problem=error.message)
                if time.monotonic() >= self._good_until:
                    self._lost.set()  # it has run out: another runner may be at work already
                    return
