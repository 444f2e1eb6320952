"""What the runner keeps in an instance's `status_detail`: observations, and the note of its last operation. Pure.

Observations are written again at every look, so one that cannot be read counts as not made. The note decides what is
done next, so it is read strictly: see runner/model/records.py. Each verb of the app adds fields to the note.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field

from runner.model.member_notes import Result
from runner.model.records import (
    MAX_DEPTH,
    Attempts,
    Count,
    Detail,
    Fact,
    Id,
    NotedError,
    NoteProblem,
    Notes,
    Record,
    RecordError,
    Text,
    Time,
    is_deeper,
)

NOTE = "lifecycle"
SHOWN_CHARS = 1000
# A sentence for people: one that is too long is cut, and never makes the record unwritable.
Shown = Annotated[str, AfterValidator(lambda text: text[:SHOWN_CHARS])]


class OperationNote(Record):
    """Progress of an operation on the whole instance, under `lifecycle`. Without a result it is under way."""

    FORMAT: ClassVar[int] = 2

    operation_id: Id
    verb: Annotated[str, Field(min_length=1, max_length=64)]
    started_at: Time
    result: Result | None = None
    phase: Text | None = None
    waiting: Shown | None = None  # what for
    error: NotedError | None = None  # why it failed
    attempts: Attempts = Attempts()

    @property
    def is_under_way(self) -> bool:
        return self.result is None

    def belongs_to(self, operation_id: UUID) -> bool:
        return self.operation_id == operation_id

    def operation_result(self) -> Detail:
        """What the operation ends with, as far as the note has it."""
        return {}

    @classmethod
    def upgrade(cls, stored: Detail) -> Detail:
        """Format 1, up to version 1.0, had since and verdict, and two spellings of attempts.

        Some verbs counted `attempts`, others `attempt` with the time in `tried_at`; `last_error` was an object with a
        code or a sentence that begins with it.
        """
        found = {key: value for key, value in stored.items() if key not in _FORMER_ATTEMPTS}
        for former, name in (("since", "started_at"), ("verdict", "result")):
            if former in found:
                found[name] = found.pop(former)
        last = stored.get("last_error")
        error = last if isinstance(last, Mapping) else {"code": last.partition(":")[0]} if isinstance(last, str) else {}
        count = stored.get("attempts") if stored.get("attempts") is not None else stored.get("attempt")
        found["attempts"] = {
            "count": 0 if count is None else count,
            "next_at": stored.get("next_attempt_at"),
            "last_at": stored.get("tried_at") or error.get("at"),
            "last_error": error.get("code"),
        }
        return found


_FORMER_ATTEMPTS = ("attempt", "attempts", "tried_at", "next_attempt_at", "last_error")


def read_note(stored: object, kind: type[OperationNote] = OperationNote) -> OperationNote | NoteProblem | None:
    """The note, what is wrong with it, or None if there is none."""
    if stored is None:
        return None
    try:
        return kind.read(NOTE, stored)
    except RecordError as error:
        return error.problem


def _objects(value: Any) -> Any:
    """Reasons are read one by one: a bad one does not hide the others."""
    if not isinstance(value, list):
        return value
    return [one for one in value if isinstance(one, dict) and not is_deeper(one, MAX_DEPTH)]


class StatusDetail(Notes):
    """`status_detail`. Fields of other versions stay as they are at every write."""

    FORMER: ClassVar[Mapping[str, str]] = {"wish": "config_digest"}

    observed_at: Fact[Time] = None
    config_version: Fact[Text] = None
    versions: Fact[dict[str, Text | list[Text] | None]] = None
    reasons: Annotated[Fact[list[Detail]], BeforeValidator(_objects)] = None
    workers: Fact[dict[str, Count]] = None  # how many, by status
    # Whether a later tick has to read everything: a member or an operation is half way.
    unsettled: Annotated[bool, BeforeValidator(bool)] = False
    # The configuration that went live last, or was refused.
    config_digest: Fact[Text] = None
    lifecycle: Any = None  # as it is stored; `operation` reads it

    @property
    def operation(self) -> OperationNote | None:
        """The operation that is or was last under way, as far as it can be read without the app."""
        note = read_note(self.lifecycle)
        return note if isinstance(note, OperationNote) else None

    @property
    def has_bad_note(self) -> bool:
        return isinstance(read_note(self.lifecycle), NoteProblem)

    @property
    def needs_everything(self) -> bool:
        """Whether a tick has to read the members, though no operation is open."""
        return self.unsettled or self.has_bad_note

    @property
    def is_under_way(self) -> bool:
        """Whether an operation on the instance is under way, or may be."""
        note = read_note(self.lifecycle)
        return note.is_under_way if isinstance(note, OperationNote) else note is not None
