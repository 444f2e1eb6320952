"""How a worker joins: its record is created, its play runs, and the controller shows it as ready."""

from runner.intent import placement_policy
from runner.model import limits
from runner.model.names import host_name
from runner.model.neighbours import is_undeployed
from runner.model.plan import AdapterError, NewMember, SetMember, Step, Wait
from runner.model.platform import UNFINISHED, Member, MemberStatus, Operation
from runner.slurm import desired_config, detail
from runner.slurm.components import WORKER
from runner.slurm.decide.members import before_play, conclude, fail, obstacle, unreadable_note
from runner.slurm.notes import WorkerNotes
from runner.slurm.world import World

# Shown before a worker of another project joins.
ROOT = "Whoever is root on a worker can act as any user of the cluster"


def joined_by(world: World, operation: Operation) -> list[Member]:
    """The members that an operation created."""
    return [one for one in world.members if one.notes.operation_id == operation.id]


def join(world: World, operation: Operation, controller: Member) -> tuple[list[Step], list[Member], list[Member]]:
    """Steps, the members to be played, and those that have their result, ready or failed."""
    joined = {member.allocation_id: member for member in joined_by(world, operation)}
    missing = [allocation for allocation in operation.allocation_ids if allocation not in joined]
    if missing:
        source = operation.source_project_id
        why = f"project {source} contributes it. {ROOT}" if source else "the operation requests it"
        made: list[Step] = [
            NewMember(why, operation, WORKER, one, detail.blank(WORKER, operation.id)) for one in missing
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
        elif unread := unreadable_note(member):
            steps.append(Wait(unread, host_name(member)))
        elif controller.status == MemberStatus.FAILED:
            steps.append(fail(world, member, AdapterError("controller_failed", "there is no controller to join")))
        elif is_undeployed(member) and (unsure := placement_policy.held(world.entitlements)):
            steps.append(Wait(f"{unsure}: nothing begins", host_name(member)))
        elif step := _without_partition(world, controller, member) or before_play(world, member, "join"):
            steps.append(step)
        elif held := obstacle(world, member):
            steps.append(Wait(held, host_name(member)))
        else:
            to_play.append(member)
    return steps, to_play, [member for member in members if member.status not in UNFINISHED]


def _without_partition(world: World, controller: Member, member: Member) -> Step | None:
    """A contributed worker waits for its project's partition: Slurm puts a node into partitions when it registers."""
    source = member.source_project_id
    if source is None or source in desired_config.live_contributors(world.instance, controller, world.members):
        return None
    refused = desired_config.refused(controller)
    if refused and desired_config.is_refused(world.instance, controller, world.members):
        message = (
            f"the partition of project {source} is not there, because the configuration was refused ({refused.code}:"
            f" {limits.short(refused.message)}). Correct the runtime's configuration, withdraw the worker and"
            " contribute it again"
        )
        return fail(world, member, AdapterError("own_partition_refused", message))
    return Wait("the partition of its project is not live yet", host_name(member))


def _superseded(world: World, operation: Operation) -> list[Step]:
    """A worker that failed on one of the allocations is deleted: the operation tries again there."""
    changes = WorkerNotes(superseded_by=operation.id).changes
    left = WorkerNotes(munge_key_left_at=world.now).changes
    return [
        SetMember(
            "a new attempt takes its place", member, MemberStatus.DELETED, changes | (left if _had(member) else {})
        )
        for member in world.members
        if member.component_key == WORKER
        and member.status == MemberStatus.FAILED
        and member.allocation_id in operation.allocation_ids
    ]


def _had(member: Member) -> bool:
    """Whether its project may have read the cluster's key there. The new attempt may end before it gets to the host."""
    return member.source_project_id is not None and bool(member.notes.host_touched)
