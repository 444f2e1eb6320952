"""Events of an instance."""

import uuid

from sandbox.platform.api import Call, Reply, operation
from sandbox.platform.listing import page_of
from sandbox.platform.opaque import check_size
from sandbox.platform.store import Doc, Row


def emit(call: Call, instance: Doc, type_: str, correlation_id: str, data: Doc) -> Row:
    """Add an event with the instance's ids, so that a reader need not look them up."""
    return call.tx.insert(
        "event",
        {
            "id": str(uuid.uuid4()),
            "org_id": instance["org_id"],
            "project_id": instance["project_id"],
            "app_slug": instance["app_slug"],
            "app_instance_id": instance["id"],
            "type": type_,
            "correlation_id": correlation_id,
            "data": data,
            "actor": call.caller.as_actor(),
        },
        parent=instance["id"],
    )


@operation("listInstanceEvents")
def list_events(call: Call) -> Reply:
    return page_of(call, "event", of_instance=True, etags=False)


@operation("createInstanceEvent")
def create_event(call: Call) -> Reply:
    call.require_adapter()
    body = call.given.body
    check_size("data", body["data"])
    row = emit(call, call.current.doc, body["type"], body["correlation_id"], body["data"])
    return Reply(row.doc, 201, touched=("event", row.doc["id"]), changes={"type": body["type"]})
