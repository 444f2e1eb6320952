"""Entitlements: which apps a project may use, and in which regions and on which SKUs.

The platform, the tenant and the project each may restrict regions and SKUs. An instance shows what all of them allow as
its effective_policy, so an overlay only narrows. The sandbox entitles each project that it makes to each app.
"""

import json
import uuid

from sandbox.platform import apps, attached, owners, projects
from sandbox.platform.calls import Call, Reply, operation, shown
from sandbox.platform.errors import ApiError
from sandbox.platform.listing import page_of
from sandbox.platform.store import Doc, Row, Tx

KIND = "entitlement"
ENABLED = "enabled"
LIMITS = ("regions", "skus")
UNLIMITED: Doc = dict.fromkeys(LIMITS)


def grant(tx: Tx, *, project_id: str | None = None, app_slug: str | None = None) -> None:
    """Entitle a new project to every app, or every project to a new app."""
    new = [project_id] if project_id else [str(row[0]) for row in tx.sql.execute("SELECT id FROM projects").fetchall()]
    for project in new:
        for slug in [app_slug] if app_slug else apps.slugs(tx):
            if find(tx, project, slug) is None:
                put(tx, project, slug, ENABLED, None)


def find(tx: Tx, project_id: str, app_slug: str) -> Row | None:
    rows = (row for row in tx.rows(KIND, project=project_id) if row.doc["app_slug"] == app_slug)
    return next(rows, None)


def put(tx: Tx, project_id: str, app_slug: str, status: str, policy: Doc | None) -> Row:
    before = find(tx, project_id, app_slug)
    if before is not None:
        row = tx.save(before, {"status": status, **({"policy": policy} if policy else {})})
    else:
        ids = {"id": str(uuid.uuid4()), "project_id": project_id, "app_slug": app_slug}
        row = tx.insert(KIND, {**ids, "status": status, "policy": policy or UNLIMITED}, app_slug=app_slug)
    if policy:
        _follow(tx)
    return row


def require(tx: Tx, project_id: str, app_slug: str) -> None:
    row = find(tx, project_id, app_slug)
    if row is None or row.doc["status"] != ENABLED:
        raise ApiError(403, "entitlement_required", "the project may not use this app", app_slug=app_slug)


def restrict(tx: Tx, org_id: str | None, policy: Doc) -> None:
    """Restrict every project of a tenant; of the platform, if none is given."""
    tx.set_setting(_overlay(org_id), json.dumps(policy))
    _follow(tx)


def effective(tx: Tx, org_id: str, project_id: str, app_slug: str) -> Doc:
    """What the platform, the tenant and the project all allow."""
    own = find(tx, project_id, app_slug)
    overlays = [json.loads(tx.setting(_overlay(one), json.dumps(UNLIMITED))) for one in (None, org_id)]
    overlays += [own.doc["policy"]] if own else []
    return {name: _narrowed([one[name] for one in overlays]) for name in LIMITS}


def _overlay(org_id: str | None) -> str:
    return f"placement-policy/{org_id or ''}"


def _narrowed(lists: list[list[str] | None]) -> list[str] | None:
    limits = [set(one) for one in lists if one is not None]
    return sorted(set.intersection(*limits)) if limits else None


def _follow(tx: Tx) -> None:
    """Show the policy in every instance and runtime: their ETags change only if it does."""
    for kind in (owners.INSTANCE.kind, owners.RUNTIME.kind):
        found = tx.sql.execute("SELECT seq, version, doc FROM objects WHERE kind=?", (kind,)).fetchall()
        for row in (Row(seq, version, json.loads(doc)) for seq, version, doc in found):
            policy = effective(tx, row.doc["org_id"], owners.project_of(row.doc), row.doc["app_slug"])
            tx.save(row, {"effective_policy": policy})


@operation("listEntitlements")
def list_entitlements(call: Call) -> Reply:
    slug = call.given.query.get("app_slug")
    return page_of(call, KIND, parent="", app_slugs=[slug] if slug is not None else None)


@operation("listRuntimeEntitlements")
def list_of_runtime(call: Call) -> Reply:
    runtime = call.current.doc
    users = [row.doc["project_id"] for row in attached.open_ones(call.tx, runtime["id"])]
    found = [find(call.tx, one, runtime["app_slug"]) for one in (runtime["owner_project_id"], *users)]
    slug = call.given.query.get("app_slug") or runtime["app_slug"]
    return page_of(call, KIND, parent="", ids=[row.doc["id"] for row in found if row], app_slugs=[slug])


@operation("setEntitlement")
def set_entitlement(call: Call) -> Reply:
    body = call.given.body
    call.permit(body["app_slug"])
    if projects.org_of(call.tx, body["project_id"]) != call.caller.org_id:
        raise ApiError(403, "ownership_required", "the token belongs to another tenant")
    apps.get(call.tx, body["app_slug"])
    row = put(call.tx, body["project_id"], body["app_slug"], body["status"], body.get("policy"))
    return shown(row, kind=KIND, changes=body)
