"""Operations on workers: which are refused, which wait, which we hold, and the next steps of those."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from runner.intent import placement_policy
from runner.model.names import host_name
from runner.model.neighbours import unjoined
from runner.model.plan import AdapterError, Claim, Finish, Refuse, Step, Wait, for_operation
from runner.model.platform import OPEN, UNFINISHED, Member, MemberStatus, Operation, OperationStatus
from runner.model.progress import is_stopped
from runner.model.records import Attempts
from runner.slurm import notes
from runner.slurm.components import COMPONENTS, WORKER
from runner.slurm.decide.members import conclude, fail, held_by_another, is_ours, unreadable_note
from runner.slurm.decide.workers import leave, resume
from runner.slurm.decide.workers.clean_host import Progress
from runner.slurm.decide.workers.join import join, joined_by
from runner.slurm.decide.workers.refusals import refusal
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.decide.workers.results import (
    failure,
    fitted,
    join_error,
    joined_results,
    leave_error,
    member_result,
)
from runner.slurm.decide.workers.terms import LeaveTerms, read_as
from runner.slurm.placement import Placement
from runner.slurm.world import World


def worker_operations(world: World, placement: Placement, controller: Member) -> tuple[list[Step], WantedPlays]:
    """Steps for each open operation in order of creation, and what they want done on hosts."""
    steps: list[Step] = []
    plays = WantedPlays()
    busy: dict[UUID, Operation] = {}  # members and allocations of earlier open operations
    for operation in world.operations:
        if operation.status not in OPEN:
            continue
        label = operation.label
        held = None
        if operation.status == OperationStatus.RUNNING:
            held = held_by_another(world, operation.claimed_by, operation.lease_expires_at)
        held = held or _unreadable_record(world, operation)
        first = next((busy[target] for target in operation.member_ids if target in busy), None)
        refused = None if held or first else refusal(world, placement, operation, busy)
        if held:
            steps.append(Wait(held, label, operation=operation))
        elif first:
            why = f"{first.label} is about the same member and came first"
            steps.append(Wait(why, label, operation=operation))
        elif refused:
            steps.append(Refuse(refused[1], operation, refused[0]))
            continue
        busy |= dict.fromkeys((*operation.member_ids, *operation.allocation_ids), operation)
        busy |= dict.fromkeys((member.id for member in joined_by(world, operation)), operation)
        if held or first:
            continue
        if operation.status == OperationStatus.ACCEPTED or not is_ours(
            world, operation.claimed_by, operation.lease_expires_at
        ):
            steps += for_operation(operation, [_claim(world, operation, label)])
            continue
        own, wanted = _carry_out(world, operation, controller)
        steps += for_operation(operation, own)
        wanted.operations = {member.id: operation for member in wanted.members}
        plays.add(wanted)
    return steps, plays


def _claim(world: World, operation: Operation, label: str) -> Step:
    later = Attempts(next_at=_next_try(world, operation)).not_due(world.now)
    if later:
        return Wait(later, label)
    readable = set(world.allocations) | {member.allocation_id for member in joined_by(world, operation)}
    unknown = next((one for one in operation.allocation_ids if one not in readable), None)
    if unknown:
        odd = world.unknown_allocations.get(unknown)
        return Wait(f"{odd or f'allocation {unknown} is not known'}: nothing begins until it can be read", label)
    if world.played:
        return Wait("the next tick takes it", label)
    count = len(operation.member_ids or operation.allocation_ids)
    return Claim(f"{operation.operation} of {count} worker(s) was requested", operation)


def _unreadable_record(world: World, operation: Operation) -> str | None:
    """Why an operation cannot begin: a record that may hold one of its allocations could not be read."""
    wanted = set(unjoined(operation, world.members, COMPONENTS))
    for member in world.members if wanted else ():
        alive = member.component_key == WORKER and member.status != MemberStatus.DELETED
        if alive and member.allocation_id in wanted and (why := unreadable_note(member)):
            return f"{host_name(member)} is on one of its allocations: {why}"
    if wanted and (why := placement_policy.held(world.entitlements)):
        return f"{why}: nothing begins"
    unreadable = world.neighbours.unreadable if world.neighbours else None
    if unreadable and wanted:
        return f"{unreadable} cannot be read, so it is not known whether the allocations are free"
    return None


def _carry_out(world: World, operation: Operation, controller: Member) -> tuple[list[Step], WantedPlays]:
    verb = operation.operation
    steps: list[Step] = []
    plays = WantedPlays()
    arrived: list[Member] = []
    if verb in ("add", "replace"):
        steps, plays.joins, arrived = join(world, operation, controller)
        if len(arrived) < len(operation.allocation_ids):
            return steps, plays
        lost = [member for member in arrived if member.status != MemberStatus.READY]
        if verb == "add" or lost:
            return [*steps, _finish_add(operation, arrived)], plays
    targets = _targets(world, operation)
    for member in targets:
        if controller.status != MemberStatus.READY:
            steps.append(Wait("the controller is not ready", host_name(member)))
            continue
        own, wanted = _step(world, operation, member)
        steps += own
        plays.add(wanted)
    if all(leave.result(member, operation.id) for member in targets):
        steps.append(_finish_leave(operation, targets, arrived))
    return steps, plays


def _step(world: World, operation: Operation, member: Member) -> Progress:
    if operation.operation == resume.NAME:
        return resume.resume(world, member, operation.id)
    verb: leave.Verb = "drain" if operation.operation == "drain" else "remove"
    return leave.leave(world, member, operation.id, verb, read_as(LeaveTerms, operation.parameters))


# -- ends ----------------------------------------------------------------------------------------------------


def _finish_add(operation: Operation, members: Sequence[Member]) -> Finish:
    failed = [member for member in members if member.status != MemberStatus.READY]
    result = joined_results(members)
    if not failed:
        return Finish("every worker is ready", operation, OperationStatus.SUCCEEDED, result)
    replaces = operation.operation == "replace"
    error = failure(failed, members, join_error(failed[0]), "; the old ones keep serving" if replaces else "")
    error |= {"code": "replacement_failed"} if replaces else {}
    return Finish(error["message"], operation, OperationStatus.FAILED, result, error)


def _finish_leave(operation: Operation, targets: Sequence[Member], arrived: Sequence[Member]) -> Finish:
    failed = [member for member in targets if leave.result(member, operation.id) != "done"]
    result = fitted(
        {str(member.id): member_result(member, None) for member in arrived}
        | {str(member.id): member_result(member, leave_error(member)) for member in targets}
    )
    if not failed:
        return Finish(f"{operation.operation} is done", operation, OperationStatus.SUCCEEDED, result)
    error = failure(failed, targets, leave_error(failed[0]))
    return Finish(error["message"], operation, OperationStatus.FAILED, result, error)


def end_all(world: World, code: str, message: str) -> list[Step]:
    """Every open operation ends, and no member that it was adding stays unfinished. One of another runner is left."""
    steps: list[Step] = []
    for operation in world.operations:
        held = held_by_another(world, operation.claimed_by, operation.lease_expires_at)
        if operation.status == OperationStatus.RUNNING and held:
            steps.append(Wait(held, operation.label, operation=operation))
            continue
        unfinished = [
            one for one in joined_by(world, operation) if one.status in UNFINISHED and not unreadable_note(one)
        ]
        steps += for_operation(operation, [fail(world, one, AdapterError(code, message)) for one in unfinished])
        steps.append(Refuse(message, operation, code))
    return steps


def orphans(world: World) -> tuple[list[Step], WantedPlays]:
    """Members that are unfinished although their operation is over: it was cancelled, or ended in another way."""
    open_now = {operation.id for operation in world.operations}
    steps: list[Step] = []
    plays = WantedPlays()
    for member in world.members:
        if member.component_key != WORKER or member.status == MemberStatus.DELETED or is_stopped(member):
            continue
        if unreadable_note(member):
            continue  # it is not known which operation it belongs to
        stored = notes.of(member)
        if stored.leave and stored.leave.is_under_way and stored.leave.operation_id not in open_now:
            own, wanted = leave.cancelled(world, member, stored.leave)
            steps += own
            plays.add(wanted)
        elif member.status in UNFINISHED and stored.operation_id not in open_now:
            outcome = world.outcomes.get(member.id)
            gone = AdapterError("operation_ended", "its operation was cancelled before it was ready: add it again")
            steps += conclude(world, member, outcome) if outcome else [fail(world, member, gone)]
    return steps, plays


def _targets(world: World, operation: Operation) -> list[Member]:
    by_id = {member.id: member for member in world.members}
    return [by_id[target] for target in operation.member_ids]


def _next_try(world: World, operation: Operation) -> datetime | None:
    """When the earliest unfinished member of an operation may be tried again; None: now."""
    due = [member.notes.next_attempt_at for member in joined_by(world, operation) if member.status in UNFINISHED]
    times = [time for time in due if time]
    return min(times) if times and len(times) == len(due) else None
