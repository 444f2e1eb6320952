"""Names of members and groups in the inventory."""

from collections.abc import Iterable
from uuid import UUID

from runner.model.platform import AppInstance, Member


def host_name(member: Member) -> str:
    """The inventory name of a member: short enough to type, and made of nothing the API could have chosen freely."""
    return f"{member.component_key}-{member.id.hex[:8]}"


def instance_group(instance: AppInstance) -> str:
    return f"instance_{str(instance.id).replace('-', '_')}"


def touched(members: Iterable[Member]) -> set[UUID | None]:
    """Allocations whose hosts a member of the instance has changed and not been cleaned from."""
    return {member.allocation_id for member in members if member.notes.host_touched and not member.notes.host_cleaned}
