"""Records that the runner keeps on the platform, inside `adapter_detail` and `status_detail`: typed, with a version.

The rule across versions of the runner: a newer runner reads what an older one wrote (`upgrade`); an older runner
leaves a record of a newer format alone and reports `note_newer`. A record that does not validate is `note_unreadable`.
In both cases nothing that depends on the record is decided. Fields that this version does not know are kept when the
record is written again.

`Record` is one note. `Notes` is all that one object of the platform keeps: notes, and fields beside them.
CONTRIBUTING.md says how to add a field.

The validators of `Notes` behave in two ways. While stored values are read, pydantic's context is a list of problems: a
bad value becomes None, and a problem is added if the value decides something. Without a context our own code makes the
notes, and a wrong value raises.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar
from uuid import UUID

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    StrictInt,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from runner.model.host_data import printable
from runner.model.times import Time, stamp

Detail = dict[str, Any]
ErrorClass = Literal["retryable", "drift", "repairable", "intervention"]

UNREADABLE: Final = "note_unreadable"
NEWER: Final = "note_newer"
TEXT_CHARS = 4000
PROBLEM_BYTES = 300
# Deeper than any record of ours, and shallow enough for every reader of JSON.
MAX_DEPTH = 20
# A pause is doubled at most this often.
MAX_DOUBLINGS = 5

Text = Annotated[str, Field(max_length=TEXT_CHARS)]
Id = Annotated[UUID, PlainSerializer(str, return_type=str)]
# It travels into headers, logs and Ansible variables, so it may not be anything but an id.
CorrelationId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$")]
Count = Annotated[StrictInt, Field(ge=0, le=2**40)]


@dataclass(frozen=True)
class NoteProblem:
    """A record that exists but cannot be used, as an operator sees it."""

    name: str
    code: Literal["note_unreadable", "note_newer"]
    message: str


class RecordError(Exception):
    """Raised by Record.read."""

    def __init__(self, problem: NoteProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class Record(BaseModel):
    """Base of every record.

    FORMAT counts up when an older runner could misread what a newer one writes. A record of format 1 has no field
    `format`: version 1.0 had none.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    FORMAT: ClassVar[int] = 1

    @classmethod
    def upgrade(cls, stored: Detail) -> Detail:
        """A stored record of an older format, in the form of this one. Not related to the verb `upgrade`."""
        return stored

    @classmethod
    def read(cls, name: str, stored: object) -> Self:
        """The record under this name; RecordError if it is not one, or is of a newer format."""
        if not isinstance(stored, Mapping):
            raise RecordError(NoteProblem(name, UNREADABLE, f"{name} is not an object"))
        if not is_plain(stored):
            raise RecordError(
                NoteProblem(name, UNREADABLE, f"{name} is nested too deeply, or has text that is not UTF-8")
            )
        found = {key: value for key, value in stored.items() if key != "format"}
        version = stored.get("format", 1)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise RecordError(NoteProblem(name, UNREADABLE, f"{name}.format is not a version number"))
        if version > cls.FORMAT:
            message = f"{name} has format {version}, this runner reads up to {cls.FORMAT}: use the newer runner"
            raise RecordError(NoteProblem(name, NEWER, message))
        try:
            return cls.model_validate(cls._once(cls.upgrade(found) if version < cls.FORMAT else found))
        except ValidationError as error:
            raise RecordError(_problem(name, error)) from None

    @classmethod
    def _once(cls, found: Detail) -> Detail:
        """Without a key that has the name of a field whose stored name is there too: it would count as both."""
        aliases = {name: field.validation_alias for name, field in cls.model_fields.items()}
        choices = {name: one.choices for name, one in aliases.items() if isinstance(one, AliasChoices)}
        doubled = {name for name, names in choices.items() if any(one != name and one in found for one in names)}
        return {key: value for key, value in found.items() if key not in doubled}

    def stored(self) -> Detail:
        """The record as it is written: JSON, without fields that have no value."""
        made = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {"format": self.FORMAT, **made} if self.FORMAT > 1 else made

    def but(self, **changes: object) -> Self:
        """The record with these fields changed, checked like one that was read."""
        return type(self).model_validate({**self.model_dump(by_alias=False), **changes})


class Observation(Record):
    """A record that is only shown. It is stored as it was made: null where a value is not known."""

    def stored(self) -> Detail:
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


# `class` is a word of Python, so the field has another name than in storage.
Klass = Annotated[
    ErrorClass | None, Field(validation_alias=AliasChoices("class", "klass"), serialization_alias="class")
]


class NotedError(Record):
    """`last_adapter_error` of a member: the documented fields, without a format of its own."""

    code: Text
    message: Text = ""
    klass: Klass = None
    host: Text | None = None
    task: Text | None = None
    at: Time | None = None
    instance: Id | None = None

    def stored(self) -> Detail:
        """Every documented field, null where it has no value."""
        return {"host": None, "task": None, **super().stored()}


