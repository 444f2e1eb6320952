"""Access credentials: kept in the Vault, delivered as a single-use wrapping token. No answer has the secret."""

from sandbox.platform import artifacts, contributions, custody
from sandbox.platform.calls import Call, Reply, operation
from sandbox.platform.errors import ApiError, not_found
from sandbox.platform.store import Doc, Row, Tx

KIND = "access_credential"
DELIVERY_TTL_SECONDS = 120
REFUSALS = {
    "revoked": "the credential was revoked; give the instance another credential",
    "rotated": "the credential was replaced by a newer one; use that",
}


def custody_path(credential_id: str) -> str:
    """Outside every project's prefix, so that a credential can be read only through a delivery."""
    return f"platform/access-credentials/{credential_id}"


def upsert(tx: Tx, project_id: str, credential_id: str, secret: Doc) -> Row:
    custody.of(tx).keep(custody_path(credential_id), secret)
    row = tx.find(KIND, credential_id, project=project_id)
    public = {"username": secret["username"], "status": "active"}
    if row is not None:
        return tx.save(row, public)
    return tx.insert(KIND, {"id": credential_id, "project_id": project_id, **public})


def set_status(tx: Tx, project_id: str, credential_id: str, status: str) -> Doc:
    return tx.save(tx.get(KIND, credential_id, project=project_id), {"status": status}).doc


@operation("createCredentialDelivery")
def deliver(call: Call) -> Reply:
    if not call.caller.is_adapter:
        raise ApiError(403, "ownership_required", "machine credentials are delivered to service accounts only")
    return _hand_over(call, call.tx.get(KIND, call.given.path["access_credential_id"], project=call.project))


@operation("createRuntimeCredentialDelivery")
def deliver_to_runtime(call: Call) -> Reply:
    call.require_not_deleted()
    credential_id = call.given.path["access_credential_id"]
    if credential_id not in _bound_to(call.tx, call.current.doc):
        raise not_found(KIND)
    return _hand_over(call, call.tx.get(KIND, credential_id))


def _bound_to(tx: Tx, runtime: Doc) -> set[str]:
    """The credentials that a runtime's operator may get: the runtime's own, contributors', and package sources'."""
    bound = {runtime["access_credential_id"]}
    bound |= {row.doc["access_credential_id"] for row in contributions.open_ones(tx, runtime["id"])}
    sources = [row.doc["source"] or {} for row in tx.rows(artifacts.KIND, parent=runtime["id"])]
    named = [source["credential_id"] for source in sources if source.get("credential_id")]
    # A rule of policy may name a credential of any project; only the owner's are for this runtime.
    return bound | {one for one in named if tx.find(KIND, one, project=runtime["owner_project_id"])}


def _hand_over(call: Call, row: Row) -> Reply:
    status = row.doc["status"]
    if status != "active":
        raise ApiError(409, f"access_credential_{status}", REFUSALS[status])
    keeper = custody.of(call.tx)
    secret = keeper.kept(custody_path(row.doc["id"]))
    if secret is None:
        raise ApiError(503, "service_unavailable", "the credential is not in custody")
    ttl = int(call.tx.setting("delivery_ttl_seconds", str(DELIVERY_TTL_SECONDS)))
    body = keeper.delivery(secret, ttl, call.origin) | {"username": row.doc["username"]}
    return Reply(body, 201, touched=(KIND, row.doc["id"]), changes={"delivered": True})
