"""Reads which allocations other app instances of the project have."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from uuid import UUID

from runner import log
from runner.model.errors import Forbidden, NotFound, PlatformError
from runner.model.neighbours import Neighbours
from runner.model.platform import AppInstance, InstanceStatus, Member, MemberStatus
from runner.platform.answers import Listing
from runner.platform.client import Client

LISTS_AT_ONCE = 16
# Another instance must not delay ours: its records are asked for once, and an answer is waited for this long.
WAIT_SECONDS = 3.0


def read(client: Client, instance: AppInstance) -> Neighbours:
    """One list of the project's instances, and one of the members of each other instance, side by side.

    A record that we may not read, or of another app and not readable, is left out. So is a member list of our own app
    that the platform fails to return: a host of our app refuses another instance itself. A host of another app does
    not, so its list is reported, and the next tick asks again.
    """
    holders: dict[UUID, str] = {}
    try:
        found = client.instances()
    except Forbidden:
        return Neighbours()
    ours = [one for one in found.unreadable if one.app_slug in (None, instance.app_slug)]
    unreadable = [f"app instance {one.id}" for one in ours if one.status != InstanceStatus.DELETED]
    others = [one for one in found if one.id != instance.id and one.status != InstanceStatus.DELETED]
    for other, members in zip(others, _member_lists(client, others), strict=True):
        if isinstance(members, Forbidden | NotFound):
            continue
        if isinstance(members, PlatformError):
            log.get(neighbour=str(other.id)).warning(
                "member list not readable", error_code=members.code, problem=str(members)
            )
            unreadable += [f"the member list of instance {other.id}"] if other.app_slug != instance.app_slug else []
            continue
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


def _member_lists(client: Client, others: Sequence[AppInstance]) -> list[Listing[Member] | PlatformError]:
    def members_of(other: AppInstance) -> Listing[Member] | PlatformError:
        try:
            with client.clone(patience=0, timeout=WAIT_SECONDS) as own:
                return own.members(other.id)
        except PlatformError as error:
            return error

    with ThreadPoolExecutor(LISTS_AT_ONCE) as pool:
        # The threads log with the ids of the tick.
        reads = [pool.submit(copy_context().run, members_of, other) for other in others]
        return [one.result() for one in reads]
