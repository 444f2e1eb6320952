"""Observe: one instance as the platform shows it, plus what this tick's play has brought back."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from uuid import UUID

from runner import missing, neighbours, wish
from runner.neighbours import Neighbours
from runner.plan import Act, AdapterError, Detail, Forgo
from runner.platform.client import Client
from runner.platform.models import Allocation, AppInstance, InstanceStatus, Member, Operation, Resolution, Unreadable
from runner.settings import Settings
from runner.shapes import read_time
from runner.slurm import Snapshot

OPEN = "accepted,running"


@dataclass(frozen=True)
class Outcome:
    """How one member came out of a play: its last words, and the error if there was one."""

    phase: str | None = None
    detail: Detail = field(default_factory=dict)
    error: AdapterError | None = None


@dataclass(frozen=True)
class Policy:
    """The numbers decide needs, so that it needs no settings."""

    max_attempts: int = 3
    retry_seconds: int = 30
    conversion_look_seconds: int = 45
    conversion_idle_seconds: int = 900
    conversion_limit_seconds: int = 7 * 86400
    observe_seconds: int = 45
    repair: bool = True
    min_free_mb: int = 1024

    @classmethod
    def of(cls, settings: Settings) -> "Policy":
        return cls(
            max_attempts=settings.max_attempts,
            retry_seconds=settings.retry_seconds,
            conversion_look_seconds=settings.conversion_look_seconds,
            conversion_idle_seconds=settings.conversion_idle_seconds,
            conversion_limit_seconds=settings.conversion_limit_seconds,
            observe_seconds=settings.observe_seconds,
            repair=settings.repair,
            min_free_mb=settings.min_free_mb,
        )


@dataclass(frozen=True)
class World:
    instance: AppInstance
    now: datetime
    runner_id: str
    members: tuple[Member, ...] = ()
    operations: tuple[Operation, ...] = ()
    instance_operations: tuple[Operation, ...] = ()
    allocations: Mapping[UUID, Allocation] = field(default_factory=lambda: MappingProxyType({}))
    snapshot: Snapshot | None = None
    # From this tick's latest play: one entry for each member it reached. Empty before the first.
    outcomes: Mapping[UUID, Outcome] = field(default_factory=lambda: MappingProxyType({}))
    # Members whose host keys could not be read in this tick, and why.
    unseen: Mapping[UUID, AdapterError] = field(default_factory=lambda: MappingProxyType({}))
    # What this tick's plays have done so far.
    played: frozenset[Act] = frozenset()
    policy: Policy = Policy()
    # Whether this tick took the instance's secrets out of Vault, and why not if it tried in vain.
    forgotten: bool = False
    not_forgotten: AdapterError | None = None
    # What policy said of Slurm's packages when this tick asked; None as long as nobody did.
    packages: Resolution | None = None
    # Members and operations that exist but cannot be read: nothing is concluded from what the lists do not show.
    unreadable: tuple[Unreadable, ...] = ()
    # Allocations that members or operations name and of which nothing is known.
    unknown_allocations: Mapping[UUID, Unreadable] = field(default_factory=lambda: MappingProxyType({}))
    # Who else has the allocations that are asked for; None where nothing is about to begin.
    neighbours: Neighbours | None = None
    # Numbers that this tick's claims have taken, by member; see runner/claims.py.
    fences: Mapping[UUID, int] = field(default_factory=lambda: MappingProxyType({}))
    # Whether this tick took over an operation whose holder vanished and may still be at work.
    took_over: bool = False
    # False on a quiet tick: members and allocations were not read, because nothing asks for them.
    complete: bool = True

    def later(self, **changes: object) -> "World":
        return replace(self, **changes)  # type: ignore[arg-type]

    def with_member(self, member: Member) -> "World":
        return self.later(members=(*(one for one in self.members if one.id != member.id), member))

    def with_operation(self, operation: Operation) -> "World":
        return self.later(
            operations=tuple(operation if one.id == operation.id else one for one in self.operations),
            instance_operations=tuple(operation if one.id == operation.id else one for one in self.instance_operations),
        )

    def without_operation(self, operation: Operation) -> "World":
        return self.later(
            operations=tuple(one for one in self.operations if one.id != operation.id),
            instance_operations=tuple(one for one in self.instance_operations if one.id != operation.id),
        )

    def allocation_of(self, member: Member) -> Allocation | None:
        """The machine it is on. None: not known, which says nothing about whether it is there."""
        return self.allocations.get(member.allocation_id) if member.allocation_id else None

    def is_not_found(self, allocation_id: UUID) -> bool:
        """Whether the platform said of this allocation that there is none."""
        found = self.allocations.get(allocation_id)
        return found is not None and found.status == missing.NOT_FOUND

    def with_number(self, member: Member, fence: int) -> "World":
        """The world with a member that this tick has numbered."""
        return self.with_member(member).later(fences={**self.fences, member.id: fence})

    def did(self, kind: str, member: Member) -> bool:
        """Whether this tick has done that to the member already."""
        return (kind, member.id) in self.played

    def without_play(self, step: Forgo) -> "World":
        """The world after a play that was not run."""
        outcomes = {member.id: Outcome(error=step.error) for member in step.members}
        return self.later(snapshot=None, outcomes=outcomes, played=self.played | step.play.acts)

    def judged(self, member: Member) -> "World":
        """The member's outcome has been taken into account and must not count twice."""
        return self.later(outcomes={key: value for key, value in self.outcomes.items() if key != member.id})


