"""Runtime secrets that the platform issues to an app: made at the first request, kept in Vault, delivered wrapped.

Off by default: then the call answers 404, as on a platform that has none.
"""

import base64
import secrets

from sandbox.platform import clock, credentials, wrapping
from sandbox.platform.calls import Call, Reply, operation
from sandbox.platform.errors import ApiError
from sandbox.platform.vault_kv import latest, write

SETTING = "runtime_secret_issue"
KIND = "runtime_secret"
BYTES = 128


def _path(owner_id: str, name: str) -> str:
    """Outside every project's prefix, so that a secret can be read only through its delivery."""
    return f"platform/runtime-secrets/{owner_id}/{name}"


@operation("createRuntimeSecretIssue", "createSharedRuntimeSecretIssue")
def issue(call: Call) -> Reply:
    if call.tx.setting(SETTING, "0") == "0":
        raise ApiError(404, "route_not_found", "this platform issues no runtime secrets")
    call.require_adapter()
    call.require_not_deleted()
    name = call.given.body["name"]
    path = _path(call.current.doc["id"], name)
    kept = latest(call.tx, path)
    if kept is None:
        kept = write(call.tx, path, {"value": base64.b64encode(secrets.token_bytes(BYTES)).decode()}, cas=0)
    ttl = int(call.tx.setting("delivery_ttl_seconds", str(credentials.DELIVERY_TTL_SECONDS)))
    token, expires = wrapping.wrap(call.tx, kept.data or {}, ttl)
    body = {"vault_addr": call.origin, "wrapping_token": token, "expires_at": clock.stamp(expires)}
    return Reply(body, 201, touched=(KIND, f"{call.current.doc['id']}/{name}"), changes={"issued": True})
