"""Operations on workers: which are refused, which wait, which are ours, and what each still needs."""

import json
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from runner.intent.errors import IntentError
from runner.intent.placement import Placement
from runner.model.names import CONTROLLER, WORKER, host_name
from runner.model.neighbours import unjoined
from runner.model.plan import AdapterError, Claim, Detail, Finish, Refuse, Step, Wait, stamp
from runner.model.platform import Member, MemberStatus, Operation, OperationStatus
from runner.model.progress import is_stopped
from runner.model.shapes import read_time
from runner.slurm.decide.members import UNFINISHED, conclude, fail, held_by_another, is_ours
from runner.slurm.decide.workers import leave, resume
from runner.slurm.decide.workers.join import join, joined_by
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.world import World

RESULT_BYTES, MESSAGE_CHARS, HOMES_SHOWN = 12_000, 300, 3
VERBS = ("add", "drain", "resume", "remove", "replace")
# In which states a member can be asked to do what; while another operation is at it, the later one waits.
ALLOWED = {
    "drain": (MemberStatus.READY, MemberStatus.DRAINING),
    "resume": (MemberStatus.READY, MemberStatus.DRAINING),
    "remove": tuple(status for status in MemberStatus if status != MemberStatus.DELETED),
    "replace": tuple(status for status in MemberStatus if status != MemberStatus.DELETED),
}


def worker_operations(world: World, placement: Placement, controller: Member) -> tuple[list[Step], WantedPlays]:
    """Steps for each open operation in order of creation, and what they want done on hosts."""
    steps: list[Step] = []
    wants = WantedPlays()
    busy: dict[UUID, Operation] = {}  # members and allocations an earlier open operation is about
    for operation in world.operations:
        if operation.status not in (OperationStatus.ACCEPTED, OperationStatus.RUNNING):
            continue
        label = f"{operation.operation} {str(operation.id)[:8]}"
        held = None
        if operation.status == OperationStatus.RUNNING:
            held = held_by_another(world, operation.claimed_by, operation.lease_expires_at)
        held = held or _unsure(world, operation)
        first = next((busy[target] for target in operation.member_ids if target in busy), None)
        refusal = None if held or first else _refusal(world, placement, operation, busy)
        if held:
            steps.append(Wait(held, label))
        elif first:
            steps.append(Wait(f"{first.operation} {str(first.id)[:8]} is about the same member and came first", label))
        elif refusal:
            steps.append(Refuse(refusal[1], operation, refusal[0]))
            continue
        busy |= dict.fromkeys((*operation.member_ids, *operation.allocation_ids), operation)
        busy |= dict.fromkeys((member.id for member in joined_by(world, operation)), operation)
        if held or first:
            continue
        if operation.status == OperationStatus.ACCEPTED or not is_ours(
            world, operation.claimed_by, operation.lease_expires_at
        ):
            steps.append(_claim(world, operation, label))
            continue
        own, wanted = _carry_out(world, operation, controller)
        steps += own
        wants.add(wanted)
    return steps, wants


def _claim(world: World, operation: Operation, label: str) -> Step:
    due = _next_try(world, operation)
    if due and due > world.now:
        return Wait(f"the next try is at {stamp(due)}", label)
    known = set(world.allocations) | {member.allocation_id for member in joined_by(world, operation)}
    unknown = next((one for one in operation.allocation_ids if one not in known), None)
    if unknown:
        odd = world.unknown_allocations.get(unknown)
        return Wait(f"{odd or f'allocation {unknown} is not known'}: nothing begins until it can be read", label)
    if world.played:
        return Wait("the next tick takes it", label)
    count = len(operation.member_ids or operation.allocation_ids)
    return Claim(f"{operation.operation} of {count} worker(s) was asked for", operation)


def _unsure(world: World, operation: Operation) -> str | None:
    """Why an operation cannot begin: a record that may hold one of its allocations could not be read."""
    unreadable = world.neighbours.unreadable if world.neighbours else None
    if unreadable and unjoined(operation, world.members):
        return f"{unreadable} cannot be read, so it is not known whether the allocations are free"
    return None


