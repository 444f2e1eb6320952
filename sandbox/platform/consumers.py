"""Consumers: app instances of a project that stand for its attachment to a shared runtime.

A consumer has no members and no operations. Its status, health and access are those of its attachment.
"""

from sandbox.platform import attached
from sandbox.platform.calls import Call
from sandbox.platform.errors import ApiError, not_found, validation_error
from sandbox.platform.store import Doc, Row, Tx

INSTANCE_STATUS = {
    "requested": "requested",
    "active": "running",
    "suspended": "stopped",
    "detaching": "deleting",
    "detached": "deleted",
}
ONLY_WITH_MEMBERS = ("placement_intent", "config", "access_credential_id", "operator_service_account_id")


def is_one(instance: Doc) -> bool:
    return instance.get("attachment_id") is not None


def require_members(owner: Doc) -> None:
    if is_one(owner):
        raise ApiError(
            409,
            "instance_is_consumer",
            "this instance has no members and no operations; they belong to the shared runtime that it consumes",
            shared_runtime_id=owner["shared_runtime_id"],
        )


def attachment_for(call: Call, app_slug: str) -> Row:
    """The attachment that a new consumer of this app stands for."""
    given = [name for name in ONLY_WITH_MEMBERS if name in call.given.body]
    if given:
        raise validation_error("a consumer of a shared runtime has no such input", fields=given)
    for row in attached.of_project(call.tx, call.project):
        runtime = call.tx.get("shared_runtime", row.doc["shared_runtime_id"], parent=row.doc["org_id"])
        if runtime.doc["app_slug"] == app_slug:
            return row
    raise not_found(attached.KIND)


def observed(attachment: Doc) -> Doc:
    """What a consumer shows of its attachment."""
    return {
        "status": INSTANCE_STATUS[attachment["status"]],
        **{name: attachment[name] for name in ("health", "status_detail", "access")},
    }


def follow(tx: Tx, attachment: Doc) -> None:
    """Call after an attachment was written."""
    for row in tx.rows("app_instance", project=attachment["project_id"]):
        if row.doc.get("attachment_id") == attachment["id"] and row.doc["status"] != "deleted":
            tx.save(row, observed(attachment))
