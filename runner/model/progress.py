"""Whether a member or an instance is half way through an operation, by its own record. Pure."""

from runner.model.names import CONTROLLER
from runner.model.platform import Member, MemberStatus


def is_stopped(member: Member) -> bool:
    """Taken down with its instance, and to come back with it: not half way, though nothing of it is started."""
    unfinished = member.status in (MemberStatus.REQUESTED, MemberStatus.RECONCILING)
    return unfinished and isinstance(member.adapter_detail.get("stopped"), dict)


def operation_under_way(member: Member) -> str | None:
    """The operation that a worker's own notes call under way: the one that takes it out, or the one that brings it."""
    if member.component_key == CONTROLLER or member.status == MemberStatus.DELETED or is_stopped(member):
        return None
    leaving = member.adapter_detail.get("leave") or {}
    if leaving and leaving.get("verdict") is None:
        return leaving.get("operation_id")
    unfinished = member.status in (MemberStatus.REQUESTED, MemberStatus.RECONCILING)
    return member.adapter_detail.get("operation_id") if unfinished else None


def is_under_way(lifecycle: object) -> bool:
    """Whether the note of an instance operation has no verdict yet."""
    return isinstance(lifecycle, dict) and lifecycle.get("verdict") is None