def _carry_out(world: World, operation: Operation, controller: Member) -> tuple[list[Step], WantedPlays]:
    verb = operation.operation
    steps: list[Step] = []
    wants = WantedPlays()
    arrived: list[Member] = []
    if verb in ("add", "replace"):
        steps, wants.joins, arrived = join(world, operation, controller)
        if len(arrived) < len(operation.allocation_ids):
            return steps, wants
        lost = [member for member in arrived if member.status != MemberStatus.READY]
        if verb == "add" or lost:
            return [*steps, _finish_add(operation, arrived)], wants
    targets = _targets(world, operation)
    for member in targets:
        if controller.status != MemberStatus.READY:
            steps.append(Wait("the controller is not ready", host_name(member)))
            continue
        own, wanted = _step(world, operation, member)
        steps += own
        wants.add(wanted)
    if all(leave.verdict(member, operation.id) for member in targets):
        steps.append(_finish_leave(operation, targets, arrived))
    return steps, wants


def _step(world: World, operation: Operation, member: Member) -> leave.Progress:
    if operation.operation == resume.VERB:
        return resume.resume(world, member, operation.id)
    verb = "drain" if operation.operation == "drain" else "remove"
    return leave.leave(world, member, operation.id, verb, leave.read_terms(operation.parameters))


# -- refusals ------------------------------------------------------------------------------------------------


def _refusal(
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
    verb, known = operation.operation, {member.id: member for member in world.members}
    if not operation.member_ids:
        return "no_members", f"{verb} names no member_ids: say which workers"
    if len(set(operation.member_ids)) != len(operation.member_ids):
        return "member_twice", f"{verb} names the same member twice"
    if verb == "replace" and len(operation.member_ids) != len(operation.allocation_ids):
        return "replace_uneven", "replace needs one allocation for each member it replaces"
    for target in operation.member_ids:
        member = known.get(target)
        if member is None:
            return "member_not_found", f"{target} is not a member of this instance"
        if member.component_key != WORKER:
            return "controller_not_supported", f"{target} is the controller: {verb} is for workers"
        if member.status not in ALLOWED[verb] and not leave.belongs_to(member, operation.id):
            return "member_state", f"{host_name(member)} is {member.status}: it cannot be asked to {verb}"
    return None


def _bad_terms(operation: Operation) -> tuple[str, str] | None:
    try:
        leave.read_as(resume.Terms if operation.operation == resume.VERB else leave.Terms, operation.parameters)
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
            and member.adapter_detail.get("operation_id") != str(operation.id)
        ),
        None,
    )


# -- ends ----------------------------------------------------------------------------------------------------


def _finish_add(operation: Operation, members: Sequence[Member]) -> Finish:
    failed = [member for member in members if member.status != MemberStatus.READY]
    result = joined_results(members)
    if not failed:
        return Finish("every worker is ready", operation, OperationStatus.SUCCEEDED, result)
    first = _join_error(failed[0]) or {}
    kept = "; the old ones keep serving" if operation.operation == "replace" else ""
    why = f"{len(failed)} of {len(members)} workers failed{kept}; the first: {first.get('message', 'no reason known')}"
    code = str(first.get("code") or "worker_failed") if len(failed) == len(members) else "partly_failed"
    code = "replacement_failed" if operation.operation == "replace" else code
    return Finish(why, operation, OperationStatus.FAILED, result, {"code": code, "message": why})


def joined_results(members: Sequence[Member]) -> Detail:
    """Of each member how it came up, and why not."""
    return fitted({str(member.id): member_result(member, _join_error(member)) for member in members})


