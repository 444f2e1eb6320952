"""Other app instances of the project: which allocations they have. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from runner.model.components import Components
from runner.model.platform import Member, MemberStatus, Operation


@dataclass(frozen=True)
class Neighbours:
    """Allocations that members of other instances are on, as far as we may read them."""

    holders: Mapping[UUID, str] = field(default_factory=lambda: MappingProxyType({}))
    # The record or list that could not be read: whether an allocation is free is unknown then.
    unreadable: str | None = None


def unjoined(operation: Operation, members: Iterable[Member], components: Components) -> list[UUID]:
    """Allocations that an operation is to make members of and has not begun with."""
    if operation.operation not in components.joining:
        return []
    joined = {one.allocation_id for one in members if one.notes.operation_id == operation.id}
    return [one for one in operation.allocation_ids if one not in joined]


def matter(operations: Iterable[Operation], members: Iterable[Member], components: Components) -> bool:
    """Whether an allocation is about to be deployed or joined, so that other instances on it must be read."""
    members = list(members)
    deploys = any(components.is_lead(one) and is_undeployed(one) for one in members)
    return deploys or any(unjoined(one, members, components) for one in operations)


def is_undeployed(member: Member) -> bool:
    """Whether the member's bootstrap has not begun."""
    return member.status == MemberStatus.REQUESTED and not member.notes.stopped
