"""Attachments: projects that use a shared runtime. The platform keeps what a project may use, the app enforces it."""

from sandbox.platform import apps, attached, consumers, contributions, events, owners, projects
from sandbox.platform.calls import Call, Reply, operation, shown
from sandbox.platform.errors import ApiError, invalid_transition, not_found
from sandbox.platform.listing import page_of
from sandbox.platform.opaque import check_size
from sandbox.platform.store import Doc, Row, Tx

KIND = attached.KIND
DESIRED = frozenset({"app_policy", "may_contribute", "trusted_contributor", "detach_parameters"})
OBSERVED = frozenset({"health", "status_detail", "access", "adapter_detail"})
OPAQUE = ("app_policy", "detach_parameters", "status_detail", "access", "adapter_detail")
BY_ADMINISTRATOR = {
    "requested": {"suspended", "detaching"},
    "active": {"suspended", "detaching"},
    "suspended": {"requested", "detaching"},
}
BY_ADAPTER = {"requested": {"active"}, "detaching": {attached.CLOSED}}


@operation("listAttachments")
def list_attachments(call: Call) -> Reply:
    return page_of(call, KIND)


def _find(call: Call) -> Row:
    return call.tx.get(KIND, call.given.path["attachment_id"], project=call.sees, parent=call.current.doc["id"])


@operation("getAttachment")
def get_attachment(call: Call) -> Reply:
    return shown(_find(call), kind=KIND)


@operation("createAttachment")
def attach(call: Call) -> Reply:
    body, runtime = call.given.body, call.current.doc
    if runtime["status"] in ("deleting", "deleted"):
        raise invalid_transition(f"the runtime is {runtime['status']}", current=runtime["status"])
    project = body["project_id"]
    if projects.org_of(call.tx, project) != runtime["org_id"]:
        raise not_found("project")
    if (open_one := attached.current(call.tx, runtime["id"], project)) is not None:
        raise ApiError(409, "attachment_exists", "the project is attached", id=open_one.doc["id"])
    policy = body.get("app_policy", {})
    _check(call, {"app_policy": policy})
    doc = {
        "project_id": project,
        "status": "requested",
        "health": "unknown",
        "status_detail": None,
        "may_contribute": body.get("may_contribute", False),
        "trusted_contributor": body.get("trusted_contributor", False),
        "app_policy": policy,
        "detach_parameters": {},
        "identities": projects.identities(call.tx, project),
        "access": None,
        "adapter_detail": {},
        "correlation_id": call.correlation_id,
    }
    row = owners.insert_below(call.tx, runtime, KIND, doc, project=project)
    _note(call.tx, runtime, row.doc, call.correlation_id, call.caller.as_actor(), {})
    return shown(row, kind=KIND, status=201, changes=body)


def _check(call: Call, body: Doc) -> None:
    for name in OPAQUE:
        check_size(name, body.get(name))
    if "app_policy" in body:
        manifest = apps.of(call.tx, call.current.doc)
        apps.check_input(apps.shared_runtime(manifest)["attachment_policy"], body["app_policy"], "app_policy")


@operation("updateAttachment")
def update(call: Call) -> Reply:
    """The adapter writes the observed state, an administrator the desired state; each has its own steps of status."""
    row, body = _find(call), call.given.body
    own, steps = (OBSERVED, BY_ADAPTER) if call.caller.is_adapter else (DESIRED, BY_ADMINISTRATOR)
    foreign = set(body) - own - {"status"}
    if foreign:
        raise ApiError(403, "ownership_required", "these fields belong to another writer", fields=sorted(foreign))
    call.check_if_match(row)
    _check(call, body)
    old, new = row.doc["status"], body.get("status", row.doc["status"])
    if old == attached.CLOSED or (new != old and new not in steps.get(old, ())):
        raise invalid_transition(f"an attachment cannot go from {old} to {new} by this caller", current=old)
    if new == attached.CLOSED and contributions.open_ones(call.tx, call.current.doc["id"], row.doc["project_id"]):
        raise invalid_transition("workers that the project contributed are still there", current=old)
    saved = change(
        call.tx, call.current.doc, row, body, correlation_id=call.correlation_id, actor=call.caller.as_actor()
    )
    return shown(saved, kind=KIND, changes=body)


def change(
    tx: Tx, runtime: Doc, row: Row, changes: Doc, *, correlation_id: str, actor: Doc, reason: str | None = None
) -> Row:
    """Save an attachment, with all that follows from its new status."""
    saved = tx.save(row, changes)
    if saved.doc["status"] != row.doc["status"]:
        _note(tx, runtime, saved.doc, correlation_id, actor, {"reason": reason} if reason else {})
        if saved.doc["status"] == "detaching":
            contributions.cancel_unclaimed(tx, runtime["id"], row.doc["project_id"])
    consumers.follow(tx, saved.doc)
    return saved


def _note(tx: Tx, runtime: Doc, attachment: Doc, correlation_id: str, actor: Doc, more: Doc) -> None:
    data = {"attachment_id": attachment["id"], "project_id": attachment["project_id"], **more}
    events.emit(tx, runtime, f"apps.attachment.{attachment['status']}", correlation_id, data, actor)