def observed_at(instance: AppInstance) -> datetime | None:
    """When the instance's runtime was last looked at, as we wrote it ourselves."""
    return read_time((instance.status_detail or {}).get("observed_at"))


def is_stale(instance: AppInstance, now: datetime, policy: Policy) -> bool:
    seen = observed_at(instance)
    # A time to come is as good as none: a clock was wrong, and waiting for it could take for ever.
    return seen is None or abs((now - seen).total_seconds()) >= policy.observe_seconds


def observe(client: Client, instance: AppInstance, settings: Settings, *, everything: bool = False) -> World:
    """Read one instance. A quiet one costs two requests: its open operations, of both kinds."""
    now = client.now()
    policy = Policy.of(settings)
    operations = client.member_operations(instance.id, status=OPEN)
    instance_operations = client.instance_operations(instance.id, status=OPEN)
    settled = instance.status in (InstanceStatus.RUNNING, InstanceStatus.FAILED, InstanceStatus.STOPPED)
    stale = instance.status == InstanceStatus.RUNNING and is_stale(instance, now, policy)
    # Our own note that a member is half way: an operation that was cancelled leaves no other trace in what we read.
    unsettled = bool((instance.status_detail or {}).get("unsettled"))
    dealt_with = (instance.status_detail or {}).get("wish")
    changed = instance.status == InstanceStatus.RUNNING and dealt_with not in (None, wish.digest(instance))
    asks = operations or instance_operations or operations.unreadable or instance_operations.unreadable
    if settled and not (everything or asks or stale or unsettled or changed):
        return World(instance=instance, now=now, runner_id=settings.runner_id, policy=policy, complete=False)
    members = client.members(instance.id)
    # Once more after the members: one that was made in between has its operation here, and is nobody's orphan.
    operations = client.member_operations(instance.id, status=OPEN)
    also, lost = missing.member_operations(client, instance, members, (*operations, *instance_operations))
    whole, lost_whole = missing.instance_operations(client, instance, instance_operations)
    listed = {allocation.id: allocation for allocation in client.allocations()}
    asked_for, unknown = missing.allocations(client, listed, members, (*operations, *also))
    return World(
        instance=instance,
        now=now,
        runner_id=settings.runner_id,
        members=tuple(members),
        operations=tuple(sorted((*operations, *also), key=_age)),
        instance_operations=tuple(sorted((*instance_operations, *whole), key=_age)),
        allocations=listed | asked_for,
        policy=policy,
        unreadable=(*members.unreadable, *operations.unreadable, *instance_operations.unreadable, *lost, *lost_whole),
        unknown_allocations=unknown,
        neighbours=neighbours.read(client, instance) if neighbours.matter((*operations, *also), members) else None,
    )


def _age(operation: Operation) -> tuple[datetime, str]:
    return operation.created_at or datetime.min.replace(tzinfo=UTC), str(operation.id)
