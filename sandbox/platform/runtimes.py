"""Shared runtimes: one deploy of an app for all projects of a tenant. What they do like instances is in `instances`."""

from sandbox.platform import apps, deploys, owners
from sandbox.platform.calls import Call, Reply, operation, shown
from sandbox.platform.errors import ApiError, not_found
from sandbox.platform.listing import page_of

KIND = owners.RUNTIME.kind


@operation("listSharedRuntimes")
def list_runtimes(call: Call) -> Reply:
    slug = call.given.query.get("app_slug")
    return page_of(call, KIND, parent=call.given.path["org_id"], app_slugs=[slug] if slug is not None else None)


@operation("createSharedRuntime")
def deploy(call: Call) -> Reply:
    body, org = call.given.body, call.given.path["org_id"]
    manifest = apps.version(call.tx, body["app_slug"], body["app_version"])
    call.permit(body["app_slug"])
    recipe = apps.shared_runtime(manifest)
    for row in call.tx.rows(KIND, parent=org):
        if row.doc["app_slug"] == body["app_slug"] and row.doc["status"] != "deleted":
            raise ApiError(409, "shared_runtime_exists", "the tenant has a runtime of this app", id=row.doc["id"])
    project = body["owner_project_id"]
    if call.tx.sql.execute("SELECT 1 FROM projects WHERE id=? AND org_id=?", (project, org)).fetchone() is None:
        raise not_found("project")
    own = {"owner_project_id": project, **deploys.checked_input(call, recipe, project)}
    doc = deploys.record(call, manifest, "tenant", own)
    runtime = call.tx.insert(KIND, doc, parent=org, app_slug=body["app_slug"], project=org)
    deploys.create_contents(call, runtime, recipe)
    deploys.note_request(call, runtime)
    return shown(runtime, kind=KIND, status=201, changes={"status": "requested", "owner_project_id": project})
