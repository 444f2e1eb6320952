"""One read for many callers."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedRead(Generic[T]):
    """The last answer of a read. Each caller says how old it may be; simultaneous callers share one read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began = float("-inf")
        self._answer: Future[T] = Future()

    def get(self, read: Callable[[], T], not_before: float) -> T:
        """The answer of a read that began at `not_before` or later. Callers that wait for it share its failure."""
        with self._lock:
            answer = self._answer
            is_reader = self._began < not_before
            if is_reader:
                answer = self._answer = Future()
                self._began = self._clock()
        if is_reader:
            try:
                answer.set_result(read())
            except BaseException as error:
                with self._lock:
                    if self._answer is answer:
                        self._began = float("-inf")  # a later caller reads again
                answer.set_exception(error)
        return answer.result()
