"""Calls: the token exchange, the caller, and the catalog."""

from sandbox.platform import apps, auth
from sandbox.platform.api import Call, Reply, operation
from sandbox.platform.pages import Listing, read


@operation("issueServiceAccountToken")
def issue_token(call: Call) -> Reply:
    body = call.given.body
    return Reply(auth.exchange(call.tx, body["service_account_id"], body["key_id"], body["client_secret"]))


@operation("getMe")
def get_me(call: Call) -> Reply:
    caller = call.caller
    body = {"subject": caller.id, "actor_type": caller.actor_type, "org_id": caller.org_id}
    return Reply({**body, "project_ids": [caller.project_id], "action_keys": sorted(caller.action_keys)})


@operation("listApps")
def list_apps(call: Call) -> Reply:
    visible = apps.slugs_open_to(call.tx, call.operation.id, call.caller.action_keys)
    query = call.given.query
    page = read(
        call.tx,
        Listing("app", apps.NO_PROJECT, app_slugs=visible, limit=query.get("limit", 100), cursor=query.get("cursor")),
    )
    keep = (*apps.CATALOG_FIELDS, "etag")
    page["items"] = [{name: item[name] for name in keep} for item in page["items"]]
    return Reply(page)


@operation("getApp")
def get_app(call: Call) -> Reply:
    row = apps.get(call.tx, call.given.path["app_slug"])
    call.permit(row.doc["app_slug"])
    return Reply(apps.in_catalog(row), etag=row.etag)
