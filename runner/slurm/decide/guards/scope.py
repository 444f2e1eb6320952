"""First guards: whether this adapter serves the instance at all, and whether every record could be read.

Both only hold work back. While a record of the instance is unreadable, the cluster is looked at and its health is
reported; nothing else is done, since a list may be incomplete.
"""

from runner.model.host_data import printable
from runner.model.instance_notes import Reason, StatusDetail
from runner.model.limits import fit_reasons
from runner.model.plan import AdapterError, Refuse, Step, Warn
from runner.model.platform import Health, InstanceStatus, Unreadable
from runner.model.world import is_stale
from runner.slurm import detail, lifecycle_notes
from runner.slurm.causes import HINTS
from runner.slurm.controller import ready_controllers
from runner.slurm.decide.status import instance_fails, look, set_instance
from runner.slurm.decide.workers.operations import end_all
from runner.slurm.health import WORST, health, unreadable_reasons
from runner.slurm.world import World

SERVED = ("tenant_dedicated", "project", "slurm")
SERVED_SHARED = ("tenant_dedicated", "tenant", "slurm")
# Values of the contract. A backend is any text: one that is not slurm is another app's.
MODES = ("tenant_dedicated", "platform_managed")
SCOPES = ("project", "tenant", "platform")
VALUE_CHARS = 40
PROBLEM_BYTES = 160
# Health of an instance at rest, where no look at the cluster finds it out.
AT_REST = {InstanceStatus.STOPPED: Health.UNKNOWN, InstanceStatus.FAILED: Health.UNHEALTHY}


def require_supported_scope(world: World) -> list[Step] | None:
    """Steps for an instance of a scope that is not served; None for one that is. No host is touched."""
    instance = world.instance
    mode, reach, backend = instance.operating_mode, instance.control_plane_scope, instance.runtime_backend
    served = SERVED_SHARED if instance.is_shared else SERVED
    if (mode, reach, backend) == served:
        return None
    shown = ", ".join(
        f"{name} {'not given' if value is None else repr(value[:VALUE_CHARS])}"
        for name, value in (("operating_mode", mode), ("control_plane_scope", reach), ("runtime_backend", backend))
    )
    if mode not in MODES or reach not in SCOPES or not backend:
        return [Warn(f"this scope is not known: {shown}. Nothing is written and no host is touched", "instance")]
    if (mode, reach) == ("tenant_dedicated", "tenant") and not instance.is_shared:
        why = (
            f"it uses a tenant's shared runtime: {shown}. A project's service account cannot read its attachment, so"
            " nothing is written. Its status follows the attachment, which the runner of the shared runtime reports"
        )
        return [Warn(why, "instance")]
    wanted = f"operating_mode '{served[0]}', control_plane_scope '{served[1]}', runtime_backend '{served[2]}'"
    error = AdapterError("scope_not_served", f"{shown}: not served. This adapter serves {wanted}: deploy with these")
    if instance.status in (InstanceStatus.REQUESTED, InstanceStatus.DEPLOYING):
        return [*instance_fails(world, error), *_refuse_whole(world, error)]
    if instance.status == InstanceStatus.FAILED:
        return [*end_all(world, error.code, error.message), *_refuse_whole(world, error)]
    # Another adapter deployed it: what runs is left as it is.
    return [Warn(f"{error.message}. The instance is {instance.status}; it is left as it is", "instance")]


def _refuse_whole(world: World, error: AdapterError) -> list[Step]:
    return [Refuse(error.message, operation, error.code) for operation in world.instance_operations]


def require_readable_records(world: World) -> list[Step] | None:
    """Steps while a member, an operation or the instance's note cannot be read; None once everything can."""
    bad = (*world.unreadable, *_bad_note(world))
    if not bad:
        return _read_again(world)
    waits: list[Step] = [Warn(f"{one}: nothing is changed until it can be read", one.kind) for one in bad]
    running = world.instance.status == InstanceStatus.RUNNING
    serving = ready_controllers(world.members)
    if running and serving and not world.played and is_stale(world.instance, world.now, world.policy):
        return [*waits, look(serving[0], "what is known of the cluster is old")]
    if running and world.played:
        level, reasons = health(world.snapshot, world.members, world.policy, _unreadable(world))
    else:
        level, reasons = _at_least_degraded(world.instance.health), [*unreadable_reasons(_unreadable(world))]
        reasons = fit_reasons([*reasons, *_other_reasons(world)])
    written = detail.of_instance(world.instance, world.snapshot, world.members, reasons, world.now)
    written |= StatusDetail(unsettled=True).changes  # so that the next tick reads everything again
    return [*waits, *set_instance(world, InstanceStatus(world.instance.status), level, written, None)]


def _unreadable(world: World) -> tuple[Unreadable, ...]:
    return (*_bad_note(world), *world.unreadable, *world.unknown_allocations.values())


def _bad_note(world: World) -> tuple[Unreadable, ...]:
    """The note of an instance operation may be of one that is under way: nothing is begun, continued or undone."""
    problem = lifecycle_notes.problem(world.instance, world.instance_operations)
    if problem is None:
        return ()
    what = printable(problem.message, PROBLEM_BYTES)
    return (Unreadable("instance_note", str(world.instance.id), what, code=problem.code),)


def _at_least_degraded(current: str | None) -> Health:
    before = next((one for one in WORST if one == current), Health.HEALTHY)
    return max(before, Health.DEGRADED, key=WORST.index)


def _other_reasons(world: World) -> list[Reason]:
    return [one for one in world.instance.notes.reasons or [] if one.code not in HINTS]


def _read_again(world: World) -> list[Step] | None:
    """Remove what could not be read from the reasons of a stopped or failed instance.

    Others report new health anyway.
    """
    reasons = world.instance.notes.reasons or []
    back = AT_REST.get(InstanceStatus(world.instance.status))
    if back is None or len(_other_reasons(world)) == len(reasons):
        return None
    written = detail.of_instance(world.instance, None, world.members, _other_reasons(world), world.now)
    return set_instance(world, InstanceStatus(world.instance.status), back, written, None)
