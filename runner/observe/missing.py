"""Records that a list should have and does not: each is asked for at its own address before anything is concluded.

A list can leave out what it cannot show, and a record in it may be unreadable. Only an answer about the one record
counts: its status, or 404. Any other answer leaves it unknown.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

from runner import log
from runner.model import progress
from runner.model.errors import NotFound, PlatformError
from runner.model.platform import (
    NOT_FOUND,
    Allocation,
    AppInstance,
    InstanceStatus,
    Member,
    MemberStatus,
    Operation,
    OperationStatus,
    Unreadable,
    _Object,
)
from runner.platform.client import Client

OPEN = (OperationStatus.ACCEPTED, OperationStatus.RUNNING)
PROBLEM_CHARS = 200
T = TypeVar("T", bound=_Object)


def allocations(
    client: Client, listed: Mapping[UUID, Allocation], members: Iterable[Member], operations: Iterable[Operation]
) -> tuple[dict[UUID, Allocation], dict[UUID, Unreadable]]:
    """Allocations that members and open operations name and the list does not have, and those that stay unknown."""
    named = {one.allocation_id for one in members if one.allocation_id and one.status != MemberStatus.DELETED}
    named |= {allocation_id for one in operations for allocation_id in one.allocation_ids}
    found: dict[UUID, Allocation] = {}
    unknown: dict[UUID, Unreadable] = {}
    for allocation_id in sorted(named - set(listed)):
        answer = _ask("allocation", allocation_id, lambda: client.allocation(allocation_id))  # noqa: B023 - called at once
        if isinstance(answer, Unreadable):
            unknown[allocation_id] = answer
        elif answer is not None and answer.project_id not in (None, client.project):
            unknown[allocation_id] = Unreadable("allocation", str(allocation_id), "project_id is another")
        else:
            found[allocation_id] = answer or Allocation(id=allocation_id, status=NOT_FOUND)
    return found, unknown


def member_operations(
    client: Client, instance: AppInstance, members: Iterable[Member], open_now: Iterable[Operation]
) -> tuple[list[Operation], list[Unreadable]]:
    """Operations that members' notes call under way and that are not among the open ones, if they are open still."""
    if instance.status == InstanceStatus.DELETING:
        return [], []  # a teardown goes on whatever becomes of the operations
    named = {under_way for one in members if (under_way := progress.operation_under_way(one))}
    missing = sorted(named - {str(one.id) for one in open_now})
    return _open(missing, "member_operation", lambda one: client.member_operation(instance.id, one))


def instance_operations(
    client: Client, instance: AppInstance, open_now: Sequence[Operation]
) -> tuple[list[Operation], list[Unreadable]]:
    """The same for the operation on the instance that its own note calls under way."""
    note = (instance.status_detail or {}).get("lifecycle")
    named = str(note.get("operation_id")) if progress.is_under_way(note) and isinstance(note, dict) else None
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
            continue  # a note that names no record: there is nothing to ask for
        answer = _ask(kind, operation_id, lambda: ask(operation_id))  # noqa: B023 - called at once
        if isinstance(answer, Unreadable):
            unreadable.append(answer)
        elif answer is not None and answer.status in OPEN:
            found.append(answer)
    return found, unreadable


def _ask(kind: str, record_id: UUID, ask: Callable[[], T]) -> T | Unreadable | None:
    """The record, None if there is no such one, or why that is not known."""
    try:
        found = ask()
    except NotFound:
        return None
    except PlatformError as error:
        problem = f"{error.code}, HTTP {error.status}" if error.status else error.code
    else:
        if found.id == record_id:
            return found
        problem = "another record came back"
    odd = Unreadable(kind, str(record_id), problem[:PROBLEM_CHARS])
    log.get(id=odd.id).warning("record not readable", kind=kind, problem=odd.problem)
    return odd
