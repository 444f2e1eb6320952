"""Operations on workers that are refused before anything is changed: with which code, and why."""

from uuid import UUID

from pydantic import BaseModel

from runner.intent.errors import IntentError
from runner.model.names import host_name
from runner.model.neighbours import unjoined
from runner.model.platform import IN_SERVICE, Member, MemberStatus, Operation
from runner.slurm.components import COMPONENTS, CONTROLLER, WORKER
from runner.slurm.decide.workers import leave
from runner.slurm.decide.workers.evict import JobTerms
from runner.slurm.decide.workers.terms import LeaveTerms, NoTerms, read_as
from runner.slurm.placement import Placement
from runner.slurm.world import World

# The verbs, each with its parameters.
VERBS: dict[str, type[BaseModel]] = {
    "add": NoTerms,
    "drain": JobTerms,
    "resume": NoTerms,
    "remove": LeaveTerms,
    "replace": LeaveTerms,
}
# The statuses of a member that allow a verb. While an earlier operation is at work on the member, the later one waits.
ALLOWED = {
    "drain": IN_SERVICE,
    "resume": IN_SERVICE,
    "remove": tuple(status for status in MemberStatus if status != MemberStatus.DELETED),
    "replace": tuple(status for status in MemberStatus if status != MemberStatus.DELETED),
}


def refusal(
    world: World, placement: Placement, operation: Operation, busy: dict[UUID, Operation]
) -> tuple[str, str] | None:
    """The code and the message of an operation that is refused; None if it can be carried out."""
    verb, key = operation.operation, operation.component_key
    if key == CONTROLLER and verb == "add":
        return "second_controller", "a cluster has one controller, made by the deploy; a second one cannot be added"
    if key == CONTROLLER:
        message = f"{verb} is for workers: the controller is created and removed with the instance"
        return "controller_not_supported", message
    if key != WORKER:
        return "component_unknown", f"component {key!r} is not one of this app's (controller, worker)"
    if verb not in VERBS:
        return "operation_unknown", f"{verb!r} is not an operation of this app. Supported: {', '.join(VERBS)}"
    return (
        (_bad_allocations(world, placement, operation, busy) if verb in ("add", "replace") else None)
        or (_bad_targets(world, operation) if verb != "add" else None)
        or _bad_terms(operation)
    )


def _bad_allocations(
    world: World, placement: Placement, operation: Operation, busy: dict[UUID, Operation]
) -> tuple[str, str] | None:
    named = operation.allocation_ids
    if not named:
        message = "names no allocation_ids. Name existing allocations: the adapter does not rent machines"
        return "allocations_required", f"{operation.operation} {message}"
    if len(set(named)) != len(named):
        return "allocation_twice", f"{operation.operation} names the same allocation twice"
    for allocation in named:
        if allocation == placement.controller_allocation_id and not placement.same_node:
            return "allocation_is_controller", f"allocation {allocation} is the controller's and placement is split"
        if why := _not_contributed(world, operation, allocation):
            return why
        if world.is_not_found(allocation):
            return "allocation_not_found", f"allocation {allocation} is not in this project"
        serving = _serving(world, allocation, operation)
        if serving or allocation in busy:
            name = host_name(serving) if serving else "another operation's worker"
            return "allocation_in_use", f"allocation {allocation} already serves as {name}: remove that one first"
        holder = world.neighbours.holders.get(allocation) if world.neighbours else None
        if holder and allocation in unjoined(operation, world.members, COMPONENTS):
            return "allocation_in_use", f"allocation {allocation} serves {holder}: remove it there first"
    return None


def _not_contributed(world: World, operation: Operation, allocation: UUID) -> tuple[str, str] | None:
    """Why a shared runtime may not use it. The platform checks consent, too: a worker is root on the whole cluster."""
    if not world.instance.is_shared:
        return None
    found, source = world.allocations.get(allocation), operation.source_project_id
    owner = source or world.instance.owner_project_id
    if found and found.project_id not in (None, owner):
        message = f"allocation {allocation} is of project {found.project_id}, which did not contribute it"
        return "allocation_not_contributed", f"{message}: let that project request it"
    if source is None or allocation not in _new(world, operation):
        return None
    if not _may_contribute(world, source):
        message = (
            f"project {source} may not contribute workers: its attachment is not active, or not with may_contribute"
        )
        return "contribution_not_allowed", f"{message}. The tenant's administrator decides that"
    return None


def _may_contribute(world: World, project: UUID) -> bool:
    return any(one.project_id == project and one.is_active and one.may_contribute for one in world.attachments)


def _new(world: World, operation: Operation) -> set[UUID]:
    """Allocations of the operation that no worker was made on: consent that ends later undoes nothing."""
    return set(unjoined(operation, world.members, COMPONENTS))


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
        if operation.source_project_id not in (None, member.source_project_id):
            message = f"{host_name(member)} was not contributed by project {operation.source_project_id}"
            return "allocation_not_contributed", f"{message}, which requests its {verb}"
        if member.status not in ALLOWED[verb] and not leave.belongs_to(member, operation.id):
            return "member_state", f"{verb} is not possible while {host_name(member)} is {member.status}"
    return None


def _bad_terms(operation: Operation) -> tuple[str, str] | None:
    try:
        read_as(VERBS[operation.operation], operation.parameters)
    except IntentError as error:
        return error.code, error.message
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
