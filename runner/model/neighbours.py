"""Other app instances of the project: which allocations they have. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from runner.model.platform import Member, MemberStatus, Operation

JOINING = ("add", "replace")


@dataclass(frozen=True)
class Neighbours:
    """Allocations that members of other instances are on, as far as we may read them."""

    holders: Mapping[UUID, str] = field(default_factory=lambda: MappingProxyType({}))
    # The record or list that could not be read: whether an allocation is free is unknown then.
    unreadable: str | None = None


def unjoined(operation: Operation, members: Iterable[Member]) -> list[UUID]:
    """Allocations that an operation is to make workers of and has not begun with."""
    if operation.operation not in JOINING:
        return []
    joined = {one.allocation_id for one in members if one.notes.operation_id == operation.id}
    return [one for one in operation.allocation_ids if one not in joined]


def matter(operations: Iterable[Operation], members: Iterable[Member]) -> bool:
    """Whether a deploy or an add is about to begin on an allocation, so that other instances on it must be read."""
    members = list(members)
    return any(is_undeployed(one) for one in members) or any(unjoined(one, members) for one in operations)


def is_undeployed(member: Member) -> bool:
    """Whether the member is a controller whose bootstrap has not begun."""
    begun = member.status != MemberStatus.REQUESTED or member.notes.stopped
    return member.component_key == "controller" and not begun
