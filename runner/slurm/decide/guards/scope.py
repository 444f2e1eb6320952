"""What comes before all policy: whether this adapter serves the instance at all, and whether everything could be read.

Both only hold work back. While a record of the instance is unreadable, the cluster is looked at and its health is
reported; nothing else is done, because what a list does not show may be there.
"""

from runner.model.limits import fit_reasons
from runner.model.names import CONTROLLER
from runner.model.plan import AdapterError, Detail, Refuse, Step, Warn
from runner.model.platform import Health, InstanceStatus, MemberStatus, Unreadable
from runner.model.world import is_stale
from runner.slurm import detail
from runner.slurm.decide.status import instance_fails, look, set_instance
from runner.slurm.decide.workers.operations import end_all
from runner.slurm.health import UNREADABLE, WORST, health, unreadable_reasons
from runner.slurm.world import World

SERVED = ("tenant_dedicated", "project", "slurm")
# Words of the contract. A backend is any word: one that is not slurm is another app's.
MODES = ("tenant_dedicated", "platform_managed")
SCOPES = ("project", "tenant", "platform")
VALUE_CHARS = 40
# Health of an instance at rest, where no look at the cluster finds it out.
AT_REST = {InstanceStatus.STOPPED: Health.UNKNOWN, InstanceStatus.FAILED: Health.UNHEALTHY}


def scope(world: World) -> list[Step] | None:
    """Steps for an instance of a scope that is not served; None for one that is. No host is touched."""
    instance = world.instance
    mode, reach, backend = instance.operating_mode, instance.control_plane_scope, instance.runtime_backend
    if (mode, reach, backend) == SERVED:
        return None
    words = ", ".join(
        f"{name} {'not given' if value is None else repr(value[:VALUE_CHARS])}"
        for name, value in (("operating_mode", mode), ("control_plane_scope", reach), ("runtime_backend", backend))
    )
    if mode not in MODES or reach not in SCOPES or not backend:
        return [Warn(f"this scope is not known: {words}. Nothing is written and no host is touched", "instance")]
    if (mode, reach) == ("tenant_dedicated", "tenant"):
        why = f"attached to a tenant's control plane, which is not served yet: {words}. Nothing is written"
        return [Warn(why, "instance")]
    served = "operating_mode 'tenant_dedicated', control_plane_scope 'project', runtime_backend 'slurm'"
    error = AdapterError("scope_not_served", f"{words}: not served. This adapter serves {served}: deploy with these")
    if instance.status in (InstanceStatus.REQUESTED, InstanceStatus.DEPLOYING):
        return [*instance_fails(world, error), *_refuse_whole(world, error)]
    if instance.status == InstanceStatus.FAILED:
        return [*end_all(world, error.code, error.message), *_refuse_whole(world, error)]
    # It has been deployed by whoever served it then: what runs is left as it is.
    return [Warn(f"{error.message}. The instance is {instance.status}; it is left as it is", "instance")]


def _refuse_whole(world: World, error: AdapterError) -> list[Step]:
    return [Refuse(error.message, operation, error.code) for operation in world.instance_operations]


def incomplete(world: World) -> list[Step] | None:
    """Steps while a member or an operation of the instance cannot be read; None once everything can."""
    if not world.unreadable:
        return _read_again(world)
    waits: list[Step] = [Warn(f"{one}: nothing is changed until it can be read", one.kind) for one in world.unreadable]
    running = world.instance.status == InstanceStatus.RUNNING
    for member in world.members if running and not world.played else ():
        serves = member.component_key == CONTROLLER and member.status == MemberStatus.READY
        if serves and is_stale(world.instance, world.now, world.policy):
            return [*waits, look(member, "what is known of the cluster is old")]
    if running and world.played:
        word, reasons = health(world.snapshot, world.members, world.policy, _unreadable(world))
    else:
        word, reasons = _at_least_degraded(world.instance.health), [*unreadable_reasons(_unreadable(world))]
        reasons = fit_reasons([*reasons, *_other_reasons(world)])
    said = detail.of_instance(world.instance, world.snapshot, world.members, reasons, world.now)
    said["unsettled"] = True  # so that the next tick reads everything again
    return [*waits, *set_instance(world, InstanceStatus(world.instance.status), word, said, None)]


def _unreadable(world: World) -> tuple[Unreadable, ...]:
    return (*world.unreadable, *world.unknown_allocations.values())


def _at_least_degraded(known: str | None) -> Health:
    before = next((one for one in WORST if one == known), Health.HEALTHY)
    return max(before, Health.DEGRADED, key=WORST.index)


def _other_reasons(world: World) -> list[Detail]:
    known = (world.instance.status_detail or {}).get("reasons")
    found = [one for one in known if isinstance(one, dict)] if isinstance(known, list) else []
    return [one for one in found if one.get("code") != UNREADABLE]


def _read_again(world: World) -> list[Step] | None:
    """Remove `record_unreadable` from the reasons of a stopped or failed instance.

    Others report new health anyway.
    """
    known = (world.instance.status_detail or {}).get("reasons")
    back = AT_REST.get(InstanceStatus(world.instance.status))
    if back is None or not isinstance(known, list) or len(_other_reasons(world)) == len(known):
        return None
    said = detail.of_instance(world.instance, None, world.members, _other_reasons(world), world.now)
    return set_instance(world, InstanceStatus(world.instance.status), back, said, None)
