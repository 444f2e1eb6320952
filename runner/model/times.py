"""Times in records: with a zone, to the second, in years that can be calculated with. Pure."""

from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

# Times outside of these years cannot be compared and added to safely.
YEARS = range(2000, 2200)


def stamp(at: datetime) -> str:
    return at.isoformat(timespec="seconds").replace("+00:00", "Z")


def read_time(value: object) -> datetime | None:
    """A time with its zone, in usable years; None for anything else."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time and time.tzinfo and time.year in YEARS else None


def _usable(value: object) -> datetime:
    time = read_time(stamp(value) if isinstance(value, datetime) else value)
    if time is None:
        raise ValueError("a time has a date, a time of day and a zone, in a year from 2000 to 2199")
    return time


Time = Annotated[datetime, BeforeValidator(_usable), PlainSerializer(stamp, return_type=str)]
