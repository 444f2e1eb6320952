"""How a worker joins: its record first, then the play, then the controller's word."""

from runner.model.names import WORKER, host_name
from runner.model.plan import AdapterError, NewMember, SetMember, Step, Wait
from runner.model.platform import Member, MemberStatus, Operation
from runner.slurm import detail
from runner.slurm.decide.members import UNFINISHED, conclude, fail, host_problem, not_due, obstacle, unreadable_note
from runner.slurm.notes import WorkerNotes
from runner.slurm.world import World

__all__ = ["UNFINISHED", "join", "joined_by"]


def joined_by(world: World, operation: Operation) -> list[Member]:
    """The members an operation has made."""
    return [one for one in world.members if one.notes.operation_id == operation.id]


def join(world: World, operation: Operation, controller: Member) -> tuple[list[Step], list[Member], list[Member]]:
    """Steps, the members to be played, and those that are through with it, ready or failed."""
    mine = {member.allocation_id: member for member in joined_by(world, operation)}
    missing = [allocation for allocation in operation.allocation_ids if allocation not in mine]
    if missing:
        made: list[Step] = [
            NewMember("the operation asks for it", operation, WORKER, one, detail.blank(WORKER, operation.id))
            for one in missing
        ]
        return [*_tombstones(world, operation), *made], [], []
    steps: list[Step] = []
    to_play: list[Member] = []
    members = [mine[allocation] for allocation in operation.allocation_ids]
    for member in members:
        if member.status not in UNFINISHED:
            continue
        outcome = world.outcomes.get(member.id)
        error, waiting = host_problem(world, member)
        if outcome:
            steps += conclude(world, member, outcome)
        elif why := unreadable_note(member):
            steps.append(Wait(why, host_name(member)))
        elif controller.status == MemberStatus.FAILED:
            steps.append(fail(world, member, AdapterError("controller_failed", "there is no controller to join")))
        elif waiting:
            steps.append(Wait(waiting, host_name(member)))
        elif error:
            steps.append(fail(world, member, error))
        elif later := not_due(world, member):
            steps.append(Wait(later, host_name(member)))
        elif held := obstacle(world, member):
            steps.append(Wait(held, host_name(member)))
        elif world.did("join", member):
            steps.append(Wait("the play did not reach it; the next tick continues", host_name(member)))
        else:
            to_play.append(member)
    return steps, to_play, [member for member in members if member.status not in UNFINISHED]


def _tombstones(world: World, operation: Operation) -> list[Step]:
    """A worker that failed on an allocation gives way to the new attempt there."""
    changes = WorkerNotes(superseded_by=operation.id).changes
    return [
        SetMember("a new attempt takes its place", member, MemberStatus.DELETED, changes)
        for member in world.members
        if member.component_key == WORKER
        and member.status == MemberStatus.FAILED
        and member.allocation_id in operation.allocation_ids
    ]
