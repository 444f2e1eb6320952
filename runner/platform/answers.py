"""Reads the platform's answers strictly, and says how long to wait before a retry."""

import json
import math
import random
import re
from collections.abc import Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, ValidationError

from runner.intent.errors import first_problem
from runner.model.errors import PlatformError, Unavailable
from runner.model.platform import PlatformRecord, Unreadable

# A delay that is longer than any patience.
NEVER = 1e9
T = TypeVar("T", bound=PlatformRecord)
M = TypeVar("M", bound=BaseModel)


class Listing(list[T], Generic[T]):
    """The readable records of a list; it is complete only if `unreadable` is empty."""

    def __init__(self, records: Iterable[T] = ()) -> None:
        super().__init__(records)
        self.unreadable: list[Unreadable] = []


def parse(content: bytes) -> dict[str, Any] | list[Any] | None:
    """A JSON object or list; None for anything else."""
    try:
        body = json.loads(content, parse_constant=_reject_constant)
        if _SURROGATE.search(content):
            # A lone surrogate cannot be encoded again, so it becomes a question mark.
            body = json.loads(json.dumps(body, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict | list) else None


def _reject_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read(method: str, path: str, model: type[M], body: Any) -> M:
    """The body as a model. The error does not quote the body: it may hold a token."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        problem = f"{method} {path}: the answer is not a {model.__name__}: {first_problem(error)}"
        raise Unavailable(problem, code="bad_answer") from None


def differs(record: PlatformRecord, name: str, expected: UUID) -> bool:
    return getattr(record, name, None) not in (None, expected)


def id_of(item: Any) -> str | None:
    """The id of an unreadable record. It is shown to people, so it must look like an id."""
    given = item.get("id") if isinstance(item, dict) else None
    return given if isinstance(given, str) and _ID.fullmatch(given) else None


def text_of(item: Any, name: str) -> str | None:
    """A text field of an unreadable record, for comparison only."""
    given = item.get(name) if isinstance(item, dict) else None
    return given if isinstance(given, str) else None


def retry_delay(attempt: int, error: PlatformError, now: datetime) -> float:
    """Seconds before the next attempt: the platform's Retry-After, else exponential with full jitter."""
    retry_after = error.context.get("retry_after")
    if retry_after:
        try:
            seconds = float(retry_after)
            return max(seconds, 0.0) if math.isfinite(seconds) else NEVER
        except ValueError:
            try:
                return max((parsedate_to_datetime(retry_after) - now).total_seconds(), 0.0)
            except (TypeError, ValueError):
                pass
    return random.uniform(0.1, min(0.25 * 2**attempt, 5.0))  # noqa: S311 - jitter, not a secret
