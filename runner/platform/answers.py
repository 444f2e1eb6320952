"""Answers of the platform as data: parsed strictly, listed with what could not be read, and when to ask again."""

import json as json_module
import math
import random
import re
from collections.abc import Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, ValidationError

from runner.model.errors import PlatformError, Unavailable
from runner.model.platform import Unreadable, _Object

# A pause that outlasts all patience.
NEVER = 1e9
T = TypeVar("T", bound=_Object)
M = TypeVar("M", bound=BaseModel)


class Listing(list[T], Generic[T]):
    """The records of a list that can be used, and those that cannot: the list is complete only without the latter."""

    def __init__(self, records: Iterable[T] = ()) -> None:
        super().__init__(records)
        self.unreadable: list[Unreadable] = []


def parse(content: bytes) -> dict[str, Any] | list[Any] | None:
    """An object or a list of plain JSON; None for anything else."""
    try:
        body = json_module.loads(content, parse_constant=_no_number)
        if _HALF_CHARACTER.search(content):
            # Half a character cannot be written or shown again: it becomes a question mark.
            body = json_module.loads(json_module.dumps(body, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict | list) else None


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")


def read(method: str, path: str, model: type[M], body: Any) -> M:
    """The answer as what it should be. Errors do not quote it: it may hold a token."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        problem = f"{method} {path}: the answer is not a {model.__name__}: {first_problem(error)}"
        raise Unavailable(problem, code="bad_answer") from None


def differs(record: _Object, name: str, expected: UUID) -> bool:
    return getattr(record, name, None) not in (None, expected)


def id_of(item: Any) -> str | None:
    """The id of a record that cannot be read otherwise. It is shown to people, so it must look like an id."""
    given = item.get("id") if isinstance(item, dict) else None
    return given if isinstance(given, str) and _ID.fullmatch(given) else None


def text_of(item: Any, name: str) -> str | None:
    """A field of a record that cannot be read otherwise, to compare and not to show."""
    given = item.get(name) if isinstance(item, dict) else None
    return given if isinstance(given, str) else None


def pause_before(attempt: int, error: PlatformError, now: datetime) -> float:
    """Exponential with full jitter, or what the platform asked for."""
    asked = error.context.get("retry_after")
    if asked:
        try:
            seconds = float(asked)
            return max(seconds, 0.0) if math.isfinite(seconds) else NEVER
        except ValueError:
            try:
                return max((parsedate_to_datetime(asked) - now).total_seconds(), 0.0)
            except (TypeError, ValueError):
                pass
    return random.uniform(0.1, min(0.25 * 2**attempt, 5.0))  # noqa: S311 - jitter, not a secret


def first_problem(error: ValidationError) -> str:
    problem = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"
