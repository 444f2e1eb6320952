"""Other app instances of the project: which allocations they have."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from runner import log
from runner.platform.client import Client
from runner.platform.errors import Forbidden, NotFound, PlatformError
from runner.platform.models import AppInstance, InstanceStatus, Member, MemberStatus, Operation

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


def read(client: Client, instance: AppInstance) -> Neighbours:
    """One list of the project's instances, and one of the members of each other instance.

    A record that we may not read, and a record of another app that does not fit our model, is left out: the mark on the
    host decides then. A list that the platform fails to give is different: it may be readable in the next tick.
    """
    holders: dict[UUID, str] = {}
    try:
        found = client.instances()
    except Forbidden:
        return Neighbours()
    ours = [one for one in found.unreadable if one.app_slug in (None, instance.app_slug)]
    unreadable = [f"app instance {one.id}" for one in ours if one.status != InstanceStatus.DELETED]
    for other in found:
        if other.id == instance.id or other.status == InstanceStatus.DELETED:
            continue
        try:
            members = client.members(other.id)
        except (Forbidden, NotFound):
            continue
        except PlatformError as error:
            # Only the add or the deploy waits. The other lists are not asked for: each could use up our patience.
            log.get(neighbour=str(other.id)).warning("member list not readable", problem=str(error))
            return Neighbours(holders, f"the member list of instance {other.id}")
        if other.app_slug == instance.app_slug:
            odd = [one for one in members.unreadable if one.status != MemberStatus.DELETED]
            unreadable += [f"member {one.id} of instance {other.id}" for one in odd]
        name = f"{other.app_slug} instance {other.id}"
        holders |= {
            member.allocation_id: name
            for member in members
            if member.allocation_id and member.status != MemberStatus.DELETED
        }
    return Neighbours(holders, unreadable[0] if unreadable else None)
