"""App instances: deploy, read, configure, report, delete."""

import uuid

from sandbox.platform import apps, events, members, operations
from sandbox.platform.api import Call, Reply, operation, shown
from sandbox.platform.errors import ApiError, invalid_transition, not_found, validation_error
from sandbox.platform.listing import page_of
from sandbox.platform.opaque import check_size
from sandbox.platform.store import Doc

KIND = "app_instance"
TERMINAL = "deleted"
# The desired state: fields that an operator may change. The adapter writes the others.
CREDENTIAL = "access_credential_id"
DESIRED = frozenset({"config", "app_version", CREDENTIAL})


@operation("listAppInstances")
def list_instances(call: Call) -> Reply:
    """Without app_slug: the instances of every app whose action key the caller has."""
    slug = call.given.query.get("app_slug")
    if slug is not None and apps.find(call.tx, slug) is not None:
        call.permit(slug)
    open_to_caller = apps.slugs_open_to(call.tx, call.operation.id, call.caller.action_keys)
    return page_of(call, KIND, of_instance=False, app_slugs=[slug] if slug is not None else open_to_caller)


@operation("createAppInstance")
def deploy(call: Call) -> Reply:
    body = call.given.body
    manifest = apps.get(call.tx, body["app_slug"]).doc
    call.permit(body["app_slug"])
    _check_version(manifest, body["app_version"])
    given = {"placement_intent": body["placement_intent"], "config": body.get("config", {})}
    apps.check_input(manifest, given)
    _check_references(call, manifest, given)
    row = call.tx.insert(
        KIND,
        {
            "id": str(uuid.uuid4()),
            "org_id": call.caller.org_id,
            "project_id": call.project,
            "app_slug": body["app_slug"],
            "app_version": body["app_version"],
            "name": body.get("name"),
            "operating_mode": manifest["operating_mode"],
            "control_plane_scope": manifest["control_plane_scope"],
            "runtime_backend": manifest["runtime_backend"],
            "operator_service_account_id": body.get("operator_service_account_id"),
            "status": "requested",
            "health": "unknown",
            "status_detail": None,
            **given,
            "access": None,
            "access_credential_id": body["access_credential_id"],
            "correlation_id": call.correlation_id,
            "traceparent": call.traceparent,
        },
        app_slug=body["app_slug"],
    )
    first = manifest["first_member"]
    members.add(call, row.doc, first["component_key"], apps.pick(given, first["allocation_from"]))
    for seed in manifest["seed_operations"]:
        allocations = apps.pick(given, seed["allocations_from"])
        if allocations:
            operations.add_for_members(call, row.doc, seed["operation"], seed["component_key"], allocations)
    events.emit(call, row.doc, "apps.instance.requested", call.correlation_id, {"app_version": body["app_version"]})
    return shown(row, kind=KIND, status=201, changes={"status": "requested"})


def _check_version(manifest: Doc, version: str) -> None:
    if version != manifest["version"]:
        raise ApiError(404, "app_version_not_found", "the catalog has another version", available=[manifest["version"]])


def _check_references(call: Call, manifest: Doc, given: Doc) -> None:
    """Refuse a deploy that names objects which this project does not have."""
    body = call.given.body
    named = [apps.pick(given, manifest["first_member"]["allocation_from"])]
    for seed in manifest["seed_operations"]:
        named += apps.pick(given, seed["allocations_from"]) or []
    for allocation_id in named:
        if not isinstance(allocation_id, str):
            raise validation_error("the manifest's inputs do not name an allocation")
        if call.tx.find("allocation", allocation_id, project=call.project) is None:
            raise ApiError(
                404, "allocation_not_found", "no such allocation in this project", allocation_id=allocation_id
            )
    call.tx.get("access_credential", body[CREDENTIAL], project=call.project)
    account = body.get("operator_service_account_id")
    if account is not None:
        row = call.tx.sql.execute(
            "SELECT 1 FROM principals WHERE id=? AND project_id=? AND actor_type='service_account'",
            (account, call.project),
        ).fetchone()
        if row is None:
            raise not_found("service_account")


@operation("getAppInstance")
def get_instance(call: Call) -> Reply:
    return shown(call.current, kind=KIND)


@operation("updateAppInstance")
def update(call: Call) -> Reply:
    """The adapter writes the observed state, an operator the desired state; neither may write the other's.

    An operator may also leave notes, where the app's manifest has a place for them.
    """
    if not call.caller.is_service_account:
        if set(call.given.body) <= DESIRED:
            return _configure(call)
        if set(call.given.body) == {"status_detail"}:
            return _leave_notes(call)
    return _report(call)


def _leave_notes(call: Call) -> Reply:
    row, written = call.current, call.given.body["status_detail"]
    call.check_if_match(row)
    check_size("status_detail", written)
    stored, written = row.doc["status_detail"] or {}, written or {}
    differ = {name for name in stored.keys() | written.keys() if stored.get(name) != written.get(name)}
    foreign = differ - set(apps.get(call.tx, row.doc["app_slug"]).doc.get("operator_notes", []))
    if foreign:
        raise ApiError(403, "ownership_required", "only the adapter writes this status_detail", fields=sorted(foreign))
    return shown(call.tx.save(row, {"status_detail": written}), kind=KIND, changes=call.given.body)


def _configure(call: Call) -> Reply:
    row, body = call.current, call.given.body
    call.check_if_match(row)
    if row.doc["status"] == TERMINAL or (row.doc["status"] == "deleting" and set(body) != {CREDENTIAL}):
        raise invalid_transition(f"the instance is {row.doc['status']}", current=row.doc["status"])
    manifest = apps.get(call.tx, row.doc["app_slug"]).doc
    desired = {name: body.get(name, row.doc[name]) for name in DESIRED}
    call.tx.get("access_credential", desired[CREDENTIAL], project=call.project)
    _check_version(manifest, desired["app_version"])
    apps.check_input(manifest, {"placement_intent": row.doc["placement_intent"], "config": desired["config"]})
    return shown(call.tx.save(row, desired), kind=KIND, changes=body)


def _report(call: Call) -> Reply:
    call.require_adapter()
    row, body = call.current, call.given.body
    if DESIRED & set(body):
        raise ApiError(403, "ownership_required", "an adapter may not write the desired state", fields=sorted(DESIRED))
    call.check_if_match(row)
    for name in ("status_detail", "access"):
        check_size(name, body.get(name))
    old, new = row.doc["status"], body.get("status", row.doc["status"])
    # The operator requested the deletion: an adapter can complete it, not withdraw it.
    if old != new and (old == TERMINAL or (old == "deleting" and new != TERMINAL) or new == "requested"):
        raise invalid_transition(f"an instance cannot go from {old} to {new}", current=old)
    return shown(call.tx.save(row, body), kind=KIND, changes=body)


@operation("deleteAppInstance")
def delete(call: Call) -> Reply:
    row = call.current
    call.check_if_match(row)
    if row.doc["status"] == TERMINAL:
        raise invalid_transition("the instance is already deleted", current=TERMINAL)
    if row.doc["status"] != "deleting":
        row = call.tx.save(row, {"status": "deleting"})
        events.emit(call, row.doc, "apps.instance.deleting", call.correlation_id, {})
    return shown(row, kind=KIND, status=202, changes={"status": "deleting"})
