"""The current time by the platform's clock, because other machines read leases and due times too."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from runner import log

# An answer's Date is in whole seconds, and is a little old when it is read.
TOLERANCE = timedelta(seconds=5)
_YEARS = range(2000, 2200)


class Clock:
    """Counts monotonic seconds from a reference time, so that setting this machine's clock has no effect.

    A client and all its clones share one clock.
    """

    def __init__(self) -> None:
        self._reference = datetime.now(UTC), time.monotonic()

    def now(self) -> datetime:
        time_then, seconds_then = self._reference
        return time_then + timedelta(seconds=time.monotonic() - seconds_then)

    def follow(self, date: str | None) -> None:
        """Adopt the Date header of an answer that just arrived, if it is valid and differs too much."""
        try:
            platform_time = parsedate_to_datetime(date or "")
            ahead = (self.now() - platform_time).total_seconds()
        except (TypeError, ValueError):
            return
        if abs(ahead) <= TOLERANCE.total_seconds() or platform_time.year not in _YEARS:
            return
        self._reference = platform_time.astimezone(UTC), time.monotonic()
        log.get().warning(
            "clock differs from the platform's, which is used: check the time service of both machines",
            seconds_ahead=round(ahead),
        )
