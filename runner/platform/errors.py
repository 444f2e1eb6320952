"""Turns an error answer of the platform into an exception."""

import json
import re
from typing import Any

from runner.model.errors import Conflict, Forbidden, NotFound, PlatformError, Rejected, Unauthenticated, Unavailable


def redact(body: dict[str, Any], authorization: str | None) -> dict[str, Any]:
    """An error's body without our secrets: the platform may quote the request that it refuses."""
    if authorization is None:
        # A token request holds the client secret: only a code that is a plain word is passed on.
        code = str(body.get("code"))
        return {"code": code, "message": code} if re.fullmatch(r"[a-z_]{1,40}", code) else {}
    token = json.dumps(authorization.removeprefix("Bearer "))[1:-1]
    redacted: dict[str, Any] = json.loads(json.dumps(body).replace(token, "(our token)"))
    return redacted


def from_answer(status: int, body: dict[str, Any], call: str) -> PlatformError:
    """The exception for an HTTP status and the platform's flat error body."""
    code = str(body.get("code") or f"http_{status}")
    message = str(body.get("message") or f"HTTP {status} without a message")
    correlation = body.get("correlation_id")
    detail = body.get("details")
    tail = f" (correlation {correlation})" if correlation else ""
    context: dict[str, Any] = {
        "code": code,
        "status": status,
        "details": detail,
        "correlation_id": correlation,
    }
    if status == 401:
        return Unauthenticated(
            f"{call}: {message}{tail}. Check GPUAAS_SERVICE_ACCOUNT_ID, GPUAAS_KEY_ID and GPUAAS_CLIENT_SECRET"
            " (or GPUAAS_OPERATOR_TOKEN): the key may be revoked or the token expired",
            **context,
        )
    if status == 403:
        return Forbidden(
            f"{call}: {message}{tail}. {_missing(detail)}Ask the person who grants action keys in this project",
            **context,
        )
    if status == 404:
        return NotFound(f"{call}: {message}{tail}", **context)
    if status in (409, 412):
        return Conflict(f"{call}: {message}{tail}", **context)
    if status == 429 or status >= 500:
        return Unavailable(
            f"{call}: {message}{tail}. The platform is busy or broken; the next tick tries again", **context
        )
    where = f" {detail}" if detail else ""
    return Rejected(f"{call}: {message}{where}{tail}", **context)


def _missing(detail: Any) -> str:
    if isinstance(detail, dict) and detail:
        return ", ".join(f"{key}: {value}" for key, value in sorted(detail.items())) + ". "
    return ""
