"""Calls: the token exchanges, the caller, and the catalog."""

from collections.abc import Callable

from sandbox.platform import apps, auth, entitlements
from sandbox.platform.calls import Call, Reply, operation
from sandbox.platform.errors import validation_error
from sandbox.platform.pages import Listing, read


@operation("issueServiceAccountToken")
def issue_token(call: Call) -> Reply:
    account = call.given.body["service_account_id"]
    return _exchange(call, lambda one: one.actor_type == auth.SERVICE_ACCOUNT and one.id == account)


@operation("issueSharedRuntimeOperatorToken")
def issue_operator_token(call: Call) -> Reply:
    runtime = call.given.body["shared_runtime_id"]
    return _exchange(call, lambda one: one.shared_runtime_id == runtime)


def _exchange(call: Call, is_meant: Callable[[auth.Principal], bool]) -> Reply:
    body = call.given.body
    return Reply(auth.exchange(call.tx, body["key_id"], body["client_secret"], is_meant))


@operation("getMe")
def get_me(call: Call) -> Reply:
    caller = call.caller
    projects = [] if caller.project_id is None else [caller.project_id]
    body = {"subject": caller.id, "actor_type": caller.actor_type, "org_id": caller.org_id}
    return Reply({**body, "project_ids": projects, "action_keys": sorted(caller.action_keys)})


@operation("listApps")
def list_apps(call: Call) -> Reply:
    visible = apps.slugs_open_to(call.tx, call.operation.id, call.caller.action_keys)
    query = call.given.query
    page = read(
        call.tx,
        Listing("app", apps.NO_PROJECT, app_slugs=visible, limit=query.get("limit", 100), cursor=query.get("cursor")),
    )
    page["items"] = [apps.in_catalog(item, item["etag"]) for item in page["items"]]
    return Reply(page)


@operation("getApp")
def get_app(call: Call) -> Reply:
    row = apps.get(call.tx, call.given.path["app_slug"])
    call.permit(row.doc["app_slug"])
    return Reply(apps.in_catalog(row.doc, row.etag), etag=row.etag)


@operation("publishAppVersion")
def publish(call: Call) -> Reply:
    manifest = call.given.body
    if manifest["app_slug"] != call.given.path["app_slug"]:
        raise validation_error("the manifest is of another app", app_slug=manifest["app_slug"])
    row, is_new = apps.publish(call.tx, manifest)
    if is_new:
        entitlements.grant(call.tx, app_slug=manifest["app_slug"])
    changes = {"version": manifest["version"], "published": is_new}
    return Reply(apps.in_catalog(row.doc, row.etag), 201 if is_new else 200, row.etag, ("app", row.doc["id"]), changes)
