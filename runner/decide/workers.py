"""Operations on workers: which are refused, which are ours, and what each still needs."""

from datetime import datetime
from uuid import UUID

from runner.decide.members import UNFINISHED, allocation_problem, conclude, fail, held_by_another, name, read_time
from runner.inventory import CONTROLLER, WORKER, Placement
from runner.plan import AdapterError, Claim, Detail, Finish, NewMember, Refuse, Step, Wait, stamp
from runner.platform.models import Member, MemberStatus, Operation, OperationStatus
from runner.world import World

GONE = (MemberStatus.DELETED, MemberStatus.FAILED)


def worker_operations(world: World, placement: Placement, controller: Member) -> tuple[list[Step], list[Member]]:
    """Steps for each open operation, and the workers that are to be in this tick's play."""
    steps: list[Step] = []
    to_play: list[Member] = []
    taken: set[UUID] = set()
    for operation in world.operations:
        label = f"{operation.operation} {str(operation.id)[:8]}"
        if operation.status not in (OperationStatus.ACCEPTED, OperationStatus.RUNNING):
            continue
        held = None
        if operation.status == OperationStatus.RUNNING:
            held = held_by_another(world, operation.claimed_by, operation.lease_expires_at)
        if held:
            steps.append(Wait(held, label))
            continue
        refusal = _refusal(world, placement, operation, taken)
        if refusal:
            steps.append(Refuse(refusal[1], operation, refusal[0]))
            continue
        taken.update(operation.allocation_ids)
        if operation.status == OperationStatus.ACCEPTED or operation.claimed_by != world.runner_id:
            due = _next_try(world, operation)
            if due and due > world.now:
                steps.append(Wait(f"the next try is at {stamp(due)}", label))
            elif world.outcomes is not None:
                steps.append(Wait("the next tick takes it", label))
            else:
                steps.append(Claim(f"{len(operation.allocation_ids)} worker(s) to add", operation))
            continue
        own, ready_to_play = _add(world, operation, controller)
        steps += own
        to_play += ready_to_play
    return steps, to_play


def _refusal(world: World, placement: Placement, operation: Operation, taken: set[UUID]) -> tuple[str, str] | None:
    """Why an operation is not done at all (code, sentence); it touches nothing."""
    verb, key = operation.operation, operation.component_key
    if key == CONTROLLER and verb == "add":
        return "second_controller", "a cluster has one controller, made by the deploy; a second one cannot be added"
    if key == CONTROLLER:
        return "controller_not_supported", f"{verb} is for workers: the controller's life is the instance's"
    if key != WORKER:
        return "component_unknown", f"component {key!r} is not one of this app's (controller, worker)"
    if verb not in ("add", "drain", "remove", "replace"):
        return "operation_unknown", f"{verb!r} is not an operation of this app"
    if verb != "add":
        return "operation_not_supported", f"{verb} of a worker is not something this version does"
    if not operation.allocation_ids:
        return "no_allocations", "add names no allocation_ids: say which allocations become workers"
    if len(set(operation.allocation_ids)) != len(operation.allocation_ids):
        return "allocation_twice", "add names the same allocation twice"
    for allocation in operation.allocation_ids:
        if allocation == placement.controller_allocation_id and not placement.same_node:
            return "allocation_is_controller", f"allocation {allocation} is the controller's and placement is split"
        if allocation not in world.allocations:
            return "allocation_not_found", f"allocation {allocation} is not in this project"
        serving = _serving(world, allocation, operation)
        if serving or allocation in taken:
            who = name(serving) if serving else "another operation's worker"
            return "allocation_in_use", f"allocation {allocation} already serves as {who}: remove that one first"
    return None


def _serving(world: World, allocation: UUID, operation: Operation) -> Member | None:
    return next(
        (
            member
            for member in world.members
            if member.component_key == WORKER
            and member.allocation_id == allocation
            and member.status not in GONE
            and member.adapter_detail.get("operation_id") != str(operation.id)
        ),
        None,
    )


