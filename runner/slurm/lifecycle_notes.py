"""Notes of the operations on a whole instance, in `status_detail.lifecycle`: one class for each verb. Pure.

An instance has one such note, of the operation that is or was last under way. What the classes share, FORMAT included,
is in runner/model/instance_notes.py. The class method `upgrade` turns format 1, which version 1.0 wrote, into the
present one; it has nothing to do with the verb `upgrade`. NOTES has the class of each verb.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, TypeAdapter, ValidationError

from runner.model import limits
from runner.model.instance_notes import NOTE, OperationNote, read_note
from runner.model.member_notes import Result
from runner.model.plan import AdapterError
from runner.model.platform import AppInstance, Operation
from runner.model.records import (
    NEWER,
    UNREADABLE,
    Count,
    Detail,
    Id,
    NotedError,
    NoteProblem,
    RecordError,
    Text,
)
from runner.model.times import Time
from runner.slurm.notes import Conversion

PARTITIONS_BYTES = 3000
PartitionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$")]
PartitionState = Literal["UP", "DOWN", "DRAIN", "INACTIVE"]
# Partitions are sent to a controller, so a note holds only valid names and states.
Partitions = dict[PartitionName, PartitionState]
_PARTITIONS: TypeAdapter[Partitions] = TypeAdapter(Partitions)
HostName = Annotated[str, Field(max_length=100)]


def usable_partitions(found: object) -> Partitions:
    """Partitions with a name and a state that a controller accepts."""
    usable: Partitions = {}
    for name, state in found.items() if isinstance(found, Mapping) else ():
        try:
            usable |= _PARTITIONS.validate_python({name: state})
        except ValidationError:
            continue
    return usable


def notable_partitions(found: Mapping[str, str]) -> Partitions:
    """Partitions as a note keeps them: the first by name, as many as fit beside the rest of the record."""
    kept: Partitions = {}
    used = 0
    for name, state in sorted(usable_partitions(found).items()):
        used += limits.size({name: state})
        if used > PARTITIONS_BYTES:
            break
        kept[name] = state
    return kept


def noted_error(error: AdapterError) -> NotedError:
    return NotedError(code=error.code, message=limits.short(error.message))


class VerbNote(OperationNote):
    """Base of the records below."""

    @classmethod
    def begin(cls, operation: Operation, now: datetime, **fields: Any) -> Self:
        return cls.model_validate(
            {"operation_id": operation.id, "verb": operation.operation, "started_at": now, **fields}
        )


class _WithPartitions(VerbNote):
    # The state of each partition before the operation; None: not recorded yet.
    partitions: Partitions | None = None

    @classmethod
    def upgrade(cls, stored: Detail) -> Detail:
        """Version 1.0 kept every name that the controller gave and skipped the unusable ones when it read them."""
        found = super().upgrade(stored)
        return found | {"partitions": usable_partitions(found["partitions"])} if "partitions" in found else found


class StopNote(_WithPartitions):
    """`phase`: closing, waiting and stopping in this order; reopening undoes; the others are ends."""

    verb: Literal["stop"]
    phase: Literal["closing", "waiting", "stopping", "reopening", "open", "stopped", "failed"] = "closing"
    jobs: list[Text] = Field(default_factory=list)  # a sample of those that are waited for
    jobs_left: Count = 0
    jobs_end_by: Time | None = None
    # Written before jobs are ended, so that a killed run leaves a trace.
    announced_eviction: Text | None = None
    failure: NotedError | None = None  # why the partitions are opened again
    not_reached: dict[HostName, Text] = Field(default_factory=dict)  # a sample of workers whose slurmd was not stopped
    not_reached_count: Count = 0

    @classmethod
    def upgrade(cls, stored: Detail) -> Detail:
        """Version 1.0 wrote `did`, null for unknown values, and jobs as numbers."""
        found = {key: value for key, value in super().upgrade(stored).items() if value is not None}
        if "did" in found:
            found["announced_eviction"] = found.pop("did")
        if isinstance(found.get("jobs"), list):
            found["jobs"] = [str(job) if isinstance(job, int) else job for job in found["jobs"]]
        return found

    def operation_result(self) -> Detail:
        found = {
            "did": self.announced_eviction,
            "not_reached": self.not_reached,
            "not_reached_count": self.not_reached_count,
        }
        return {"partitions": self.partitions or {}} | {key: value for key, value in found.items() if value}


class StartNote(_WithPartitions):
    """`partitions` are those of the stop before it."""

    verb: Literal["start"]
    phase: Literal["starting", "running", "stopped"] = "starting"


class RestartNote(_WithPartitions):
    verb: Literal["restart"]
    phase: Literal["looking", "restarting", "restarted", "failed", "cancelled"] = "looking"
    # By the controller's clock: a daemon that started later has been restarted, and is left alone.
    after: Time | None = None
    # Workers that are not seen serving again yet; None: all of them, or too many to list.
    left: list[HostName] | None = None
    # Workers that did not serve before. A sample: each has `excused_by` in its own record. Version 1.0 listed all.
    excused: list[HostName] = Field(default_factory=list)
    excused_count: Count = 0
    missing: dict[HostName, Text] = Field(default_factory=dict)  # a sample of workers that did not return
    not_restarted: dict[HostName, Text] = Field(default_factory=dict)

    @classmethod
    def upgrade(cls, stored: Detail) -> Detail:
        found = super().upgrade(stored)
        return found | {"phase": "cancelled"} if found.get("phase") == "called off" else found

    def operation_result(self) -> Detail:
        shown = self.stored()
        named = ("after", "excused", "excused_count", "missing", "not_restarted")
        return {name: shown[name] for name in named if shown.get(name)}


class _WithSummary(VerbNote):
    summary: Detail = Field(default_factory=dict)  # what the operation ends with

    def operation_result(self) -> Detail:
        return self.summary


class UpgradeNote(_WithSummary):
    verb: Literal["upgrade", "rollback"]
    phase: Literal["started", "converting database", "done", "failed"] = "started"
    package_version_before: Text | None = None
    conversion: Conversion | None = None


class RotationNote(_WithSummary):
    """`phase`: while staging nothing has changed; once switching there is no way back; dropping undoes staging."""

    verb: Literal["rotate_credentials"]
    phase: Literal["staging", "switching", "dropping"] = "staging"
    # A sample of workers that the switch goes without: each has `rotation_left_out`. Version 1.0 listed all.
    left_out: dict[HostName, Text] = Field(default_factory=dict)
    left_out_count: Count = 0
    result_once_dropped: Result = "failed"

    @classmethod
    def upgrade(cls, stored: Detail) -> Detail:
        """Version 1.0 had `without`, and the operation's result beside its verdict."""
        former = dict(stored)
        summary = former.pop("result", None)
        found = super().upgrade(former)
        names = (("without", "left_out"), ("verdict_then", "result_once_dropped"), ("waits_for", "waiting"))
        for old, name in names:
            if found.get(old) is not None:
                found[name] = found.pop(old)
        return found if summary is None else found | {"summary": summary}


