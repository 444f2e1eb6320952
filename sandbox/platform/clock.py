"""Time as the API writes it: UTC, ISO 8601, with a Z."""

from datetime import UTC, datetime


def now() -> datetime:
    return datetime.now(UTC)


def stamp(moment: datetime | None = None) -> str:
    """Microseconds always, so that two stamps compare as text the way they compare in time."""
    return (moment or now()).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse(text: str) -> datetime:
    """Read an RFC 3339 time; raises ValueError for anything else."""
    moment = datetime.fromisoformat(text.upper().replace(" ", "T"))
    if moment.tzinfo is None:
        raise ValueError("a time needs its zone")
    return moment.astimezone(UTC)
