"""Who holds a member, and the fence under which its host is changed. Pure.

A claim of a member stands in its `adapter_detail`: `claimed_by`, `lease_expires_at` and `fence`, a number that only
grows. Every play carries the fence of each member whose host it changes, and a host refuses a smaller one than it has
seen. The invariant: **no two claims change a host under the same fence, and the later claim has the larger one.**

- A new fence is one more than the record's, written with If-Match after the claim was taken, so the platform puts the
  fences of all runners in one order. A play uses a fence that its own tick has written, never one that was only read.
- A runner that has lost its claim cannot take a larger fence later: its write meets another ETag, and reading again
  shows that the claim, or that of the operation, is another runner's.
- Each tick takes new fences, since each tick claims again. Within a tick a member gets one new fence.
- Plays that only give commands through the lead's host for an operation on other members share its fence as it was
  read. It grows when the holder of such an operation vanished without handing it back.
"""

from datetime import datetime, timedelta

from runner.model import records
from runner.model.member_notes import FENCE as FENCE
from runner.model.member_notes import MemberNotes
from runner.model.platform import Member, Operation, OperationStatus
from runner.model.records import Detail, NoteProblem

UNREADABLE = "fence_unreadable"
# Errors of a member that is left alone because a note of it cannot be read.
NOTE_CODES = (UNREADABLE, records.UNREADABLE, records.NEWER)
# A lease that is handed back ends at its last write. One that ends later has expired.
_HANDED_BACK = timedelta(seconds=2)


def fence(member: Member) -> int | None:
    """The fence of the member's last claim; 0: none so far; None: it cannot be read."""
    return None if member.notes.is_unreadable(FENCE) else member.notes.fence or 0


def lease(member: Member) -> tuple[str | None, datetime | None]:
    """Who claimed the member, and until when."""
    return member.notes.claimed_by, member.notes.lease_expires_at


def held(runner_id: str | None, until: datetime | None) -> Detail:
    """The same two fields for a claim; both None for a member that is handed back."""
    return MemberNotes(claimed_by=runner_id, lease_expires_at=until).changes


def unreadable_claim(member: Member) -> NoteProblem | None:
    """What is wrong with the first part of the claim that cannot be read: it may be another runner's claim."""
    parts = ("claimed_by", "lease_expires_at", FENCE)
    return next((one for one in member.notes.problems if one.name in parts), None)


def is_held_by(runner_id: str, member: Member) -> bool:
    return lease(member)[0] == runner_id


def other_holder(runner_id: str, now: datetime, by: str | None, until: datetime | None) -> tuple[str, datetime] | None:
    """Another runner whose lease still runs, and until when; None if the lease is ours, has ended or is no lease."""
    return (by, until) if by and by != runner_id and until and until > now else None


def concerns(operation: Operation, member: Member) -> bool:
    """Whether the operation is at work on the member: an operation on the instance is on all of them."""
    return operation.of_instance or is_about(operation, member)


def is_about(operation: Operation, member: Member) -> bool:
    """Whether the operation names the member, made it, or takes it out."""
    notes = member.notes
    at = (notes.operation_id, notes.leave.operation_id if notes.leave else None)
    return member.id in operation.member_ids or operation.id in at


def ran_out(operation: Operation) -> bool:
    """Whether its last holder vanished: the lease expired, so that runner may still be at work."""
    if operation.status != OperationStatus.RUNNING or operation.lease_expires_at is None:
        return False
    written = operation.updated_at
    return written is None or operation.lease_expires_at - written > _HANDED_BACK


def is_first_claim(operation: Operation) -> bool:
    """Whether no runner claimed the operation before, so that no other runner can have made its members."""
    return operation.attempt <= 1
