"""Events of an instance or a shared runtime."""

from sandbox.platform import owners
from sandbox.platform.calls import Call, Reply, operation
from sandbox.platform.listing import page_of
from sandbox.platform.opaque import check_size
from sandbox.platform.store import Doc, Row, Tx


def emit(tx: Tx, owner: Doc, type_: str, correlation_id: str, data: Doc, actor: Doc) -> Row:
    """Add an event with its owner's ids, so that a reader need not look them up."""
    return owners.insert_below(
        tx,
        owner,
        "event",
        {
            "app_slug": owner["app_slug"],
            "type": type_,
            "correlation_id": correlation_id,
            "data": data,
            "actor": actor,
        },
    )


def note(call: Call, owner: Doc, type_: str, data: Doc) -> None:
    """Add the event of what this call did."""
    emit(call.tx, owner, type_, call.correlation_id, data, call.caller.as_actor())


@operation("listInstanceEvents", "listRuntimeEvents")
def list_events(call: Call) -> Reply:
    return page_of(call, "event", etags=False)


@operation("createInstanceEvent", "createRuntimeEvent")
def create_event(call: Call) -> Reply:
    call.require_adapter()
    body = call.given.body
    check_size("data", body["data"])
    actor = call.caller.as_actor()
    row = emit(call.tx, call.current.doc, body["type"], body["correlation_id"], body["data"], actor)
    return Reply(row.doc, 201, touched=("event", row.doc["id"]), changes={"type": body["type"]})
