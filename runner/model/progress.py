"""Whether a member is half way through an operation, by its own record. Pure."""

from uuid import UUID

from runner.model.names import CONTROLLER
from runner.model.platform import Member, MemberStatus


def is_stopped(member: Member) -> bool:
    """Stopped with its instance and to be started with it: it does not count as half way."""
    unfinished = member.status in (MemberStatus.REQUESTED, MemberStatus.RECONCILING)
    return unfinished and member.notes.stopped is not None


def operation_under_way(member: Member) -> UUID | None:
    """The operation under way on a worker by its own notes: its drain, resume or removal, or its add."""
    if member.component_key == CONTROLLER or member.status == MemberStatus.DELETED or is_stopped(member):
        return None
    notes = member.notes
    if notes.leave and notes.leave.is_under_way:
        return notes.leave.operation_id
    unfinished = member.status in (MemberStatus.REQUESTED, MemberStatus.RECONCILING)
    return notes.operation_id if unfinished else None
