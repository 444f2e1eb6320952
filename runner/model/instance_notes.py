"""What the runner keeps in an instance's `status_detail`: observations, and the note of its last operation. Pure.

Observations are written again at every look, so one that cannot be read counts as not made. The note decides what is
done next, so it is read strictly: see runner/model/records.py. Each verb of the app adds fields to the note.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from runner.model.member_notes import Result
from runner.model.records import (
    Attempts,
    Detail,
    Fact,
    Id,
    Klass,
    NotedError,
    NoteProblem,
    Notes,
    Observation,
    Record,
    RecordError,
    Text,
)
from runner.model.times import Time
from runner.model.work_notes import BY_HAND, HandNotes, PlayHistory

NOTE = "lifecycle"
# Kept at every write, whatever becomes of the instance.
OWN_PLAYS = "own_plays"
FOR_PEOPLE = frozenset({OWN_PLAYS, BY_HAND})
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


class Reason(Observation):
    """One entry of `reasons`: why the instance has its status and health. docs/usage/health.md has the fields."""

    code: str
    message: str = ""
    klass: Klass = None
    health: str | None = None
    member_id: str | None = None
    host: str | None = None
    kind: str | None = None  # of a record that cannot be read
    id: str | None = None
    repair: Detail | None = None  # what was tried against it

    def with_fields(self, **fields: object) -> Self:
        """`but` would make every field one that was set, and so one that is stored."""
        return self.model_copy(update=fields)


def _one_by_one(value: Any, info: ValidationInfo) -> Any:
    """Stored reasons are read one by one: a bad one does not hide the others."""
    return value if info.context is None or not isinstance(value, list) else [*_readable_reasons(value)]


def _readable_reasons(stored: Iterable[object]) -> Iterator[Reason]:
    for one in stored:
        with contextlib.suppress(RecordError):
            yield Reason.read("reasons", one)


class StatusDetail(Notes):
    """`status_detail`. Fields of other versions stay as they are at every write."""

    FORMER: ClassVar[Mapping[str, str]] = {"wish": "config_digest"}

    observed_at: Fact[Time] = None
    config_version: Fact[Text] = None
    reasons: Annotated[Fact[list[Reason]], BeforeValidator(_one_by_one)] = None
    # Whether a later tick has to read everything: a member or an operation is half way.
    unsettled: Annotated[bool, BeforeValidator(bool)] = False
    # The configuration that went live last, or was refused.
    config_digest: Fact[Text] = None
    lifecycle: Any = None  # as it is stored; `operation` reads it
    # For people; nothing is decided by them: plays that no operation asked for, and commands of persons.
    own_plays: Any = None  # read by `plays`
    by_hand: Any = None  # read by `hand_notes`

    @property
    def operation(self) -> OperationNote | None:
        """The operation that is or was last under way, as far as it can be read without the app."""
        note = read_note(self.lifecycle)
        return note if isinstance(note, OperationNote) else None

    @property
    def plays(self) -> PlayHistory:
        """The plays that no operation asked for. Those that cannot be read are not shown."""
        try:
            return PlayHistory.read("own_plays", self.own_plays or {})
        except RecordError:
            return PlayHistory()

    @property
    def hand_notes(self) -> HandNotes:
        """Work by hand, as far as it can be read."""
        return HandNotes.of({} if self.by_hand is None else self.by_hand)[0]

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
