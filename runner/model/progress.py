"""Whether a member is half way through an operation, by its own record. Pure."""

from uuid import UUID

from runner.model.components import Components
from runner.model.platform import UNFINISHED, Member, MemberStatus


def is_stopped(member: Member) -> bool:
    """Stopped with its instance and to be started with it: it does not count as half way."""
    return member.status in UNFINISHED and member.notes.stopped is not None


def at_work(member: Member) -> UUID | None:
    """The operation that works on a member or last did: the one that takes it out, else the one that made it."""
    notes = member.notes
    return notes.leave.operation_id if notes.leave and notes.leave.is_under_way else notes.operation_id


def operation_under_way(member: Member, components: Components) -> UUID | None:
    """The operation under way on a member by its own notes: the one that takes it out, or the one that made it.

    The lead is made by the deploy and not by an operation.
    """
    if components.is_lead(member) or member.status == MemberStatus.DELETED or is_stopped(member):
        return None
    leave = member.notes.leave
    leaving = leave is not None and leave.is_under_way
    return at_work(member) if leaving or member.status in UNFINISHED else None
