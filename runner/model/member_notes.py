"""What every app keeps in a member's `adapter_detail`. An app adds its own notes in a subclass. Pure."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, StrictBool, ValidationInfo

from runner.model.records import (
    NEWER,
    Attempts,
    CorrelationId,
    Count,
    Deciding,
    Detail,
    Fact,
    Id,
    NotedError,
    Notes,
    Record,
    RecordError,
    Text,
    note,
)
from runner.model.times import Time
from runner.model.trace import TraceId

Result = Literal["done", "failed", "cancelled"]
FENCE = "fence"


class Leave(Record):
    """`leave`: which operation takes the member out, and how that ended. An app has more in it."""

    FORMAT = 2

    operation_id: Id
    result: Result | None = None

    @classmethod
    def upgrade(cls, stored: Detail) -> Detail:
        """Format 1 (version 1.0) has the result as `verdict`."""
        return {"result" if key == "verdict" else key: value for key, value in stored.items()}

    @property
    def is_under_way(self) -> bool:
        return self.result is None


class Stopped(Record):
    """`stopped`: the member was taken down with its instance, and is to return to this status and phase."""

    was: Text
    phase: Text | None = None


class PinnedKeys(Record):
    """`host_keys_pinned`: the ssh keys that the host showed before anything was run on it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    keys: Annotated[list[str], Field(min_length=1, max_length=5)]
    at: Annotated[str, Field(max_length=64)]
    address: Annotated[str, Field(max_length=253)]


class ChangedKey(Record):
    """`host_key_changed`: the host did not show the key with this fingerprint."""

    expected: Text
    at: Text


def _as_stored(record: type[Record]) -> BeforeValidator:
    """A note whose own reader judges it. Only a newer format is a problem of the member, as with every note."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if info.context is not None:
            try:
                record.read(str(info.field_name), value)
            except RecordError as error:
                if error.problem.code == NEWER:
                    info.context.append(error.problem)
        return value

    return BeforeValidator(check)


class MemberNotes(Notes):
    phase: Deciding[Text] = None
    operation_id: Deciding[Id] = None  # the operation that made the member
    # The start and the retry that work on the member, and the restart that does not wait for it.
    started_by: Deciding[Id] = None
    retried_by: Deciding[Id] = None
    excused_by: Deciding[Id] = None
    last_adapter_error: Fact[NotedError] = None
    attempt: Deciding[Count] = None  # how often its bootstrap failed
    next_attempt_at: Deciding[Time] = None
    claimed_by: Deciding[Text] = None
    lease_expires_at: Deciding[Time] = None
    fence: Deciding[Count] = None  # of its last claim: runner/model/claims.py
    # Of the work that is or was last done on the member; a look is not work. The trace is null if it has none.
    correlation_id: Fact[CorrelationId] = None
    trace_id: TraceId = None
    host_touched: Deciding[StrictBool] = None  # a play has changed its host
    host_cleaned: Deciding[StrictBool] = None  # and nothing of ours is left there
    stopped: Annotated[Stopped | None, note(Stopped)] = None
    leave: Annotated[Leave | None, note(Leave)] = None
    # Read by runner/intent/host_keys.py, which has codes of its own for what is wrong with them.
    host_keys_pinned: Annotated[Any, _as_stored(PinnedKeys)] = None
    host_key_changed: Annotated[Any, _as_stored(ChangedKey)] = None

    @property
    def attempts(self) -> Attempts:
        """How often the member's bootstrap failed, and when it is due again."""
        return Attempts(count=self.attempt or 0, next_at=self.next_attempt_at)

    @classmethod
    def tried(cls, attempts: Attempts) -> Self:
        """Notes with the two documented fields that keep these attempts."""
        return cls(attempt=attempts.count, next_attempt_at=attempts.next_at)

    @property
    def error_code(self) -> str | None:
        return self.last_adapter_error.code if self.last_adapter_error else None

    @property
    def pinned_keys(self) -> PinnedKeys | None:
        """RecordError if there are some and they cannot be read."""
        found = self.host_keys_pinned
        return None if found is None else PinnedKeys.read("host_keys_pinned", found)

    @property
    def changed_key(self) -> ChangedKey | None:
        """RecordError if there is one and it cannot be read."""
        found = self.host_key_changed
        return None if found is None else ChangedKey.read("host_key_changed", found)

    def is_unreadable(self, name: str) -> bool:
        return any(problem.name == name for problem in self.problems)
