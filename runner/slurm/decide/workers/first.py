"""The first workers, on a platform that makes no operations at a deploy: the adapter requests them itself."""

from uuid import UUID

from runner.model.plan import NewOperation, Step
from runner.model.platform import Member
from runner.slurm.components import WORKER
from runner.slurm.placement import read_placement
from runner.slurm.world import World


def request(world: World, _controller: Member) -> list[Step]:
    """One `add` for the allocations of placement_intent that no operation and no worker has ever named.

    A worker that was removed stays removed: its record and its operation are still there.
    """
    if world.history is None:
        return []
    named: set[UUID | None] = {one for operation in world.history for one in operation.allocation_ids}
    named |= {member.allocation_id for member in world.members if member.component_key == WORKER}
    first = tuple(one for one in read_placement(world.instance).worker_allocation_ids if one not in named)
    return [NewOperation("the deploy names them, and no operation does", "add", WORKER, first)] if first else []