class DecommissionNote(VerbNote):
    """`operation_id` is that of the first decommission, or the instance's own id; docs/concepts/instances.md."""

    verb: Literal["decommission"]
    phase: Literal[
        "begun",
        "draining",
        "cleaning workers",
        "cleaning the controller",
        "waiting for jobs",
        "waiting for the next look",
        "waiting for hosts",
        "secrets",
        "failed",
        "done",
    ] = "begun"
    # The operation whose parameters apply, and since when: its deadline counts from there.
    terms_of: Id
    terms_since: Time
    keep_logs: StrictBool = False
    controller_silent_since: Time | None = None
    secrets_forgotten: StrictBool = False


class RetryNote(VerbNote):
    verb: Literal["retry"]
    phase: Literal["retrying", "deployed"] = "retrying"


NOTES: Mapping[str, type[VerbNote]] = {
    "stop": StopNote,
    "start": StartNote,
    "restart": RestartNote,
    "upgrade": UpgradeNote,
    "rollback": UpgradeNote,
    "rotate_credentials": RotationNote,
    "decommission": DecommissionNote,
    "retry": RetryNote,
}


def _read(instance: AppInstance) -> OperationNote | NoteProblem | None:
    """Read twice: first what every verb has, then by the class of its verb."""
    stored = instance.notes.lifecycle
    note = read_note(stored)
    if not isinstance(note, OperationNote):
        return note
    kind = NOTES.get(note.verb)
    if kind:
        return read_note(stored, kind)
    if not note.is_under_way:
        return note  # it ended, and nothing depends on it
    return NoteProblem(NOTE, NEWER, f"{NOTE}.verb {note.verb!r} is not a verb of this runner: use the newer runner")


def problem(instance: AppInstance, operations: Iterable[Operation]) -> NoteProblem | None:
    """Why the note cannot be used; None if it can, or if there is none."""
    note = _read(instance)
    if not isinstance(note, OperationNote):
        return note
    other = next((one for one in operations if one.id == note.operation_id and one.operation != note.verb), None)
    if other is None:
        return None
    return NoteProblem(NOTE, UNREADABLE, f"{NOTE}.verb is {note.verb!r}, but the operation is {other.operation!r}")


def of_instance(instance: AppInstance) -> OperationNote | None:
    """The note of the operation that is or was last under way. A guard holds the instance back if it is unreadable."""
    note = _read(instance)
    if isinstance(note, NoteProblem):
        raise RecordError(note)
    return note
