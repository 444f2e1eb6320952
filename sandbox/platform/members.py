"""Members of an instance or a shared runtime: the platform keeps allocation and status, the app gives the meaning."""

from sandbox.platform import consumers, contributions, owners
from sandbox.platform.calls import Call, Reply, operation, shown
from sandbox.platform.errors import invalid_transition
from sandbox.platform.listing import page_of
from sandbox.platform.opaque import check_size
from sandbox.platform.store import Doc, Row

TERMINAL = "deleted"


def add(
    call: Call,
    owner: Doc,
    component_key: str,
    allocation_id: str,
    *,
    status: str = "requested",
    detail: Doc | None = None,
    correlation_id: str | None = None,
    contribution: Doc | None = None,
) -> Row:
    more = contribution or contributions.none(owner)
    return owners.insert_below(
        call.tx,
        owner,
        owners.of(owner).member,
        {
            "component_key": component_key,
            "allocation_id": allocation_id,
            "status": status,
            "adapter_detail": detail or {},
            "correlation_id": correlation_id or call.correlation_id,
            **more,
        },
        project=more.get("source_project_id"),
    )


def _find(call: Call) -> Row:
    kind = call.kinds.member
    return call.tx.get(kind, call.given.path[f"{kind}_id"], project=call.sees, parent=call.current.doc["id"])


@operation("listMembers", "listWorkers")
def list_members(call: Call) -> Reply:
    return page_of(call, call.kinds.member)


@operation("getMember", "getWorker")
def get_member(call: Call) -> Reply:
    return shown(_find(call), kind=call.kinds.member)


@operation("createMember", "createWorker")
def create_member(call: Call) -> Reply:
    call.require_adapter()
    call.require_not_deleted()
    consumers.require_members(call.current.doc)
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
        contribution=contributions.fields_of(call, body["allocation_id"]),
    )
    return shown(row, kind=call.kinds.member, status=201, changes=body)


@operation("updateMember", "updateWorker")
def report(call: Call) -> Reply:
    call.require_adapter()
    row, body = _find(call), call.given.body
    call.check_if_match(row)
    check_size("adapter_detail", body.get("adapter_detail"))
    if row.doc["status"] == TERMINAL and body.get("status", TERMINAL) != TERMINAL:
        raise invalid_transition("a deleted member stays deleted", current=TERMINAL)
    saved = call.tx.save(row, body)
    contributions.end_with_member(call.tx, saved.doc)
    return shown(saved, kind=call.kinds.member, changes=body)
