"""Operations on workers that are not done at all: with which code, and why. They touch nothing."""

from uuid import UUID

from runner.intent.errors import IntentError
from runner.intent.placement import Placement
from runner.model.names import CONTROLLER, WORKER, host_name
from runner.model.neighbours import unjoined
from runner.model.platform import Member, MemberStatus, Operation
from runner.slurm.decide.workers import leave, resume
from runner.slurm.decide.workers.terms import LeaveTerms, read_as
from runner.slurm.world import World

VERBS = ("add", "drain", "resume", "remove", "replace")
# In which states a member can be asked to do what; while another operation is at it, the later one waits.
ALLOWED = {
    "drain": (MemberStatus.READY, MemberStatus.DRAINING),
    "resume": (MemberStatus.READY, MemberStatus.DRAINING),
    "remove": tuple(status for status in MemberStatus if status != MemberStatus.DELETED),
    "replace": tuple(status for status in MemberStatus if status != MemberStatus.DELETED),
}


def refusal(
    world: World, placement: Placement, operation: Operation, busy: dict[UUID, Operation]
) -> tuple[str, str] | None:
    """Why an operation is not done at all (code, sentence); it touches nothing."""
    verb, key = operation.operation, operation.component_key
    if key == CONTROLLER and verb == "add":
        return "second_controller", "a cluster has one controller, made by the deploy; a second one cannot be added"
    if key == CONTROLLER:
        return "controller_not_supported", f"{verb} is for workers: the controller's life is the instance's"
    if key != WORKER:
        return "component_unknown", f"component {key!r} is not one of this app's (controller, worker)"
    if verb not in VERBS:
        return "operation_unknown", f"{verb!r} is not an operation of this app: {', '.join(VERBS)} are"
    return (
        (_bad_allocations(world, placement, operation, busy) if verb in ("add", "replace") else None)
        or (_bad_targets(world, operation) if verb != "add" else None)
        or (_bad_terms(operation) if verb != "add" else None)
    )


def _bad_allocations(
    world: World, placement: Placement, operation: Operation, busy: dict[UUID, Operation]
) -> tuple[str, str] | None:
    named = operation.allocation_ids
    if not named:
        message = f"{operation.operation} names no allocation_ids. Name existing allocations: none is requested for you"
        return "allocations_required", message
    if len(set(named)) != len(named):
        return "allocation_twice", f"{operation.operation} names the same allocation twice"
    for allocation in named:
        if allocation == placement.controller_allocation_id and not placement.same_node:
            return "allocation_is_controller", f"allocation {allocation} is the controller's and placement is split"
        if world.is_not_found(allocation):
            return "allocation_not_found", f"allocation {allocation} is not in this project"
        serving = _serving(world, allocation, operation)
        if serving or allocation in busy:
            who = host_name(serving) if serving else "another operation's worker"
            return "allocation_in_use", f"allocation {allocation} already serves as {who}: remove that one first"
        holder = world.neighbours.holders.get(allocation) if world.neighbours else None
        if holder and allocation in unjoined(operation, world.members):
            return "allocation_in_use", f"allocation {allocation} serves {holder}: remove it there first"
    return None


def _bad_targets(world: World, operation: Operation) -> tuple[str, str] | None:
    verb, by_id = operation.operation, {member.id: member for member in world.members}
    if not operation.member_ids:
        return "no_members", f"{verb} names no member_ids: name the workers"
    if len(set(operation.member_ids)) != len(operation.member_ids):
        return "member_twice", f"{verb} names the same member twice"
    if verb == "replace" and len(operation.member_ids) != len(operation.allocation_ids):
        return "replace_uneven", "replace needs one allocation for each member it replaces"
    for target in operation.member_ids:
        member = by_id.get(target)
        if member is None:
            return "member_not_found", f"{target} is not a member of this instance"
        if member.component_key != WORKER:
            return "controller_not_supported", f"{target} is the controller: {verb} is for workers"
        if member.status not in ALLOWED[verb] and not leave.belongs_to(member, operation.id):
            return "member_state", f"{host_name(member)} is {member.status}: it cannot be asked to {verb}"
    return None


def _bad_terms(operation: Operation) -> tuple[str, str] | None:
    try:
        read_as(resume.Terms if operation.operation == resume.VERB else LeaveTerms, operation.parameters)
    except IntentError as error:
        return error.code, error.message
    if operation.operation == "drain" and operation.parameters.get("remove_homes"):
        return "parameters_invalid", "parameters cannot be used: remove_homes is for remove and replace"
    return None


def _serving(world: World, allocation: UUID, operation: Operation) -> Member | None:
    gone = (MemberStatus.DELETED, MemberStatus.FAILED)
    return next(
        (
            member
            for member in world.members
            if member.component_key == WORKER
            and member.allocation_id == allocation
            and member.status not in gone
            and member.notes.operation_id != operation.id
        ),
        None,
    )
