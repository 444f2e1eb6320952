"""How a worker joins: its record is created, its play runs, and the controller shows it as ready."""

from runner.intent import placement_policy
from runner.model.names import host_name
from runner.model.neighbours import is_undeployed
from runner.model.plan import AdapterError, NewMember, SetMember, Step, Wait
from runner.model.platform import UNFINISHED, Member, MemberStatus, Operation
from runner.slurm import detail
from runner.slurm.components import WORKER
from runner.slurm.decide.members import before_play, conclude, fail, obstacle, unreadable_note
from runner.slurm.notes import WorkerNotes
from runner.slurm.world import World


def joined_by(world: World, operation: Operation) -> list[Member]:
    """The members that an operation created."""
    return [one for one in world.members if one.notes.operation_id == operation.id]


def join(world: World, operation: Operation, controller: Member) -> tuple[list[Step], list[Member], list[Member]]:
    """Steps, the members to be played, and those that have their result, ready or failed."""
    joined = {member.allocation_id: member for member in joined_by(world, operation)}
    missing = [allocation for allocation in operation.allocation_ids if allocation not in joined]
    if missing:
        made: list[Step] = [
            NewMember("the operation requests it", operation, WORKER, one, detail.blank(WORKER, operation.id))
            for one in missing
        ]
        return [*_superseded(world, operation), *made], [], []
    steps: list[Step] = []
    to_play: list[Member] = []
    members = [joined[allocation] for allocation in operation.allocation_ids]
    for member in members:
        if member.status not in UNFINISHED:
            continue
        outcome = world.outcomes.get(member.id)
        if outcome:
            steps += conclude(world, member, outcome)
        elif why := unreadable_note(member):
            steps.append(Wait(why, host_name(member)))
        elif controller.status == MemberStatus.FAILED:
            steps.append(fail(world, member, AdapterError("controller_failed", "there is no controller to join")))
        elif is_undeployed(member) and (why := placement_policy.held(world.entitlements)):
            steps.append(Wait(f"{why}: nothing begins", host_name(member)))
        elif step := before_play(world, member, "join"):
            steps.append(step)
        elif held := obstacle(world, member):
            steps.append(Wait(held, host_name(member)))
        else:
            to_play.append(member)
    return steps, to_play, [member for member in members if member.status not in UNFINISHED]


def _superseded(world: World, operation: Operation) -> list[Step]:
    """A worker that failed on one of the allocations is deleted: the operation tries again there."""
    changes = WorkerNotes(superseded_by=operation.id).changes
    return [
        SetMember("a new attempt takes its place", member, MemberStatus.DELETED, changes)
        for member in world.members
        if member.component_key == WORKER
        and member.status == MemberStatus.FAILED
        and member.allocation_id in operation.allocation_ids
    ]
