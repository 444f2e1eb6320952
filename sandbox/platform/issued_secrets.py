"""Runtime secrets that the platform issues to an app: made at the first request, kept in Vault, delivered wrapped.

Off by default: then the call answers 404, as on a platform that has none.
"""

import base64
import secrets

from sandbox.platform import credentials, custody
from sandbox.platform.calls import Call, Reply, operation
from sandbox.platform.errors import ApiError

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
    keeper = custody.of(call.tx)
    secret = keeper.kept(path)
    if secret is None:
        secret = {"value": base64.b64encode(secrets.token_bytes(BYTES)).decode()}
        keeper.keep(path, secret)
    ttl = int(call.tx.setting("delivery_ttl_seconds", str(credentials.DELIVERY_TTL_SECONDS)))
    return Reply(
        keeper.delivery(secret, ttl, call.origin),
        201,
        touched=(KIND, f"{call.current.doc['id']}/{name}"),
        changes={"issued": True},
    )
