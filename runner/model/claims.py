"""Who holds a member, and the number under which its host is changed. Pure.

A claim of a member stands in its `adapter_detail`: `claimed_by`, `lease_expires_at` and `fence`, a number that only
grows. Every play carries a number for each member whose host it changes, and a host refuses a smaller one than it has
seen. The invariant: **no two claims change a host under the same number, and the later claim has the larger one.**

- A number is one more than the record's, written with If-Match after the claim was taken, so the platform puts the
  numbers of all runners in one order. A play uses a number that its own tick has written, never one that was only read.
- A runner that has lost its claim cannot take a larger number later: its write meets another ETag, and reading again
  shows that the claim, or that of the operation, is another runner's.
- Each tick takes numbers of its own, since each tick claims again. Within a tick a member is numbered once.
- Plays that only speak with the controller for an operation on workers (drain, delete a node) share its number as it
  was read. It grows when the holder of such an operation vanished without handing it back.
"""

from datetime import datetime, timedelta

from runner.model import records
from runner.model.member_notes import FENCE as FENCE
from runner.model.platform import Member, Operation, OperationStatus
from runner.model.records import NoteProblem

UNREADABLE = "fence_unreadable"
# Errors of a member that is left alone because a note of it cannot be read.
NOTE_CODES = (UNREADABLE, records.UNREADABLE, records.NEWER)
# A lease that is handed back ends at its last write. One that ends later has expired.
_HANDED_BACK = timedelta(seconds=2)


def number(member: Member) -> int | None:
    """The last number that was given to a claim of this member; 0: none so far; None: it cannot be read."""
    return None if member.notes.is_unreadable(FENCE) else member.notes.fence or 0


def lease(member: Member) -> tuple[str | None, datetime | None]:
    """Who claimed the member, and until when."""
    return member.notes.claimed_by, member.notes.lease_expires_at


def unreadable_claim(member: Member) -> NoteProblem | None:
    """What is wrong with the first part of the claim that cannot be read: it may be another runner's claim."""
    parts = ("claimed_by", "lease_expires_at", FENCE)
    return next((one for one in member.notes.problems if one.name in parts), None)


def is_held_by(runner_id: str, member: Member) -> bool:
    return lease(member)[0] == runner_id


def other_holder(runner_id: str, now: datetime, member: Member) -> tuple[str, datetime] | None:
    """Another runner whose claim of the member still runs, and until when."""
    by, until = lease(member)
    return (by, until) if by and by != runner_id and until and until > now else None


def concerns(operation: Operation, member: Member) -> bool:
    """Whether the operation is at work on the member: an operation on the instance is on all of them."""
    notes = member.notes
    at = (notes.operation_id, notes.leave.operation_id if notes.leave else None)
    return operation.of_instance or member.id in operation.member_ids or operation.id in at


def ran_out(operation: Operation) -> bool:
    """Whether its last holder vanished: the lease expired, so that runner may still be at work."""
    if operation.status != OperationStatus.RUNNING or operation.lease_expires_at is None:
        return False
    written = operation.updated_at
    return written is None or operation.lease_expires_at - written > _HANDED_BACK


def is_first_claim(operation: Operation) -> bool:
    """Whether no runner claimed the operation before, so that no other runner can have made its members."""
    return operation.attempt <= 1
