"""Reads records that other records name and a list does not have, each at its own address.

A list can be incomplete, and a record in it may be unreadable. Only the answer about the record itself counts: its
status, or 404. After any other answer the record is unknown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from runner import log
from runner.model import progress
from runner.model.components import Components
from runner.model.errors import NotFound, PlatformError
from runner.model.platform import (
    NOT_FOUND,
    OPEN,
    Allocation,
    AppInstance,
    InstanceStatus,
    Member,
    MemberStatus,
    Operation,
    PlatformRecord,
    Unreadable,
)
from runner.platform.client import Client
from runner.platform.records import NOT_OURS

PROBLEM_CHARS = 200
T = TypeVar("T", bound=PlatformRecord)


def allocations(
    client: Client, listed: Mapping[UUID, Allocation], members: Iterable[Member], operations: Iterable[Operation]
) -> tuple[dict[UUID, Allocation], dict[UUID, Unreadable]]:
    """Allocations that members and operations name and the list does not have, and those that stay unknown."""
    named = {one.allocation_id for one in members if one.allocation_id and one.status != MemberStatus.DELETED}
    named |= {allocation_id for one in operations for allocation_id in one.allocation_ids}
    found: dict[UUID, Allocation] = {}
    unknown: dict[UUID, Unreadable] = {}
    for allocation_id in sorted(named - set(listed)):
        answer = _ask("allocation", allocation_id, lambda: client.allocation(allocation_id))  # noqa: B023 - called at once
        if isinstance(answer, Unreadable):
            unknown[allocation_id] = answer
        elif answer is not None and not client.scope.has_allocation(answer):
            unknown[allocation_id] = Unreadable("allocation", str(allocation_id), NOT_OURS)
        else:
            found[allocation_id] = answer or Allocation(id=allocation_id, status=NOT_FOUND)
    return found, unknown


def member_operations(
    client: Client,
    instance: AppInstance,
    members: Iterable[Member],
    open_now: Iterable[Operation],
    components: Components,
) -> tuple[list[Operation], list[Unreadable]]:
    """Operations that are under way by members' notes and are not in the list of open ones, if they are still open."""
    if instance.status == InstanceStatus.DELETING:
        return [], []  # a decommission does not depend on operations
    named = {str(under_way) for one in members if (under_way := progress.operation_under_way(one, components))}
    missing = sorted(named - {str(one.id) for one in open_now})
    return _open(missing, "member_operation", lambda one: client.member_operation(instance.id, one))


def instance_operations(
    client: Client, instance: AppInstance, open_now: Sequence[Operation]
) -> tuple[list[Operation], list[Unreadable]]:
    """The same for the operation that is under way by the instance's own note."""
    note = instance.notes.operation
    named = str(note.operation_id) if note and note.is_under_way else None
    if instance.status == InstanceStatus.DELETING or not named or named in {str(one.id) for one in open_now}:
        return [], []
    return _open([named], "instance_operation", lambda one: client.instance_operation(instance.id, one))


def _open(ids: Iterable[str], kind: str, ask: Callable[[UUID], Operation]) -> tuple[list[Operation], list[Unreadable]]:
    found: list[Operation] = []
    unreadable: list[Unreadable] = []
    for text in ids:
        try:
            operation_id = UUID(text)
        except ValueError:
            continue  # the note has no valid id
        answer = _ask(kind, operation_id, lambda: ask(operation_id))  # noqa: B023 - called at once
        if isinstance(answer, Unreadable):
            unreadable.append(answer)
        elif answer is not None and answer.status in OPEN:
            found.append(answer)
    return found, unreadable


def _ask(kind: str, record_id: UUID, ask: Callable[[], T]) -> T | Unreadable | None:
    """The record, None if it does not exist, or Unreadable if that is not known."""
    try:
        found = ask()
    except NotFound:
        return None
    except PlatformError as error:
        problem = f"{error.code}, HTTP {error.status}" if error.status else error.code
    else:
        if found.id == record_id:
            return found
        problem = "the answer has another id"
    odd = Unreadable(kind, str(record_id), problem[:PROBLEM_CHARS])
    log.get(id=odd.id).warning("record not readable", kind=kind, problem=odd.problem)
    return odd
