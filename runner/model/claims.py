"""Who holds a member, and the number under which its host is changed. Pure.

A claim of a member stands in its `adapter_detail`: `claimed_by`, `lease_expires_at` and `fence`, a number that only
grows. Every play carries a number for each member whose host it changes, and a host refuses a smaller one than it has
seen. The invariant: **no two claims change a host under the same number, and the later claim has the larger one.**

- A number is one more than the record's, written with If-Match after the claim was taken, so the platform puts the
  numbers of all runners in one order. A play uses a number that its own tick has written, never one that was only read.
- A runner that has lost its claim cannot take a larger number later: its write meets another ETag, and reading again
  shows that the claim, or that of the operation, is another runner's.
- Each tick takes numbers of its own, since each tick claims anew. Within a tick a member is numbered once.
- Plays that only speak with the controller for an operation on workers (drain, delete a node) share its number as it
  was read. It grows when the holder of such an operation vanished without handing it back.
"""

from datetime import datetime, timedelta

from runner.model.platform import Member, Operation, OperationStatus
from runner.model.shapes import is_count, read_time

FENCE = "fence"
UNREADABLE = "fence_unreadable"
# A lease that is handed back ends when that is written. One that ends later than its last write ran out by itself.
_HANDED_BACK = timedelta(seconds=2)


def number(member: Member) -> int | None:
    """The last number that was given to a claim of this member; 0: none so far; None: it cannot be read."""
    known = member.adapter_detail.get(FENCE)
    if known is None:
        return 0
    return int(known) if is_count(known) else None


def lease(member: Member) -> tuple[str | None, datetime | None]:
    """Who claimed the member, and until when."""
    known = member.adapter_detail
    return known.get("claimed_by"), read_time(known.get("lease_expires_at"))


def is_held_by(runner_id: str, member: Member) -> bool:
    return lease(member)[0] == runner_id


def other_holder(runner_id: str, now: datetime, member: Member) -> tuple[str, datetime] | None:
    """Another runner whose claim of the member still runs, and until when."""
    by, until = lease(member)
    return (by, until) if by and by != runner_id and until and until > now else None


def concerns(operation: Operation, member: Member) -> bool:
    """Whether the operation is at work on the member: an operation on the instance is on all of them."""
    known = member.adapter_detail
    at = (known.get("operation_id"), (known.get("leave") or {}).get("operation_id"))
    return operation.of_instance or member.id in operation.member_ids or str(operation.id) in at


def ran_out(operation: Operation) -> bool:
    """Whether its last holder vanished: the lease ended by itself, so that runner may still be at work."""
    if operation.status != OperationStatus.RUNNING or operation.lease_expires_at is None:
        return False
    written = operation.updated_at
    return written is None or operation.lease_expires_at - written > _HANDED_BACK


def is_first_claim(operation: Operation) -> bool:
    """Whether nobody claimed the operation before: then nobody else can have made its members."""
    return operation.attempt <= 1
