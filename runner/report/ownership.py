"""Whose a member is at this moment: ours, or another runner's. Asked when somebody else has written to it."""

import contextlib
from collections.abc import Iterable
from uuid import UUID

from runner.model.claims import is_held_by
from runner.model.errors import NotFound
from runner.model.names import CONTROLLER
from runner.model.platform import Member, MemberStatus, Operation, OperationStatus
from runner.platform.client import Client
from runner.report.leases import LostLease


def at_work(member: Member) -> str | None:
    """The operation that is at a member now: the one that takes it out, else the one that brought it."""
    leaving = member.adapter_detail.get("leave") or {}
    out = leaving.get("operation_id") if leaving.get("verdict") is None else None
    return out or member.adapter_detail.get("operation_id")


def check_still_ours(
    client: Client, runner_id: str, instance_id: UUID, newest: Member, known: Iterable[Member]
) -> None:
    """Whoever is at the member now must be us: by its own claim, or by that on what is done to it."""
    origin = at_work(newest)
    if newest.component_key == CONTROLLER and newest.status != MemberStatus.READY:
        if not is_held_by(runner_id, newest):
            raise LostLease(f"{newest.component_key} {newest.id} is another runner's now")
    elif origin == str(instance_id):
        # A teardown that nobody asked for is claimed by one of its members.
        for keeper in known:
            if is_held_by(runner_id, keeper) and not is_held_by(runner_id, client.member(instance_id, keeper.id)):
                raise LostLease(f"the teardown of {instance_id} is another runner's now")
    elif origin:
        operation = _operation(client, instance_id, UUID(origin))
        under_way = operation is not None and operation.status == OperationStatus.RUNNING
        if operation and under_way and operation.claimed_by not in (None, runner_id):
            raise LostLease(f"{operation.operation} {operation.id} is another runner's now")


def _operation(client: Client, instance_id: UUID, operation_id: UUID) -> Operation | None:
    """One of a member or of the instance: a member's note does not tell which."""
    for ask in (client.member_operation, client.instance_operation):
        with contextlib.suppress(NotFound):
            return ask(instance_id, operation_id)
    return None
