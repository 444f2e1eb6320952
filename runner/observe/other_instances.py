"""Reads which allocations other app instances of the project have."""

from uuid import UUID

from runner import log
from runner.model.errors import Forbidden, NotFound, PlatformError
from runner.model.neighbours import Neighbours
from runner.model.platform import AppInstance, InstanceStatus, MemberStatus
from runner.platform.client import Client


def read(client: Client, instance: AppInstance) -> Neighbours:
    """One list of the project's instances, and one of the members of each other instance.

    A record that we may not read, or of another app and not readable, is left out: the mark on the host decides then.
    A list that the platform fails to return may be readable in the next tick, so it is reported.
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
            # Only an add or a deploy waits for it. Further lists are not read, because each could take as long to fail.
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
