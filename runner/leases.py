"""Keeping a lease while somebody works under it, and noticing when it is lost."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context

from runner import log
from runner.platform.errors import PlatformError


class LostLease(Exception):
    """Another runner works on it now: stop before the next write."""


class OperationEnded(LostLease):
    """A person called the operation off while we were at it."""


@contextmanager
def renewing(renew: Callable[[], None], lease_seconds: float) -> Iterator[threading.Event]:
    """Call `renew` three times a lease; the event is set when it is lost or could not be renewed before it ran out."""
    lost, done = threading.Event(), threading.Event()

    def keep() -> None:
        good_until = time.monotonic() + lease_seconds
        while not done.wait(lease_seconds / 3):
            asked = time.monotonic()
            try:
                renew()
                good_until = asked + lease_seconds
            except LostLease as problem:
                log.get().error("lease lost", problem=str(problem))
                lost.set()
                return
            except PlatformError as error:
                log.get().warning("lease not renewed", problem=error.message)
                if time.monotonic() >= good_until:
                    lost.set()  # it has run out: somebody else may be at work already
                    return

    thread = threading.Thread(target=copy_context().run, args=(keep,), daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        done.set()
        thread.join()
