"""Operations on instances and shared runtimes, and on their members: the same fields and the same rules.

The platform keeps the claim and the lease of an operation. The app gives verbs their meaning and fails unknown ones.
"""

from sandbox.platform import clock, consumers, contributions, owners
from sandbox.platform.calls import Call, Reply, operation, shown
from sandbox.platform.errors import ApiError, invalid_transition, validation_error
from sandbox.platform.listing import page_of
from sandbox.platform.opaque import check_size
from sandbox.platform.store import Doc, Row

INSTANCE_KIND = "operation"
LEGAL = {
    "accepted": {"running", "failed", "cancelled"},
    "running": {"running", "succeeded", "failed", "cancelled", "accepted"},
}


def _envelope(call: Call, verb: str, parameters: Doc) -> Doc:
    return {
        "operation": verb,
        "parameters": parameters,
        "status": "accepted",
        "claimed_by": None,
        "lease_expires_at": None,
        "attempt": 0,
        "error": None,
        "result": None,
        "correlation_id": call.correlation_id,
        "traceparent": call.traceparent,
        "requested_by": call.caller.as_actor(),
    }


def add_for_members(
    call: Call,
    owner: Doc,
    verb: str,
    component_key: str,
    allocation_ids: list[str],
    member_ids: list[str] | None = None,
    parameters: Doc | None = None,
    request: Doc | None = None,
) -> Row:
    """`request` says which project requests it of a shared runtime, and with which credential."""
    more = request or contributions.none(owner)
    doc = _envelope(call, verb, parameters or {}) | more
    doc |= {"component_key": component_key, "member_ids": member_ids or [], "allocation_ids": allocation_ids}
    project = more.get("source_project_id")
    return owners.insert_below(call.tx, owner, owners.of(owner).member_operation, doc, project=project)


@operation("createInstanceOperation", "createRuntimeOperation")
def create_instance_operation(call: Call) -> Reply:
    body = _requested(call)
    doc = _envelope(call, body["operation"], body.get("parameters", {}))
    row = owners.insert_below(call.tx, call.current.doc, INSTANCE_KIND, doc)
    return shown(row, kind=INSTANCE_KIND, status=201, changes=body)


@operation("createMemberOperation", "createWorkerOperation")
def create_member_operation(call: Call) -> Reply:
    body = _requested(call)
    row = add_for_members(
        call,
        call.current.doc,
        body["operation"],
        body["component_key"],
        body.get("allocation_ids", []),
        body.get("member_ids", []),
        body.get("parameters"),
        contributions.check_request(call),
    )
    contributions.grant(call.tx, row.doc)
    return shown(row, kind=call.kinds.member_operation, status=201, changes=body)


def _requested(call: Call) -> Doc:
    """The body of a request for an operation, if operations can be requested here."""
    call.require_not_deleted()
    consumers.require_members(call.current.doc)
    body: Doc = call.given.body
    check_size("parameters", body.get("parameters"))
    return body


@operation("listInstanceOperations", "listRuntimeOperations")
def list_instance_operations(call: Call) -> Reply:
    return page_of(call, INSTANCE_KIND)


@operation("listMemberOperations", "listWorkerOperations")
def list_member_operations(call: Call) -> Reply:
    return page_of(call, call.kinds.member_operation)


@operation("getInstanceOperation", "getRuntimeOperation")
def get_instance_operation(call: Call) -> Reply:
    return shown(_find(call, INSTANCE_KIND), kind=INSTANCE_KIND)


@operation("getMemberOperation", "getWorkerOperation")
def get_member_operation(call: Call) -> Reply:
    return shown(_find(call, call.kinds.member_operation), kind=call.kinds.member_operation)


@operation("updateInstanceOperation", "updateRuntimeOperation")
def update_instance_operation(call: Call) -> Reply:
    return _update(call, INSTANCE_KIND)


@operation("updateMemberOperation", "updateWorkerOperation")
def update_member_operation(call: Call) -> Reply:
    reply = _update(call, call.kinds.member_operation)
    contributions.end_with_operation(call.tx, reply.body)
    return reply


def _find(call: Call, kind: str) -> Row:
    return call.tx.get(kind, call.given.path["operation_id"], project=call.sees, parent=call.current.doc["id"])


def _update(call: Call, kind: str) -> Reply:
    row, body = _find(call, kind), call.given.body
    if call.caller.is_adapter:
        call.require_adapter()
    elif body != {"status": "cancelled"}:
        raise ApiError(403, "ownership_required", "an operator may cancel an operation and change nothing else of it")
    call.check_if_match(row)
    check_size("result", body.get("result"))
    changes = _changes(row.doc, body, by_adapter=call.caller.is_adapter)
    return shown(call.tx.save(row, changes), kind=kind, changes=changes)


def _changes(doc: Doc, body: Doc, *, by_adapter: bool) -> Doc:
    """The changes that a PATCH makes to an operation; raises if the rules do not allow it."""
    old, new = doc["status"], body.get("status", doc["status"])
    if old not in LEGAL or (new != old and new not in LEGAL[old]):
        raise invalid_transition(f"an operation cannot go from {old} to {new}", current=old)
    held = doc["lease_expires_at"] is not None and clock.parse(doc["lease_expires_at"]) > clock.now()
    writer = body.get("claimed_by", doc["claimed_by"])
    # After a lease has expired another runner may claim the operation, but only its claimant may finish it.
    if by_adapter and old == "running" and writer != doc["claimed_by"] and (held or new != "running"):
        raise ApiError(
            409,
            "lease_held",
            "another runner holds this operation's lease",
            claimed_by=doc["claimed_by"],
            lease_expires_at=doc["lease_expires_at"],
        )
    if new == "failed" and body.get("error") is None:
        raise validation_error("a failed operation needs an error")
    changes = dict(body)
    if new == "running":
        changes |= _lease(doc, body, claim=old == "accepted" or ("claimed_by" in body and not held))
    elif new == "accepted":
        if "claimed_by" in body and old != "running":
            raise validation_error("claim with status running")
        changes |= {"claimed_by": None, "lease_expires_at": None}
    else:
        # claimed_by stays for the record; the lease ends.
        changes |= {"claimed_by": doc["claimed_by"], "lease_expires_at": None}
    return changes


def _lease(doc: Doc, body: Doc, *, claim: bool) -> Doc:
    """Claim or take over, which counts as an attempt; or renew. A renewal with a past time gives the lease up."""
    if not claim:
        renewed = clock.parse(body.get("lease_expires_at") or doc["lease_expires_at"])
        return {"claimed_by": doc["claimed_by"], "lease_expires_at": clock.stamp(renewed)}
    if "claimed_by" not in body or "lease_expires_at" not in body:
        raise validation_error("a claim needs claimed_by and lease_expires_at")
    until = clock.parse(body["lease_expires_at"])
    if until <= clock.now():
        raise validation_error("lease_expires_at is in the past")
    return {
        "claimed_by": body["claimed_by"],
        "lease_expires_at": clock.stamp(until),
        "attempt": doc["attempt"] + 1,
    }
