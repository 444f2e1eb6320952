"""App instances: deploy and list. Read, configure, report and delete, which shared runtimes have too."""

from sandbox.platform import apps, attached, consumers, deploys, events, owners
from sandbox.platform.calls import Call, Reply, operation, shown
from sandbox.platform.errors import ApiError, invalid_transition, not_found, validation_error
from sandbox.platform.listing import page_of
from sandbox.platform.opaque import check_size
from sandbox.platform.store import Doc

KIND = owners.INSTANCE.kind
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
    return page_of(call, KIND, parent="", app_slugs=[slug] if slug is not None else open_to_caller)


@operation("createAppInstance")
def deploy(call: Call) -> Reply:
    body = call.given.body
    manifest = apps.version(call.tx, body["app_slug"], body["app_version"])
    call.permit(body["app_slug"])
    scope = body.get("control_plane_scope", manifest["control_plane_scope"])
    own = {"project_id": call.project, "operator_service_account_id": None}
    if scope == "tenant":
        own |= _consumed(call, manifest)
    elif scope != manifest["control_plane_scope"]:
        raise validation_error("the app has another scope", control_plane_scope=manifest["control_plane_scope"])
    else:
        own |= deploys.checked_input(call, manifest, call.project) | _operator(call)
    row = call.tx.insert(KIND, deploys.record(call, manifest, scope, own), app_slug=body["app_slug"])
    if not consumers.is_one(row.doc):
        deploys.create_contents(call, row, manifest)
    deploys.note_request(call, row)
    return shown(row, kind=KIND, status=201, changes={"status": row.doc["status"]})


def _consumed(call: Call, manifest: Doc) -> Doc:
    """The fields that a consumer has of its attachment."""
    attachment = consumers.attachment_for(call, manifest["app_slug"]).doc
    ids = {"shared_runtime_id": attachment["shared_runtime_id"], "attachment_id": attachment["id"]}
    return ids | consumers.observed(attachment)


def _operator(call: Call) -> Doc:
    """The service account that alone may write the instance's state, if the request names one."""
    account = call.given.body.get("operator_service_account_id")
    if account is not None:
        row = call.tx.sql.execute(
            "SELECT 1 FROM principals WHERE id=? AND project_id=? AND actor_type='service_account'",
            (account, call.project),
        ).fetchone()
        if row is None:
            raise not_found("service_account")
    return {"operator_service_account_id": account}


@operation("getAppInstance", "getSharedRuntime")
def get_instance(call: Call) -> Reply:
    return shown(call.current, kind=call.kinds.kind)


@operation("updateAppInstance", "updateSharedRuntime")
def update(call: Call) -> Reply:
    """The adapter writes the observed state, an operator the desired state; neither may write the other's.

    An operator may also leave notes, where the app's manifest has a place for them.
    """
    if consumers.is_one(call.current.doc):
        raise ApiError(403, "ownership_required", "a consumer follows its attachment and cannot be written")
    if not call.caller.is_adapter:
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
    foreign = differ - set(apps.of(call.tx, row.doc).get("operator_notes", []))
    if foreign:
        raise ApiError(403, "ownership_required", "only the adapter writes this status_detail", fields=sorted(foreign))
    return shown(call.tx.save(row, {"status_detail": written}), kind=call.kinds.kind, changes=call.given.body)


def _configure(call: Call) -> Reply:
    row, body = call.current, call.given.body
    call.check_if_match(row)
    if row.doc["status"] == TERMINAL or (row.doc["status"] == "deleting" and set(body) != {CREDENTIAL}):
        raise invalid_transition(f"it is {row.doc['status']}", current=row.doc["status"])
    desired = {name: body.get(name, row.doc[name]) for name in DESIRED}
    call.tx.get("access_credential", desired[CREDENTIAL], project=owners.project_of(row.doc))
    manifest = apps.version(call.tx, row.doc["app_slug"], desired["app_version"])
    recipe = apps.shared_runtime(manifest) if owners.is_runtime(row.doc) else manifest
    given = {"placement_intent": row.doc["placement_intent"], "config": desired["config"]}
    apps.check_input(recipe["deploy_input"], given)
    return shown(call.tx.save(row, desired), kind=call.kinds.kind, changes=body)


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
        raise invalid_transition(f"it cannot go from {old} to {new}", current=old)
    return shown(call.tx.save(row, body), kind=call.kinds.kind, changes=body)


@operation("deleteAppInstance", "deleteSharedRuntime")
def delete(call: Call) -> Reply:
    row = call.current
    call.check_if_match(row)
    if row.doc["status"] == TERMINAL:
        raise invalid_transition("it is already deleted", current=TERMINAL)
    if attachments := [one.doc["project_id"] for one in attached.open_ones(call.tx, row.doc["id"])]:
        raise ApiError(409, "attachments_exist", "detach these projects first", project_ids=attachments)
    # No runner has work to do for a consumer that ends.
    wanted = TERMINAL if consumers.is_one(row.doc) else "deleting"
    if row.doc["status"] != wanted:
        row = call.tx.save(row, {"status": wanted})
        events.note(call, row.doc, f"apps.instance.{wanted}", {})
    return shown(row, kind=call.kinds.kind, status=202, changes={"status": wanted})
