"""A deploy: what the app's manifest says that is created with a new app instance or shared runtime."""

import uuid

from sandbox.platform import apps, entitlements, events, members, operations, owners
from sandbox.platform.calls import Call
from sandbox.platform.errors import ApiError, validation_error
from sandbox.platform.store import Doc, Row


def record(call: Call, manifest: Doc, scope: str, more: Doc) -> Doc:
    """The fields of a new instance or runtime before anything has been observed."""
    org, slug, project = call.caller.org_id, manifest["app_slug"], owners.project_of(more)
    entitlements.require(call.tx, project, slug)
    return {
        "id": str(uuid.uuid4()),
        "org_id": org,
        "app_slug": slug,
        "app_version": manifest["version"],
        "name": call.given.body.get("name"),
        "operating_mode": manifest["operating_mode"],
        "control_plane_scope": scope,
        "runtime_backend": manifest["runtime_backend"],
        "status": "requested",
        "health": "unknown",
        "status_detail": None,
        "placement_intent": {},
        "config": {},
        "access": None,
        "access_credential_id": None,
        "effective_policy": entitlements.effective(call.tx, org, project, slug),
        "correlation_id": call.correlation_id,
        "traceparent": call.traceparent,
        **more,
    }


def checked_input(call: Call, recipe: Doc, project: str) -> Doc:
    """The input of a deploy, if it matches the app's schema and names only what the project has."""
    body = call.given.body
    missing = [name for name in ("placement_intent", "access_credential_id") if name not in body]
    if missing:
        raise validation_error("the input is incomplete", fields=missing)
    given = {"placement_intent": body["placement_intent"], "config": body.get("config", {})}
    apps.check_input(recipe["deploy_input"], given)
    named = [apps.pick(given, recipe["first_member"]["allocation_from"])]
    for seed in recipe["seed_operations"]:
        named += apps.pick(given, seed["allocations_from"]) or []
    for allocation_id in named:
        if not isinstance(allocation_id, str):
            raise validation_error("the manifest's inputs do not name an allocation")
        if call.tx.find("allocation", allocation_id, project=project) is None:
            raise ApiError(
                404, "allocation_not_found", "no such allocation in this project", allocation_id=allocation_id
            )
    call.tx.get("access_credential", body["access_credential_id"], project=project)
    return given | {"access_credential_id": body["access_credential_id"]}


def create_contents(call: Call, owner: Row, recipe: Doc) -> None:
    """Create the first member and the operations that the recipe names."""
    first = recipe["first_member"]
    members.add(call, owner.doc, first["component_key"], apps.pick(owner.doc, first["allocation_from"]))
    for seed in recipe["seed_operations"]:
        allocations = apps.pick(owner.doc, seed["allocations_from"])
        if allocations:
            operations.add_for_members(call, owner.doc, seed["operation"], seed["component_key"], allocations)


def note_request(call: Call, owner: Row) -> None:
    events.note(call, owner.doc, "apps.instance.requested", {"app_version": owner.doc["app_version"]})
