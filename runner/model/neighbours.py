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
    # A record or list of our app, or a list that the platform failed to give: it is not known whether an allocation is
    # free.
    unreadable: str | None = None


def unjoined(operation: Operation, members: Iterable[Member]) -> list[UUID]:
    """Allocations that an operation is to make workers of and has not begun with."""
    if operation.operation not in JOINING:
        return []
    joined = {one.allocation_id for one in members if one.adapter_detail.get("operation_id") == str(operation.id)}
    return [one for one in operation.allocation_ids if one not in joined]


def matter(operations: Iterable[Operation], members: Iterable[Member]) -> bool:
    """Whether a deploy or an add is about to begin on an allocation, so that it must be known who else is there."""
    members = list(members)
    return any(is_undeployed(one) for one in members) or any(unjoined(one, members) for one in operations)


def is_undeployed(member: Member) -> bool:
    """Whether it is a controller with which nothing was begun."""
    begun = member.status != MemberStatus.REQUESTED or member.adapter_detail.get("stopped")
    return member.component_key == "controller" and not begun
