"""The time by which leases are judged: the platform's if it sends one, whatever else its answers hold."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from runner.platform.clock import Clock

MOMENT = timedelta(seconds=2)


@pytest.mark.parametrize("off", [timedelta(hours=1), timedelta(hours=-1), timedelta(seconds=30)])
def test_the_platforms_time_is_followed(off: timedelta) -> None:
    clock, theirs = Clock(), datetime.now(UTC) + off
    clock.follow(format_datetime(theirs, usegmt=True))
    assert abs(clock.now() - theirs) < MOMENT


@pytest.mark.parametrize(
    "date",
    [
        None,
        "",
        "soon",
        "Mon, 99 Foo 2026 10:00:00 GMT",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Mon, 16 Nov 2020 10:00:00 -0000",
    ],
)
def test_an_invalid_date_changes_nothing(date: str | None) -> None:
    clock = Clock()
    clock.follow(date)
    assert abs(clock.now() - datetime.now(UTC)) < MOMENT


def test_a_date_in_whole_seconds_does_not_set_the_clock_back() -> None:
    clock = Clock()
    before = clock.now()
    clock.follow(format_datetime(datetime.now(UTC) - timedelta(seconds=1), usegmt=True))
    assert clock.now() > before
