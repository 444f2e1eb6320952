"""Usage records: a record that is sent again is not counted again."""

import uuid

from sandbox.platform.calls import Call, Reply, operation
from sandbox.platform.errors import ApiError, validation_error
from sandbox.platform.opaque import check_size

KIND = "usage_record"
FROM_INSTANCE = ("org_id", "project_id", "app_slug", "operating_mode", "control_plane_scope", "runtime_backend")


@operation("createUsageRecord")
def create_usage_record(call: Call) -> Reply:
    body = call.given.body
    check_size("dimensions", body.get("dimensions"))
    instance = call.tx.get("app_instance", body["app_instance_id"], project=call.project)
    call.permit(instance.doc["app_slug"])
    wrong = [name for name in FROM_INSTANCE if body[name] != instance.doc[name]]
    if wrong:
        raise validation_error("the record's fields differ from its instance", fields=wrong)
    recorded = call.tx.sql.execute(
        "SELECT id FROM objects WHERE kind=? AND project_id=? AND json_extract(doc, '$.record_id')=?",
        (KIND, call.project, body["record_id"]),
    ).fetchone()
    if recorded is None:
        row = call.tx.insert(KIND, {**body, "id": str(uuid.uuid4())})
        return Reply(row.doc, 201, touched=(KIND, row.doc["id"]), changes={"record_id": body["record_id"]})
    earlier = call.tx.find(KIND, recorded[0], project=call.project)
    if earlier is None or any(earlier.doc.get(name) != value for name, value in body.items()):
        raise ApiError(409, "usage_record_conflict", "a record with this record_id has another content")
    return Reply(earlier.doc, 201, touched=(KIND, earlier.doc["id"]))
