"""What time it is. Leases and due times are read by other machines too, so the platform's clock counts, not ours."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from runner import log

# An answer's Date is in whole seconds, and is a little old when it is read.
TOLERANCE = timedelta(seconds=5)
_YEARS = range(2000, 2200)


class Clock:
    """Goes on evenly from one look at our own clock, whatever that is set to later, and follows the platform's.

    One for a client and all its clones.
    """

    def __init__(self) -> None:
        self._seen = datetime.now(UTC), time.monotonic()

    def now(self) -> datetime:
        then, ticks = self._seen
        return then + timedelta(seconds=time.monotonic() - ticks)

    def heard(self, date: str | None) -> None:
        """The Date of an answer that came just now; one that is none changes nothing."""
        try:
            platform_time = parsedate_to_datetime(date or "")
            off = (self.now() - platform_time).total_seconds()
        except (TypeError, ValueError):
            return
        if abs(off) <= TOLERANCE.total_seconds() or platform_time.year not in _YEARS:
            return
        self._seen = platform_time.astimezone(UTC), time.monotonic()
        log.get().warning(
            "this machine's clock is not the platform's, which is used: put the time service right on one of them",
            seconds_ahead=round(off),
        )
