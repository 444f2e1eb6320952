"""Reads one instance from the platform."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from runner.model import neighbours
from runner.model.app import App
from runner.model.platform import Allocation, AppInstance, InstanceStatus, Operation
from runner.model.world import Policy, World, is_stale
from runner.observe import missing, other_instances
from runner.platform.client import Client
from runner.settings import Settings

OPEN = "accepted,running"
# Statuses in which an instance has nothing to do by itself.
SETTLED = (InstanceStatus.RUNNING, InstanceStatus.FAILED, InstanceStatus.STOPPED)


def observe(
    client: Client,
    instance: AppInstance,
    settings: Settings,
    app: App,
    *,
    everything: bool = False,
    allocations: Callable[[], Iterable[Allocation]] | None = None,
) -> World:
    """Read one instance. A quiet one costs two requests: its open operations, of both kinds.

    `allocations` reads the project's list, if the caller shares one read among instances.
    """
    now = client.now()
    policy = _policy(settings)
    operations = client.member_operations(instance.id, status=OPEN)
    instance_operations = client.instance_operations(instance.id, status=OPEN)
    settled = instance.status in SETTLED
    stale = instance.status == InstanceStatus.RUNNING and is_stale(instance, now, policy)
    # Our own note that a member is half way: an operation that was cancelled leaves no other trace in what we read.
    unsettled = bool((instance.status_detail or {}).get("unsettled"))
    changed = instance.status == InstanceStatus.RUNNING and app.has_new_config(instance)
    asks = operations or instance_operations or operations.unreadable or instance_operations.unreadable
    if settled and not (everything or asks or stale or unsettled or changed):
        return World(instance=instance, now=now, runner_id=settings.runner_id, policy=policy, complete=False)
    members = client.members(instance.id)
    # Once more after the members: one that was made in between has its operation here, and is nobody's orphan.
    operations = client.member_operations(instance.id, status=OPEN)
    also, lost = missing.member_operations(client, instance, members, (*operations, *instance_operations))
    whole, lost_whole = missing.instance_operations(client, instance, instance_operations)
    listed = {allocation.id: allocation for allocation in (allocations or client.allocations)()}
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
        neighbours=other_instances.read(client, instance) if neighbours.matter((*operations, *also), members) else None,
    )


def _policy(settings: Settings) -> Policy:
    return Policy(
        max_attempts=settings.max_attempts,
        retry_seconds=settings.retry_seconds,
        conversion_look_seconds=settings.conversion_look_seconds,
        conversion_idle_seconds=settings.conversion_idle_seconds,
        conversion_limit_seconds=settings.conversion_limit_seconds,
        observe_seconds=settings.observe_seconds,
        repair=settings.repair,
        min_free_mb=settings.min_free_mb,
    )


def _age(operation: Operation) -> tuple[datetime, str]:
    return operation.created_at or datetime.min.replace(tzinfo=UTC), str(operation.id)