def _finish_leave(operation: Operation, targets: Sequence[Member], arrived: Sequence[Member]) -> Finish:
    failed = [member for member in targets if leave.verdict(member, operation.id) != "done"]
    result = fitted(
        {str(member.id): member_result(member, None) for member in arrived}
        | {str(member.id): member_result(member, leave.note(member).get("error")) for member in targets}
    )
    if not failed:
        return Finish(f"{operation.operation} is done", operation, OperationStatus.SUCCEEDED, result)
    first = leave.note(failed[0]).get("error") or {}
    why = f"{len(failed)} of {len(targets)} workers failed; the first: {first.get('message', 'no reason known')}"
    code = str(first.get("code") or "worker_failed") if len(failed) == len(targets) else "partly_failed"
    return Finish(why, operation, OperationStatus.FAILED, result, {"code": code, "message": why})


def _join_error(member: Member) -> Detail | None:
    known: Detail | None = member.adapter_detail.get("last_adapter_error")
    return known if member.status != MemberStatus.READY else None


def member_result(member: Member, error: Detail | None) -> Detail:
    known = member.adapter_detail
    said = {key: value for key in ("did", "verdict") if (value := leave.note(member).get(key))}
    cleaned = {"host_cleaned": known["host_cleaned"]} if "host_cleaned" in known else {}
    homes = {"homes_left": known["homes_left"][:HOMES_SHOWN]} if known.get("homes_left") else {}
    return {
        "allocation_id": str(member.allocation_id),
        "status": member.status,
        "hostname": known.get("worker_hostname") or known.get("controller_hostname"),
        "error": {**error, "message": str(error.get("message"))[:MESSAGE_CHARS]} if error else None,
        **said,
        **cleaned,
        **homes,
    }


def fitted(results: dict[str, Detail]) -> Detail:
    """The platform takes a bounded result: failures come first, and what does not fit is counted."""
    ordered = sorted(results.items(), key=lambda item: item[1]["error"] is None)
    kept: Detail = {}
    size = 0
    for member_id, result in ordered:
        size += len(json.dumps(result, default=str)) + len(member_id) + 8
        if size > RESULT_BYTES:
            break
        kept[member_id] = result
    left = len(results) - len(kept)
    return {"members": kept, **({"more_members": left} if left else {})}


def end_all(world: World, code: str, message: str) -> list[Step]:
    """Every open operation ends, and no member it was about stays half way."""
    steps: list[Step] = []
    for operation in world.operations:
        steps += [
            fail(world, member, AdapterError(code, message))
            for member in joined_by(world, operation)
            if member.status in UNFINISHED
        ]
        steps.append(Refuse(message, operation, code))
    return steps


def orphans(world: World) -> tuple[list[Step], WantedPlays]:
    """Members half way whose operation is over (cancelled by a person): they end as what they are."""
    open_now = {str(operation.id) for operation in world.operations}
    steps: list[Step] = []
    wants = WantedPlays()
    for member in world.members:
        if member.component_key != WORKER or member.status == MemberStatus.DELETED or is_stopped(member):
            continue
        left = leave.note(member)
        if left and left.get("verdict") is None and left.get("operation_id") not in open_now:
            own, wanted = leave.cancelled(world, member)
            steps += own
            wants.add(wanted)
        elif member.status in UNFINISHED and member.adapter_detail.get("operation_id") not in open_now:
            outcome = world.outcomes.get(member.id)
            gone = AdapterError("operation_ended", "its operation was cancelled before it was ready: add it again")
            steps += conclude(world, member, outcome) if outcome else [fail(world, member, gone)]
    return steps, wants


def _targets(world: World, operation: Operation) -> list[Member]:
    known = {member.id: member for member in world.members}
    return [known[target] for target in operation.member_ids]


def _next_try(world: World, operation: Operation) -> datetime | None:
    """When the earliest unfinished member of an operation may be tried again; None: now."""
    due = [
        read_time(member.adapter_detail.get("next_attempt_at"))
        for member in joined_by(world, operation)
        if member.status in UNFINISHED
    ]
    times = [time for time in due if time]
    return min(times) if times and len(times) == len(due) else None
