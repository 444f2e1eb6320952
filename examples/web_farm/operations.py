"""Operations on the web members of a farm: refused, claimed, carried out and ended. Pure."""

from collections.abc import Iterable

from examples.web_farm import members
from examples.web_farm.components import COMPONENTS, WEB
from examples.web_farm.members import alive, balancer, is_ours, webs
from runner.model.member_notes import MemberNotes
from runner.model.names import host_name
from runner.model.neighbours import unjoined
from runner.model.plan import Claim, Detail, Finish, NewMember, Refuse, Step, Wait, for_operation
from runner.model.platform import UNFINISHED, Member, MemberStatus, Operation, OperationStatus
from runner.model.world import World


def member_operations(world: World) -> list[Step]:
    steps: list[Step] = []
    for operation in world.operations:
        steps += for_operation(operation, _member_operation(world, operation))
    return steps


def _member_operation(world: World, operation: Operation) -> list[Step]:
    if operation.status == OperationStatus.RUNNING and is_ours(world, operation):
        return (_add if operation.operation == "add" else _remove)(world, operation)
    if why := members.held(world, operation.claimed_by, operation.lease_expires_at):
        return [Wait(why, operation.label)]
    if operation.status == OperationStatus.ACCEPTED and (refusal := _refusal(world, operation)):
        return [Refuse(refusal[1], operation, refusal[0])]
    if world.played:
        return [Wait("the next tick takes it", operation.label)]
    return [Claim(f"{operation.operation} was requested", operation)]


def _refusal(world: World, operation: Operation) -> tuple[str, str] | None:
    """The code and the message of an operation that cannot be carried out; nothing was touched."""
    if operation.component_key != WEB or operation.operation not in ("add", "remove"):
        return "operation_unknown", "a farm has the operations add and remove, on web members"
    lead = balancer(world)
    if lead is None or lead.status == MemberStatus.FAILED:
        return "instance_failed", "the farm has no balancer: decommission it and deploy again"
    if operation.operation == "remove":
        ids = {one.id for one in webs(world)}
        return (
            None
            if operation.member_ids and ids.issuperset(operation.member_ids)
            else (
                "member_not_found",
                "remove names web members of this farm",
            )
        )
    if not operation.allocation_ids or len(set(operation.allocation_ids)) < len(operation.allocation_ids):
        return "allocations_required", "add names each allocation once"
    neighbours = world.neighbours
    if neighbours is None or neighbours.unreadable:
        return None  # nothing begins until they can be read: see _add
    own = [one for one in alive(world) if one.allocation_id and one.status != MemberStatus.FAILED]
    used = dict(neighbours.holders) | {one.allocation_id: f"{one.component_key} of this farm" for one in own}
    for one in operation.allocation_ids:
        allocation = world.allocations.get(one)
        if one in used:
            return "allocation_in_use", f"allocation {one} serves {used[one]}: remove it there first"
        if allocation is None or world.is_not_found(one):
            return "allocation_not_found", f"allocation {one} is not in this project"
        if allocation.status not in ("active", *members.COMING):
            return "allocation_not_active", f"allocation {one} is {allocation.status}: choose another one"
    return None


def _add(world: World, operation: Operation) -> list[Step]:
    missing = unjoined(operation, world.members, COMPONENTS)
    if missing and (world.neighbours is None or world.neighbours.unreadable):
        return [Wait("it is not known whether its allocations are free", operation.label)]
    if missing:
        over = [one for one in webs(world, MemberStatus.FAILED) if one.allocation_id in missing]
        made = MemberNotes(operation_id=operation.id).changes
        return [
            *(members.removed(one, {}, "a new attempt takes its place") for one in over),
            *(NewMember("the operation requests it", operation, WEB, one, made) for one in missing),
        ]
    joined = [one for one in world.members if one.notes.operation_id == operation.id]
    return [] if any(one.status in UNFINISHED for one in joined) else [finish(operation, joined, MemberStatus.READY)]


def _remove(world: World, operation: Operation) -> list[Step]:
    targets = [one for one in world.members if one.id in operation.member_ids]
    begun = [step for one in targets if (step := members.leaves(one, operation.id))]
    if begun:
        return list(begun)
    if any(one.status == MemberStatus.DELETING for one in targets):
        return []
    return [finish(operation, targets, MemberStatus.DELETED)]


def finish(operation: Operation, concerned: Iterable[Member], wanted: MemberStatus) -> Finish:
    """The end of an operation, with a result for each member."""
    result: Detail = {}
    error: Detail | None = None
    for one in concerned:
        noted = one.notes.last_adapter_error
        result[str(one.id)] = {"status": one.status} | ({"error": noted.code} if noted else {})
        if one.status != wanted and error is None:
            code = noted.code if noted else "member_state"
            error = {"code": code, "message": noted.message if noted else f"{host_name(one)} is {one.status}"}
    status = OperationStatus.FAILED if error else OperationStatus.SUCCEEDED
    return Finish(f"{operation.operation} {status}", operation, status, result, error)
