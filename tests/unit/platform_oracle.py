"""What the platform refuses: by the contract, asked by `settle` about every write that is decided.

A refused write is decided again at every tick, so the instance would be stuck with it.
"""

import json
from typing import Any

from runner.model.attached import AttachedProject
from runner.model.plan import Claim, Finish, NewMember, Refuse, SetAttachment, SetInstance, SetMember, Step
from runner.model.platform import Member, Operation
from runner.model.world import World

MOST_BYTES = 16 * 1024


def check_accepted(now: World, step: Step) -> None:
    match step:
        case SetMember(member=member, status=status, detail=detail):
            _check_member(now, member, status)
            _check_size("adapter_detail", member.adapter_detail | detail)
        case Claim(subject=Member() as member, status=status):
            _check_member(now, member, status)
        case Claim(subject=Operation() as operation):
            _check_operation(now, operation, "running")
            _check_free(now, operation)
        case NewMember(detail=detail):
            assert now.instance.status != "deleted", "a deleted instance gets no member"
            _check_size("adapter_detail", detail)
        case SetInstance(status=status, detail=detail, access=access):
            _check_instance(str(now.instance.status), str(status))
            _check_size("status_detail", detail)
            _check_size("access", access)
        case SetAttachment(attachment=attachment, changes=changes):
            _check_attachment(now, attachment, changes)
        case Finish(operation=operation, status=status, result=result, error=error):
            _check_operation(now, operation, status)
            _check_ours(now, operation)
            assert status != "failed" or error, "a failed operation needs its error"
            _check_size("result", result)
        case Refuse(operation=operation):
            _check_operation(now, operation, "failed")


def _check_member(now: World, member: Member, status: str) -> None:
    stored = next((one for one in now.members if one.id == member.id), None)
    assert stored is not None, f"{member.id} does not exist"
    assert stored.status != "deleted" or status == "deleted", "a deleted member stays deleted"


def _check_attachment(now: World, attachment: AttachedProject, changes: dict[str, Any]) -> None:
    assert attachment in now.attachments, "it is written on the newest copy"
    old, new = attachment.status, changes.get("status", attachment.status)
    assert old != "detached", "a detached attachment is final"
    assert new == old or (old, new) in (("requested", "active"), ("detaching", "detached")), f"{old} to {new}"
    own = [one for one in now.members if one.source_project_id == attachment.project_id and one.status != "deleted"]
    assert new != "detached" or not own, "a project with workers in the cluster is not detached"
    for name in ("adapter_detail", "status_detail", "access"):
        _check_size(name, changes.get(name))


def _check_instance(old: str, new: str) -> None:
    stays = old == new
    assert stays or old != "deleted", "a deleted instance stays deleted"
    assert stays or old != "deleting" or new == "deleted", "a deletion cannot be taken back"
    assert stays or new != "requested", "an instance does not become requested again"


def _check_operation(now: World, operation: Operation, new: str) -> None:
    found = [one for one in (*now.operations, *now.instance_operations) if one.id == operation.id]
    assert found, f"{operation.operation} has ended already"
    from_accepted = new in ("running", "failed")
    assert found[0].status != "accepted" or from_accepted, f"an operation cannot go from accepted to {new}"


def _check_free(now: World, operation: Operation) -> None:
    stored, until = operation, operation.lease_expires_at
    assert stored.claimed_by == now.runner_id or until is None or until <= now.now, (
        f"{stored.claimed_by} holds its lease"
    )


def _check_ours(now: World, operation: Operation) -> None:
    """Work is ended by the runner that did it. A refusal names no runner, and the platform takes it from any."""
    stored = next(one for one in (*now.operations, *now.instance_operations) if one.id == operation.id)
    assert stored.claimed_by == now.runner_id, "an operation is ended by the runner that claimed it"


def _check_size(name: str, value: Any) -> None:
    size = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str).encode(errors="replace"))
    assert size <= MOST_BYTES, f"{name} is {size} bytes as JSON"
