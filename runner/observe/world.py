"""Reads one instance from the platform."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib.metadata import version

from runner.model import events, neighbours
from runner.model.app import App
from runner.model.entitlements import Entitlements
from runner.model.neighbours import Neighbours
from runner.model.platform import OPEN, Allocation, AppInstance, InstanceStatus, Operation
from runner.model.world import Policy, World, is_stale
from runner.observe import entitlements, missing, other_instances
from runner.platform.client import Client
from runner.settings import Settings

OPEN_ONLY = ",".join(OPEN)
# Statuses in which an instance needs no work unless it is requested.
SETTLED = (InstanceStatus.RUNNING, InstanceStatus.FAILED, InstanceStatus.STOPPED)
# Statuses in which the deploy is not done.
NOT_DEPLOYED = (InstanceStatus.REQUESTED, InstanceStatus.DEPLOYING, InstanceStatus.FAILED)


def observe(
    client: Client,
    instance: AppInstance,
    settings: Settings,
    app: App,
    *,
    everything: bool = False,
    allocations: Callable[[], Iterable[Allocation]] | None = None,
    read_entitlements: Callable[[], Entitlements] | None = None,
    read_others: Callable[[Client, AppInstance], Neighbours] = other_instances.read,
) -> World:
    """Read one instance. An idle one costs two requests: its open operations, of both kinds. A shared runtime costs one
    more, for its attachments.

    `allocations` and `read_entitlements` read the project's, if the caller shares one read among instances.
    `read_others` is called only if a deploy or an add is about to begin.
    """
    now = client.now()
    policy = _policy(settings, app)
    operations = client.member_operations(instance.id, status=OPEN_ONLY)
    instance_operations = client.instance_operations(instance.id, status=OPEN_ONLY)
    attachments = client.attachments(instance.id)
    settled = instance.status in SETTLED
    stale = instance.status == InstanceStatus.RUNNING and is_stale(instance, now, policy)
    # Our own note that a member is unfinished: a cancelled operation leaves no other trace in these records.
    unsettled = instance.notes.needs_everything
    # Nothing is concluded from a list of attachments that is not complete.
    reattached = not attachments.unreadable and app.has_new_attachments(instance, attachments)
    changed = instance.status == InstanceStatus.RUNNING and (app.has_new_config(instance) or reattached)
    requested = operations or instance_operations or operations.unreadable or instance_operations.unreadable
    if settled and not (everything or requested or stale or unsettled or changed):
        return World(instance=instance, now=now, runner_id=settings.runner_id, policy=policy, complete=False)
    members = client.members(instance.id)
    # Again after the members: a member that was created in between has its operation in this list.
    operations = client.member_operations(instance.id, status=OPEN_ONLY)
    more, unknown_operations = missing.member_operations(
        client, instance, members, (*operations, *instance_operations), app.components
    )
    more_of_instance, unknown_of_instance = missing.instance_operations(client, instance, instance_operations)
    listed = {allocation.id: allocation for allocation in (allocations or client.allocations)()}
    found, unknown = missing.allocations(client, listed, members, (*operations, *more))
    is_seeded = instance.status not in NOT_DEPLOYED or instance.is_shared or client.contract.seeds_operations
    history = None if is_seeded else client.member_operations(instance.id)
    # An operation that is yet to be requested begins in this tick, too.
    about_to_begin = history is not None or neighbours.matter((*operations, *more), members, app.components)
    return World(
        instance=instance,
        now=now,
        runner_id=settings.runner_id,
        members=tuple(members),
        operations=tuple(sorted((*operations, *more), key=_age)),
        instance_operations=tuple(sorted((*instance_operations, *more_of_instance), key=_age)),
        allocations=listed | found,
        policy=policy,
        unreadable=(
            *members.unreadable,
            *operations.unreadable,
            *instance_operations.unreadable,
            *unknown_operations,
            *(history.unreadable if history is not None else ()),
            *unknown_of_instance,
        ),
        history=None if history is None else tuple(history),
        attachments=tuple(attachments),
        unreadable_attachments=tuple(attachments.unreadable),
        unknown_allocations=unknown,
        entitlements=read_entitlements() if read_entitlements else entitlements.read(client, settings),
        neighbours=read_others(client, instance) if about_to_begin else None,
    )


def _policy(settings: Settings, app: App) -> Policy:
    return Policy(
        max_attempts=settings.max_attempts,
        retry_seconds=settings.retry_seconds,
        observe_seconds=settings.observe_seconds,
        repair=settings.repair,
        min_free_mb=settings.min_free_mb,
        adapter_version=version("gpuaas-slurm"),
        assumed_events=events.read_assumed(settings.assumed_events),
        app=settings.of_app(app.settings),
    )


def _age(operation: Operation) -> tuple[datetime, str]:
    return operation.created_at or datetime.min.replace(tzinfo=UTC), str(operation.id)
