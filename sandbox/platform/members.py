"""Members of an instance: the platform keeps their allocation and status; the app gives them their meaning."""

import uuid

from sandbox.platform.api import Call, Reply, operation, shown
from sandbox.platform.errors import invalid_transition
from sandbox.platform.listing import page_of
from sandbox.platform.opaque import check_size
from sandbox.platform.store import Doc, Row

KIND = "member"
TERMINAL = "deleted"


def add(
    call: Call,
    instance: Doc,
    component_key: str,
    allocation_id: str,
    *,
    status: str = "requested",
    detail: Doc | None = None,
    correlation_id: str | None = None,
) -> Row:
    return call.tx.insert(
        KIND,
        {
            "id": str(uuid.uuid4()),
            "org_id": instance["org_id"],
            "project_id": instance["project_id"],
            "app_instance_id": instance["id"],
            "component_key": component_key,
            "allocation_id": allocation_id,
            "status": status,
            "adapter_detail": detail or {},
            "correlation_id": correlation_id or call.correlation_id,
        },
        parent=instance["id"],
    )


def _find(call: Call) -> Row:
    return call.tx.get(KIND, call.given.path["member_id"], project=call.project, parent=call.current.doc["id"])


@operation("listMembers")
def list_members(call: Call) -> Reply:
    return page_of(call, KIND, of_instance=True)


@operation("getMember")
def get_member(call: Call) -> Reply:
    return shown(_find(call), kind=KIND)


@operation("createMember")
def create_member(call: Call) -> Reply:
    call.require_adapter()
    call.require_not_deleted()
    body = call.given.body
    check_size("adapter_detail", body.get("adapter_detail"))
    row = add(
        call,
        call.current.doc,
        body["component_key"],
        body["allocation_id"],
        status=body.get("status", "requested"),
        detail=body.get("adapter_detail"),
        correlation_id=body.get("correlation_id"),
    )
    return shown(row, kind=KIND, status=201, changes=body)


@operation("updateMember")
def report(call: Call) -> Reply:
    call.require_adapter()
    row, body = _find(call), call.given.body
    call.check_if_match(row)
    check_size("adapter_detail", body.get("adapter_detail"))
    if row.doc["status"] == TERMINAL and body.get("status", TERMINAL) != TERMINAL:
        raise invalid_transition("a deleted member stays deleted", current=TERMINAL)
    return shown(call.tx.save(row, body), kind=KIND, changes=body)