def _add(world: World, operation: Operation, controller: Member) -> tuple[list[Step], list[Member]]:
    mine = {m.allocation_id: m for m in world.members if m.adapter_detail.get("operation_id") == str(operation.id)}
    missing = [allocation for allocation in operation.allocation_ids if allocation not in mine]
    if missing:
        return [NewMember("the operation asks for it", operation, WORKER, allocation) for allocation in missing], []
    steps: list[Step] = []
    to_play: list[Member] = []
    members = [mine[allocation] for allocation in operation.allocation_ids]
    for member in members:
        if member.status not in UNFINISHED:
            continue
        outcome = (world.outcomes or {}).get(member.id)
        error, waiting = allocation_problem(world, member.allocation_id)
        if outcome:
            steps += conclude(world, member, outcome)
        elif controller.status == MemberStatus.FAILED:
            steps.append(fail(world, member, AdapterError("controller_failed", "there is no controller to join")))
        elif waiting:
            steps.append(Wait(waiting, name(member)))
        elif error:
            steps.append(fail(world, member, error))
        else:
            due = read_time(member.adapter_detail.get("next_attempt_at"))
            if due and due > world.now:
                steps.append(Wait(f"the next try is at {stamp(due)}", name(member)))
            else:
                to_play.append(member)
    if all(member.status not in UNFINISHED for member in members):
        steps.append(_finish(operation, members))
    return steps, to_play


def orphans(world: World) -> list[Step]:
    """Workers half way there whose operation was cancelled: they end as what they are."""
    open_now = {str(operation.id) for operation in world.operations}
    steps: list[Step] = []
    for member in world.members:
        if member.component_key != WORKER or member.status not in UNFINISHED:
            continue
        if member.adapter_detail.get("operation_id") in open_now:
            continue
        outcome = (world.outcomes or {}).get(member.id)
        gone = AdapterError("operation_ended", "its operation was cancelled before it was ready: add it again")
        steps += conclude(world, member, outcome) if outcome else [fail(world, member, gone)]
    return steps


def _finish(operation: Operation, members: list[Member]) -> Finish:
    result: Detail = {"members": {}}
    failed = [member for member in members if member.status != MemberStatus.READY]
    for member in members:
        known = member.adapter_detail.get("last_adapter_error")
        result["members"][str(member.id)] = {
            "allocation_id": str(member.allocation_id),
            "status": member.status,
            "hostname": member.adapter_detail.get("worker_hostname"),
            "error": known if member in failed else None,
        }
    if not failed:
        return Finish("every worker is ready", operation, OperationStatus.SUCCEEDED, result)
    first = failed[0].adapter_detail.get("last_adapter_error") or {}
    why = f"{len(failed)} of {len(members)} workers failed; the first: {first.get('message', 'no reason known')}"
    code = str(first.get("code") or "worker_failed") if len(failed) == len(members) else "partly_failed"
    return Finish(why, operation, OperationStatus.FAILED, result, {"code": code, "message": why})


def end_all(world: World, code: str, message: str) -> list[Step]:
    steps: list[Step] = []
    for operation in world.operations:
        steps += [
            fail(world, member, AdapterError(code, message))
            for member in world.members
            if member.adapter_detail.get("operation_id") == str(operation.id) and member.status in UNFINISHED
        ]
        steps.append(Refuse(message, operation, code))
    return steps


def _next_try(world: World, operation: Operation) -> datetime | None:
    """When the earliest unfinished member of an operation may be tried again; None: now."""
    due = [
        read_time(member.adapter_detail.get("next_attempt_at"))
        for member in world.members
        if member.adapter_detail.get("operation_id") == str(operation.id) and member.status in UNFINISHED
    ]
    times = [time for time in due if time]
    return min(times) if times and len(times) == len(due) else None
