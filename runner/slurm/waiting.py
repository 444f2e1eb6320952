"""What a member or an operation waits for, as a sentence for people, from the platform's records alone. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from runner.model.claims import is_about
from runner.model.names import host_name
from runner.model.platform import (
    OPEN,
    UNFINISHED,
    AppInstance,
    InstanceStatus,
    Member,
    MemberStatus,
    Operation,
    OperationStatus,
)
from runner.slurm import notes
from runner.slurm.controller import find_controller
from runner.slurm.notes import WorkerLeave, WorkerNotes

COMING = (InstanceStatus.REQUESTED, InstanceStatus.DEPLOYING)
MEMBERS_NAMED = 5
AT_DEADLINE = {"give_up": "the drain is given up", "requeue": "they are requeued", "cancel": "they are cancelled"}
LONGEST_DEADLINE = range(31_536_001)
NO_RUNNER = "no runner seems to work on this project: start one with gpuaas-slurm run"


def of_member(member: Member, operations: Sequence[Operation], now: datetime) -> str | None:
    """What the member waits for: jobs and until when, or its next attempt. None if it waits for nothing known."""
    stored = notes.of(member)
    if member.status in (MemberStatus.DELETED, MemberStatus.FAILED):
        return None
    if stored.leave and stored.leave.is_under_way:
        return _of_leaving(member, stored.leave, operations, now)
    if member.status in UNFINISHED and stored.attempts.not_due(now):
        return f"retries at {clock(stored.attempts.next_at, now)}"
    return None


def of_operation(
    operation: Operation,
    instance: AppInstance,
    members: Sequence[Member],
    operations: Sequence[Operation],
    now: datetime,
    patience: timedelta,
) -> str | None:
    """What an open operation waits for. `operations` are the open ones of the instance and of its members."""
    if operation.status not in OPEN:
        return None
    note = instance.notes.operation
    if note and note.is_under_way and note.belongs_to(operation.id):
        return note.waiting or note.phase
    first = _before(operation, operations)
    if first is None and note and note.is_under_way:  # it was cancelled, and is being undone
        first = f"{note.verb} of the instance is under way"
    if first:
        return f"waits: {first}"
    if not operation.of_instance:
        waits = [(one, of_member(one, operations, now)) for one in members if is_about(operation, one)]
        named = [f"{notes.of(one).hostname or host_name(one)} {why}" for one, why in waits if why]
        if named:
            more = f"; and {len(named) - MEMBERS_NAMED} more members wait" if len(named) > MEMBERS_NAMED else ""
            return "; ".join(named[:MEMBERS_NAMED]) + more
        controller = find_controller(members)
        if instance.status in COMING and controller and controller.status != MemberStatus.READY:
            new = instance.status == InstanceStatus.REQUESTED
            waits_for = f"waits for the controller, which is {controller.status}"
            return (not_taken(instance.created_at, now, patience) if new else None) or waits_for
    if operation.status == OperationStatus.RUNNING:
        if operation.claimed_by and operation.lease_expires_at and operation.lease_expires_at > now:
            return f"{operation.claimed_by} works on it"
        return "no runner holds it now; the next run continues"
    return not_taken(operation.created_at, now, patience) or "waits for a runner to take it"


def not_taken(since: datetime | None, now: datetime, patience: timedelta) -> str | None:
    """That no runner has taken a request, though it is older than `patience`."""
    if since is None or now - since < patience:
        return None
    return f"nothing has taken it since {clock(since, now)}; {NO_RUNNER}"


def clock(at: datetime | None, now: datetime) -> str:
    """A time in UTC; with its date if it is on another day."""
    if at is None:
        return "an unknown time"
    at = at.astimezone(UTC)
    return at.strftime("%H:%M:%SZ" if at.date() == now.astimezone(UTC).date() else "%Y-%m-%d %H:%M:%SZ")


def _before(operation: Operation, operations: Sequence[Operation]) -> str | None:
    """The open operation that goes first, by the rules of runner/slurm/decide."""
    others = [one for one in operations if one.id != operation.id and one.status in OPEN]
    running = next((one for one in others if one.of_instance and one.status == OperationStatus.RUNNING), None)
    if running:
        return f"{running.label} is under way"
    if operation.status == OperationStatus.RUNNING or operation.of_instance:
        return None
    same = next((one for one in others if _came_first(one, operation)), None)
    return f"{same.label} is about the same member and came first" if same else None


def _came_first(one: Operation, operation: Operation) -> bool:
    if one.of_instance or not set(one.member_ids) & set(operation.member_ids):
        return False
    return (str(one.created_at), str(one.id)) < (str(operation.created_at), str(operation.id))


def _of_leaving(member: Member, leave: WorkerLeave, operations: Sequence[Operation], now: datetime) -> str | None:
    seen = notes.worker(member)
    if leave.unreachable_since:
        return f"waits for its host, which has not answered since {clock(leave.unreachable_since, now)}"
    if leave.verb == "resume":
        return None
    jobs = _jobs(seen, now)
    if jobs:
        requested = next((one for one in operations if one.id == leave.operation_id), None)
        return f"waits for {jobs}{_deadline(leave, requested, now)}"
    if member.status == MemberStatus.DRAINING and seen.node_state:
        return f"waits until its node is drained; it is {seen.node_state}"
    return None


def _jobs(seen: WorkerNotes, now: datetime) -> str | None:
    """The jobs in the way, and until when they run at the latest."""
    listed = [str(one) for one in seen.jobs or []]
    count = max(len(listed), seen.jobs_remaining or 0)
    more = f" and {count - len(listed)} more" if count > len(listed) else ""
    running = f"job {', '.join(listed)}{more}" if listed else f"{count} job(s)"
    ends = f"end by {clock(seen.jobs_end_by, now)} at the latest" if seen.jobs_end_by else "no known end"
    parts = [f"{running} ({ends})"] if count else []
    if seen.jobs_naming_node:
        parts.append(f"job {', '.join(str(one) for one in seen.jobs_naming_node)}, which names the node")
    return " and ".join(parts) or None


def _deadline(leave: WorkerLeave, requested: Operation | None, now: datetime) -> str:
    """When the wait ends, and what happens then. The deadline of a decommission is in the instance's own note."""
    terms = requested.parameters if requested and not requested.of_instance else {}
    seconds = terms.get("deadline_seconds")
    if not isinstance(seconds, int) or seconds not in LONGEST_DEADLINE:
        return ""
    then = AT_DEADLINE.get(str(terms.get("on_deadline") or "give_up"), "the operation decides")
    return f"; at the deadline, {clock(leave.started_at + timedelta(seconds=seconds), now)}, {then}"
