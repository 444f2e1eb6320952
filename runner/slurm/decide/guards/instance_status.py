"""What an instance's own status allows."""

from runner.model.plan import Step, Wait
from runner.model.platform import InstanceStatus
from runner.slurm.decide.workers.operations import end_all
from runner.slurm.world import World

INSTANCE_FAILED = "the deploy of the instance has failed: correct what its reasons name, then request `op retry`"


def require_complete_world(world: World) -> list[Step] | None:
    """Nothing is done on a quiet tick, which did not read the members, and for an instance that is gone."""
    gone = world.instance.status == InstanceStatus.DELETED
    return None if world.complete and not gone else []


def require_known_status(world: World) -> list[Step] | None:
    status = world.instance.status
    if status in set(InstanceStatus):
        return None
    return [Wait(f"the status {status!r} is not known, so the instance is not touched", "instance")]


def keep_stopped(world: World) -> list[Step] | None:
    status = world.instance.status
    if status != InstanceStatus.STOPPED:
        return None
    return [Wait(f"the instance is {status}", one.label, operation=one) for one in world.operations]


def refuse_on_failed(world: World) -> list[Step] | None:
    if world.instance.status != InstanceStatus.FAILED:
        return None
    return end_all(world, "instance_failed", INSTANCE_FAILED)