class Attempts(Record):
    """Progress of repeated work: the one record for how often it failed, when it is due again, and why."""

    count: Count = 0
    next_at: Time | None = None
    last_at: Time | None = None
    last_error: Text | None = None  # a code

    def not_due(self, now: datetime) -> str | None:
        """Why the next attempt does not begin yet; None if it may."""
        return f"the next attempt is due at {stamp(self.next_at)}" if self.next_at and self.next_at > now else None

    def is_counted(self, now: datetime) -> bool:
        """Whether a failure of this tick is counted already."""
        return self.last_at is not None and stamp(self.last_at) == stamp(now)

    def is_spent(self, limit: int) -> bool:
        return self.count >= limit

    def failed(self, now: datetime, code: str, pause_seconds: int = 0) -> Self:
        """One more failure: the next attempt is due after a pause that doubles with each; without one, at once."""
        return self.but(
            count=self.count + 1, next_at=now + pause(pause_seconds, self.count + 1), last_at=now, last_error=code
        )


T = TypeVar("T")


def _fact(value: Any, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """None (unknown) if a stored value is of another type: the next look at the host writes it again."""
    try:
        return read(value)
    except ValidationError:
        if info.context is None:
            raise
        return None


def _deciding(value: Any, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    """None and a problem, if a stored value cannot be read."""
    try:
        return read(value)
    except ValidationError as error:
        if info.context is None:
            raise
        info.context.append(_problem(str(info.field_name), error))
        return None


def note(record: type[Record]) -> WrapValidator:
    """A field that holds a record: `Annotated[TheRecord | None, note(TheRecord)] = None`. It decides something."""

    def read_record(value: Any, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        if info.context is None:
            return read(value)
        try:
            return record.read(str(info.field_name), value)
        except RecordError as error:
            info.context.append(error.problem)
            return None

    return WrapValidator(read_record)


# Fields of `Notes`. Fact: only shown, and unknown if it cannot be read. Deciding: a decision depends on it, so one that
# cannot be read is a problem.
Fact = Annotated[T | None, WrapValidator(_fact)]
Deciding = Annotated[T | None, WrapValidator(_deciding)]


class Notes(BaseModel):
    """All that the runner keeps in one `adapter_detail` or `status_detail`. Null counts as absent.

    It is read field by field, so that one bad value does not hide the others, and written by the same class:
    `MemberNotes(phase="serving").changes` is what a write of this one field takes.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")
    # Names that an earlier version used, and what they are called now.
    FORMER: ClassVar[Mapping[str, str]] = {}
    _problems: tuple[NoteProblem, ...] = PrivateAttr(())

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Any object is read: what is wrong with it is in `problems`."""
        renamed, problems = cls.renamed(stored), list[NoteProblem]()
        present = {name: found for name in cls.model_fields if (found := renamed.get(name)) is not None}
        notes = cls.model_validate(present, context=problems)
        notes._problems = tuple(problems)
        return notes

    @classmethod
    def renamed(cls, stored: Mapping[str, Any]) -> Detail:
        """The same object, with fields of an earlier version under their present names."""
        moved = {new: stored[old] for old, new in cls.FORMER.items() if old in stored and new not in stored}
        return {key: value for key, value in stored.items() if key not in cls.FORMER} | moved

    @property
    def problems(self) -> tuple[NoteProblem, ...]:
        """What decides something and cannot be read."""
        return self._problems

    @property
    def changes(self) -> Detail:
        """The fields that were set, as they are written."""
        return self.stored_fields(self.model_fields_set)

    def stored_fields(self, names: Collection[str]) -> Detail:
        """Those of these fields that were set, as they are written."""
        made = self.model_dump(mode="json", include=self.model_fields_set.intersection(names))
        return {name: _stored(getattr(self, name), value) for name, value in made.items()}


def _stored(value: object, dumped: object) -> object:
    """A record, or each record of a list, in its own form; anything else as it was dumped."""
    if isinstance(value, Record):
        return value.stored()
    if isinstance(value, list) and value and isinstance(value[0], Record):
        return [one.stored() for one in value]
    return dumped


def pause(seconds: int, count: int) -> timedelta:
    """How long to wait after this many failures in a row: the one formula for back-off."""
    return timedelta(seconds=seconds * 2 ** min(max(count - 1, 0), MAX_DOUBLINGS))


def _problem(name: str, error: ValidationError) -> NoteProblem:
    problem = error.errors(include_input=False, include_url=False)[0]
    where = ".".join([name, *(str(part) for part in problem["loc"])])
    return NoteProblem(name, UNREADABLE, printable(f"{where}: {problem['msg']}", PROBLEM_BYTES))


def is_plain(value: object, depth: int = MAX_DEPTH) -> bool:
    """Whether it can be written again as it is."""
    if isinstance(value, str):
        return value.isascii() or value.isprintable() or not any("\ud800" <= one <= "\udfff" for one in value)
    if isinstance(value, Mapping):
        return depth > 0 and all(is_plain(key) and is_plain(one, depth - 1) for key, one in value.items())
    return not isinstance(value, list) or (depth > 0 and all(is_plain(one, depth - 1) for one in value))
