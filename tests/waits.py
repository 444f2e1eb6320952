"""Waiting for a condition. The message of a failed wait has the condition and the last values.

A test has a time limit, which ends it anywhere. A wait ends before that limit, because its own message is better.
"""

import signal
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tests.commands import CALLS, TAIL, scrubbed

T = TypeVar("T")

LONGEST_WAIT = 600.0
# An end-to-end test with its fixtures. The longest take 5 minutes on a slow machine; two of the longest waits fit in.
TEST_SECONDS = 1500
# A wait ends this many seconds before the test's time limit, so that the check under way is over by then.
MARGIN = 30.0

# What a command on a host printed last, for the message of a wait that failed.
_last_answer: tuple[float, str] = (0.0, "")


def remember_answer(answer: str) -> None:
    """Keep a host's answer for the message of a failed wait."""
    global _last_answer
    _last_answer = (time.monotonic(), answer)


def until(
    condition: Callable[[], T | None],
    seconds: float,
    what: str,
    every: float = 0.1,
    seen: Callable[[], Any] | None = None,
) -> T:
    """Poll until the condition returns something true.

    Checks slow down what they wait for. So the pause is a seventh of the time waited so far, at most a second, and as
    long as a slow check took, at most half a second; never less than `every`. `seen` is called once, for the message
    of a failed wait.
    """
    __tracebackhide__ = True
    assert seconds <= LONGEST_WAIT, f"no wait may be longer than {LONGEST_WAIT:.0f} s"
    start = time.monotonic()
    deadline = min(start + seconds, start + _left())
    while True:
        began = time.monotonic()
        found = condition()
        if found:
            return found
        now = time.monotonic()
        if now >= deadline:
            raise AssertionError(_message(what, seconds, start, found, seen))
        time.sleep(max(every, min((now - start) / 7, 1.0), min(now - began, 0.5)))


def _left() -> float:
    """Seconds until shortly before pytest's alarm for this test; infinite without an alarm."""
    alarm = signal.getitimer(signal.ITIMER_REAL)[0]
    return max(alarm - MARGIN, 0.0) if alarm else float("inf")


def _message(what: str, seconds: float, start: float, found: object, seen: Callable[[], Any] | None) -> str:
    waited = time.monotonic() - start
    lines = [f"{what}: not within {seconds:.0f} s"]
    if waited < seconds:
        lines = [f"{what}: not within {waited:.0f} s, which is all that was left of the test's time limit"]
    lines.append(f"last value: {found!r}")
    if seen is not None:
        lines.append(f"last seen: {seen()}")
    if _last_answer[0] >= start:
        lines.append(f"last answer of a host: {_last_answer[1][-TAIL:]}")
    if CALLS and CALLS[-1].since >= start:
        lines.append(f"last command: {CALLS[-1].described()}\n{CALLS[-1].stdout[-TAIL:]}{CALLS[-1].stderr[-TAIL:]}")
    return scrubbed("\n".join(lines))
