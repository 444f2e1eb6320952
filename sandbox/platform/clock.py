"""Times in the API's format: UTC, ISO 8601, with a Z."""

from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def stamp(moment: datetime | None = None) -> str:
    """Always with microseconds, so that stamps sort as text in the order of time."""
    return (moment or now()).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse(text: str) -> datetime:
    """Read an RFC 3339 time; raises ValueError for anything else."""
    moment = datetime.fromisoformat(text.upper().replace(" ", "T"))
    if moment.tzinfo is None:
        raise ValueError("the time has no zone")
    return moment.astimezone(UTC)
