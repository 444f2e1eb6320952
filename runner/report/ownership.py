"""Checks whether this runner still holds a member that another client has written to."""

import contextlib
from collections.abc import Iterable
from uuid import UUID

from runner.model.claims import is_held_by
from runner.model.components import Components
from runner.model.errors import NotFound
from runner.model.platform import Member, MemberStatus, Operation, OperationStatus
from runner.model.progress import at_work
from runner.platform.client import Client
from runner.report.leases import LostLease


def check_still_ours(
    client: Client, runner_id: str, instance_id: UUID, newest: Member, members: Iterable[Member], components: Components
) -> None:
    """LostLease if another runner holds the member, by its own claim or by that of its operation."""
    origin = at_work(newest)
    if components.is_lead(newest) and newest.status != MemberStatus.READY:
        if not is_held_by(runner_id, newest):
            raise LostLease(f"{newest.component_key} {newest.id} is held by another runner")
    elif origin == instance_id:
        # A decommission without an operation is claimed through one of the members.
        for holder in members:
            if is_held_by(runner_id, holder) and not is_held_by(runner_id, client.member(instance_id, holder.id)):
                raise LostLease(f"the decommission of {instance_id} is held by another runner")
    elif origin:
        operation = _operation(client, instance_id, origin)
        under_way = operation is not None and operation.status == OperationStatus.RUNNING
        if operation and under_way and operation.claimed_by not in (None, runner_id):
            raise LostLease(f"{operation.operation} {operation.id} is held by another runner")


def _operation(client: Client, instance_id: UUID, operation_id: UUID) -> Operation | None:
    """An operation on members or on the instance: a member's note does not say which."""
    for ask in (client.member_operation, client.instance_operation):
        with contextlib.suppress(NotFound):
            return ask(instance_id, operation_id)
    return None
