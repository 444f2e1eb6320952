"""One instance as the platform shows it, and what this tick found out and did. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Generic, Self
from uuid import NAMESPACE_OID, UUID, uuid5

from typing_extensions import TypeVar

from runner.model import claims
from runner.model.attached import AttachedProject
from runner.model.components import Components
from runner.model.entitlements import Entitlements
from runner.model.member_notes import MemberNotes
from runner.model.neighbours import Neighbours
from runner.model.plan import (
    Act,
    AdapterError,
    Claim,
    Detail,
    Finish,
    ForgetSecrets,
    NewMember,
    NewOperation,
    Pin,
    Play,
    Refuse,
    Resolve,
    SetAttachment,
    SetInstance,
    SetMember,
    SkipPlay,
    Step,
)
from runner.model.platform import (
    NOT_FOUND,
    Allocation,
    AppInstance,
    Member,
    MemberStatus,
    Operation,
    OperationStatus,
    PlatformRecord,
    Resolution,
    Unreadable,
)

# What a look at the app's runtime brings back; each app has its own.
SnapshotT = TypeVar("SnapshotT", default=Any)
# The class of its own settings.
SettingsT = TypeVar("SettingsT", default=Any)
# Lease of a claim that is only planned.
LEASE = timedelta(minutes=2)


@dataclass(frozen=True)
class Outcome:
    """The result of a play for one member: its last phase and detail, and the error if there was one."""

    phase: str | None = None
    detail: Detail = field(default_factory=dict)
    error: AdapterError | None = None


@dataclass(frozen=True)
class Policy(Generic[SettingsT]):
    """The values that decide needs, so that it needs no settings."""

    max_attempts: int = 3
    retry_seconds: int = 30
    observe_seconds: int = 45
    repair: bool = True
    min_free_mb: int = 1024
    # Types of events that are posted though the platform has not stated them: see runner/model/events.py.
    assumed_events: frozenset[str] = frozenset()
    # The version of the app that this program is; None: not known.
    adapter_version: str | None = None
    # The app's own settings; None: their defaults.
    app: SettingsT | None = None


@dataclass(frozen=True)
class World(Generic[SnapshotT, SettingsT]):
    instance: AppInstance
    now: datetime
    runner_id: str
    members: tuple[Member, ...] = ()
    operations: tuple[Operation, ...] = ()
    instance_operations: tuple[Operation, ...] = ()
    allocations: Mapping[UUID, Allocation] = field(default_factory=lambda: MappingProxyType({}))
    snapshot: SnapshotT | None = None
    # From this tick's latest play: one entry for each member it reached. Empty before the first.
    outcomes: Mapping[UUID, Outcome] = field(default_factory=lambda: MappingProxyType({}))
    # Members whose host keys could not be read in this tick, and why.
    key_scan_errors: Mapping[UUID, AdapterError] = field(default_factory=lambda: MappingProxyType({}))
    # What this tick's plays have done so far.
    played: frozenset[Act] = frozenset()
    policy: Policy[SettingsT] = Policy()
    # Whether this tick deleted the instance's secrets from Vault, and the error if it could not.
    forgotten: bool = False
    not_forgotten: AdapterError | None = None
    # The answer of package policy; None as long as this tick has not asked.
    packages: Resolution | None = None
    # Members and operations that exist but cannot be read: nothing is concluded from what the lists do not show.
    unreadable: tuple[Unreadable, ...] = ()
    # Every operation on members there ever was, while an instance is deployed on a platform that makes none itself.
    history: tuple[Operation, ...] | None = None
    # The projects on a shared runtime, and the records of that list that cannot be read. An instance has none.
    attachments: tuple[AttachedProject, ...] = ()
    unreadable_attachments: tuple[Unreadable, ...] = ()
    # Allocations that members or operations name and that could not be read.
    unknown_allocations: Mapping[UUID, Unreadable] = field(default_factory=lambda: MappingProxyType({}))
    # Other instances on the requested allocations; None where nothing is about to begin.
    neighbours: Neighbours | None = None
    # Which projects may use the app; None on a quiet tick.
    entitlements: Entitlements | None = None
    # Fences that this tick's claims have taken, by member; see runner/model/claims.py.
    fences: Mapping[UUID, int] = field(default_factory=lambda: MappingProxyType({}))
    # Whether this tick took over an operation whose holder vanished and may still be at work.
    took_over: bool = False
    # False on a quiet tick: members and allocations were not read, since nothing needs them.
    complete: bool = True
    # Names the tick, and the rule that asked for its routine work: see runner/model/cause.py.
    tick_id: str = ""
    routine: str = ""
    # The correlation id of the command by which a person works on it.
    by_hand: str = ""

    def keeping(self, before: "World[SnapshotT]") -> Self:
        """This world, just read from the platform, with what the tick has done and found out before."""
        return self.later(
            snapshot=before.snapshot,
            outcomes=before.outcomes,
            key_scan_errors=before.key_scan_errors,
            played=before.played,
            forgotten=before.forgotten,
            not_forgotten=before.not_forgotten,
            packages=before.packages,  # policy is asked once a tick
            fences=before.fences,
            took_over=before.took_over,
            tick_id=before.tick_id,
            routine=before.routine,
            by_hand=before.by_hand,
        )

    def later(self, **changes: object) -> Self:
        return replace(self, **changes)  # type: ignore[arg-type]

    def with_member(self, member: Member) -> Self:
        return self.later(members=(*(one for one in self.members if one.id != member.id), member))

    def with_operation(self, operation: Operation) -> Self:
        return self.later(
            operations=tuple(operation if one.id == operation.id else one for one in self.operations),
            instance_operations=tuple(operation if one.id == operation.id else one for one in self.instance_operations),
        )

    def without_operation(self, operation: Operation) -> Self:
        return self.later(
            operations=tuple(one for one in self.operations if one.id != operation.id),
            instance_operations=tuple(one for one in self.instance_operations if one.id != operation.id),
        )

    def allocation_of(self, member: Member) -> Allocation | None:
        """The member's allocation. None: it was not read, so it may exist."""
        return self.allocations.get(member.allocation_id) if member.allocation_id else None

    def regions(self, components: Components) -> dict[str, str | None]:
        """Where each member is, by its id, and where the instance is, which is where its lead is."""
        found: dict[str, str | None] = {}
        for member in self.members:
            allocation = self.allocation_of(member)
            found[str(member.id)] = allocation.region if allocation else None
            if components.is_lead(member) and member.status != MemberStatus.DELETED:
                found[str(self.instance.id)] = found[str(member.id)]
        return found

    def is_not_found(self, allocation_id: UUID) -> bool:
        """Whether the platform answered 404 for this allocation."""
        found = self.allocations.get(allocation_id)
        return found is not None and found.status == NOT_FOUND

    def with_fence(self, member: Member, fence: int) -> Self:
        """The world with a member whose fence this tick has raised."""
        return self.with_member(member).later(fences={**self.fences, member.id: fence})

    def did(self, kind: str, member: Member) -> bool:
        """Whether this tick has done that to the member already."""
        return (kind, member.id) in self.played

    def after_play(self, step: Play, outcomes: Mapping[UUID, Outcome], snapshot: SnapshotT | None) -> Self:
        """The world after a play that brought this back."""
        return self.later(outcomes=outcomes, snapshot=snapshot, played=self.played | step.acts)

    def without_play(self, step: SkipPlay) -> Self:
        """The world after a play that was not run."""
        outcomes = {member.id: Outcome(error=step.error) for member in step.members}
        return self.after_play(step.play, outcomes, None)

    def outcome_consumed(self, member: Member) -> Self:
        """The member's outcome has been taken into account and must not count twice."""
        return self.later(outcomes={key: value for key, value in self.outcomes.items() if key != member.id})

    # -- what a step does to the world -----------------------------------------------------------------------

    def after(self, step: Step, written: PlatformRecord | None = None) -> Self:
        """The world once the step was carried out: with the record that was written, or as it would be."""
        match step:
            case Claim(subject=Operation() as operation):
                claimed = written if isinstance(written, Operation) else self._claimed(operation)
                return self.with_operation(claimed).later(took_over=self.took_over or claims.ran_out(operation))
            case Claim(subject=Member() as member):
                lease = claims.held(self.runner_id, self.now + LEASE) if step.hold else {}
                made = _member(written, member.written(step.status, lease), new_fence=True)
                return self.with_fence(made, claims.fence(made) or 0)
            case NewMember(operation=operation):
                made = _member(written, self._made(step))
                # The answer may be that of another runner's request under the same key, which has its fence 1 then.
                return self.with_fence(made, 1) if claims.is_first_claim(operation) else self.with_member(made)
            case NewOperation():
                requested = written if isinstance(written, Operation) else step.planned(self.instance)
                return self.later(operations=(*self.operations, requested), history=(*(self.history or ()), requested))
            case SetMember(member=member, new_fence=new_fence):
                made = _member(written, member.written(step.status, step.detail), new_fence=new_fence)
                world = self.with_fence(made, claims.fence(made) or 0) if new_fence else self.with_member(made)
                return world.outcome_consumed(made) if step.consumes_outcome else world
            case SetAttachment(attachment=attachment, changes=changes):
                done = written if isinstance(written, AttachedProject) else attachment.written(changes)
                return self.later(attachments=tuple(done if one.id == done.id else one for one in self.attachments))
            case SetInstance():
                return self.later(instance=written or self._instance(step))
            case Finish(operation=operation) | Refuse(operation=operation):
                return self.without_operation(operation)
            case SkipPlay():
                return self.without_play(step)
            case Pin(members=members):
                unread = AdapterError("host_key_missing", "a plan touches no host: its keys are not read")
                return self.later(
                    key_scan_errors={**self.key_scan_errors, **dict.fromkeys((one.id for one in members), unread)}
                )
            case ForgetSecrets():
                return self.later(forgotten=True)
            case Resolve():
                return self.later(packages=Resolution(decision="allow"))
        return self

    def after_all(self, steps: Iterable[SetMember]) -> Self:
        """The world with the members of all steps written, in one pass: a large cluster has thousands of members."""
        written = {step.member.id: step.member.written(step.status, step.detail) for step in steps}
        return self.later(members=tuple(written.get(one.id, one) for one in self.members))

    def _claimed(self, operation: Operation) -> Operation:
        changes = {
            "status": OperationStatus.RUNNING,
            "claimed_by": self.runner_id,
            "lease_expires_at": self.now + LEASE,
            "attempt": operation.attempt + 1,
        }
        return operation.model_copy(update=changes)

    def _made(self, step: NewMember) -> Member:
        return Member(
            id=uuid5(NAMESPACE_OID, f"{step.operation.id}/{step.allocation_id}"),
            app_instance_id=self.instance.id,
            component_key=step.component_key,
            allocation_id=step.allocation_id,
            source_project_id=step.operation.source_project_id,
            status=MemberStatus.REQUESTED,
            adapter_detail=step.detail | MemberNotes(fence=1).changes,
        )

    def _instance(self, step: SetInstance) -> AppInstance:
        changes = {
            "status": step.status,
            "health": step.health,
            "status_detail": step.detail,
            "access": step.access or self.instance.access,
        }
        return self.instance.model_copy(update=changes)


def _member(written: object, planned: Member, *, new_fence: bool = False) -> Member:
    """The member that was written, or the one that would be, with its next fence if it takes one."""
    if isinstance(written, Member):
        return written
    if not new_fence:
        return planned
    return planned.written(planned.status, MemberNotes(fence=(claims.fence(planned) or 0) + 1).changes)


def is_stale(instance: AppInstance, now: datetime, policy: Policy) -> bool:
    seen = instance.notes.observed_at
    # A time in the future counts as none: a clock was wrong, and the wait for that time could have no end.
    return seen is None or abs((now - seen).total_seconds()) >= policy.observe_seconds
