"""Contributions: an allocation of an attached project that a shared runtime may use, and the credential that opens it.

A contribution is also the grant of that credential. It ends when the worker on the allocation is reported deleted (the
app cleans the machine first), or when the operation that brought it ends without a worker.
"""

import uuid

from sandbox.platform import apps, attached, owners
from sandbox.platform.calls import Call
from sandbox.platform.errors import ApiError, validation_error
from sandbox.platform.store import Doc, Row, Tx

KIND = "contribution"
NOT_CONTRIBUTED: Doc = {"source_project_id": None, "access_credential_id": None}
UNDER_WAY = ("accepted", "running")
# The allocations with a member that is not deleted, of any instance or runtime.
USED = (
    "SELECT json_extract(doc, '$.allocation_id') FROM objects WHERE kind IN ('member', 'worker') AND status<>'deleted'"
)

# The allocations that are contributed to any runtime.
CONTRIBUTED = "SELECT json_extract(doc, '$.allocation_id') FROM objects WHERE kind='contribution' AND status='open'"


def open_ones(tx: Tx, runtime_id: str, project_id: str | None = None) -> list[Row]:
    return [row for row in tx.rows(KIND, project=project_id, parent=runtime_id) if row.doc["status"] == "open"]


def none(owner: Doc) -> Doc:
    """The fields of a member or an operation that no project contributed; an instance's have no such fields."""
    return NOT_CONTRIBUTED if owners.is_runtime(owner) else {}


def fields_of(call: Call, allocation_id: str) -> Doc:
    """Who contributed an allocation and what opens it; 404 for one that the runtime may not use."""
    runtime = call.current.doc
    if not owners.is_runtime(runtime):
        return none(runtime)
    for row in open_ones(call.tx, runtime["id"]):
        if row.doc["allocation_id"] == allocation_id:
            return {
                "source_project_id": row.doc["project_id"],
                "access_credential_id": row.doc["access_credential_id"],
            }
    call.tx.get("allocation", allocation_id, project=runtime["owner_project_id"])
    return NOT_CONTRIBUTED


def check_request(call: Call) -> Doc:
    """Whether the caller may request this operation on a runtime's members; returns whose request it is."""
    body, project = call.given.body, call.caller.project_id
    if not owners.is_runtime(call.current.doc):
        return none(call.current.doc)
    if project is None:
        if "access_credential_id" in body:
            raise validation_error("access_credential_id belongs to a project's contribution")
        for allocation_id in body.get("allocation_ids", []):
            fields_of(call, allocation_id)
        return NOT_CONTRIBUTED
    shared = apps.shared_runtime(apps.of(call.tx, call.current.doc))
    wanted = {name: body[name] for name in ("operation", "component_key")}
    if wanted == shared["contribution"]:
        _check_contribution(call, project)
    elif wanted == shared["withdrawal"]:
        _check_withdrawal(call, project)
    else:
        raise ApiError(
            403,
            "ownership_required",
            "a project may contribute and withdraw by the operations in the app's manifest, and request nothing else",
            contribution=shared["contribution"],
            withdrawal=shared["withdrawal"],
        )
    return {"source_project_id": project, "access_credential_id": body.get("access_credential_id")}


def _check_contribution(call: Call, project: str) -> None:
    body, runtime = call.given.body, call.current.doc
    attachment = attached.current(call.tx, runtime["id"], project)
    if not attached.may_contribute(attachment):
        raise ApiError(
            403,
            "contribution_not_allowed",
            "the project's attachment must be active with may_contribute; ask the tenant's administrator",
            attachment_status=attachment.doc["status"] if attachment else None,
        )
    if not body.get("allocation_ids") or body.get("member_ids") or "access_credential_id" not in body:
        raise validation_error("a contribution has allocation_ids, access_credential_id and no member_ids")
    call.tx.get("access_credential", body["access_credential_id"], project=project)
    taken = {row[0] for row in call.tx.sql.execute(USED)}
    taken |= {row[0] for row in call.tx.sql.execute(CONTRIBUTED)}
    for allocation_id in body["allocation_ids"]:
        call.tx.get("allocation", allocation_id, project=project)
        if allocation_id in taken:
            raise ApiError(409, "allocation_in_use", "the allocation is already in use", allocation_id=allocation_id)


def _check_withdrawal(call: Call, project: str) -> None:
    body = call.given.body
    if not body.get("member_ids") or body.get("allocation_ids") or "access_credential_id" in body:
        raise validation_error("a withdrawal has member_ids, no allocation_ids and no access_credential_id")
    for member_id in body["member_ids"]:
        call.tx.get(owners.RUNTIME.member, member_id, project=project, parent=call.current.doc["id"])


def grant(tx: Tx, operation: Doc) -> None:
    """Store the contributions of an operation that a project requested; none for any other operation."""
    if operation.get("source_project_id") is None:
        return
    for allocation_id in operation["allocation_ids"]:
        doc = {
            "id": str(uuid.uuid4()),
            "project_id": operation["source_project_id"],
            "allocation_id": allocation_id,
            "access_credential_id": operation["access_credential_id"],
            "operation_id": operation["id"],
            "status": "open",
        }
        tx.insert(KIND, doc, parent=operation["shared_runtime_id"])


def end_with_member(tx: Tx, member: Doc) -> None:
    """Call after a member was written: a deleted one ends its contribution."""
    if member.get("source_project_id") is not None and member["status"] == "deleted":
        _end(tx, member["shared_runtime_id"], {member["allocation_id"]})


def end_with_operation(tx: Tx, operation: Doc) -> None:
    """Call after an operation was written: one that is over ends those of its contributions without a member."""
    if operation.get("source_project_id") is not None and operation["status"] not in UNDER_WAY:
        used = {row[0] for row in tx.sql.execute(USED)}
        own = [row.doc for row in open_ones(tx, operation["shared_runtime_id"])]
        over = {one["allocation_id"] for one in own if one["operation_id"] == operation["id"]} - used
        _end(tx, operation["shared_runtime_id"], over)


def _end(tx: Tx, runtime_id: str, allocation_ids: set[str]) -> None:
    for row in open_ones(tx, runtime_id):
        if row.doc["allocation_id"] in allocation_ids:
            tx.save(row, {"status": "ended"})


def cancel_unclaimed(tx: Tx, runtime_id: str, project_id: str) -> None:
    """Cancel the project's contributions that are not claimed yet."""
    for row in tx.rows(owners.RUNTIME.member_operation, project=project_id, parent=runtime_id):
        if row.doc["allocation_ids"] and row.doc["status"] == "accepted":
            end_with_operation(tx, tx.save(row, {"status": "cancelled"}).doc)
