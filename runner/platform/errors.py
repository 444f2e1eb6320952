"""What can go wrong between us and the platform, by what one does about it."""

import json
import re
from typing import Any


class PlatformError(Exception):
    """The platform answered with an error, or not at all. The message says what to do next."""

    def __init__(
        self, message: str, *, code: str = "platform_error", status: int | None = None, **context: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.context = context


class Unauthenticated(PlatformError):
    """401 that a fresh token did not cure: the credentials are wrong, expired or revoked."""


class Forbidden(PlatformError):
    """403: an action key or an ownership is missing. Never retried."""


class NotFound(PlatformError):
    """404."""


class Rejected(PlatformError):
    """400 and other refusals of what we sent. Never retried."""


class Conflict(PlatformError):
    """409 or 412: somebody else changed it. Read again, then decide."""


class Unavailable(PlatformError):
    """5xx, 429, time-outs, garbage: tried again for as long as patience lasts, and still so."""


def unquoted(body: dict[str, Any], authorization: str | None) -> dict[str, Any]:
    """An error's body without what we sent: a platform may quote a request that it refuses, secret and all."""
    if authorization is None:
        # We asked for a token, with a secret. A code that is a plain word is all that is passed on.
        code = str(body.get("code"))
        return {"code": code, "message": code} if re.fullmatch(r"[a-z_]{1,40}", code) else {}
    token = json.dumps(authorization.removeprefix("Bearer "))[1:-1]
    without: dict[str, Any] = json.loads(json.dumps(body).replace(token, "(our token)"))
    return without


def from_answer(status: int, body: dict[str, Any], call: str) -> PlatformError:
    """The error for an answer that is one, from the platform's flat error body."""
    code = str(body.get("code") or f"http_{status}")
    said = str(body.get("message") or "no message")
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
            f"{call}: {said}{tail}. Check GPUAAS_SERVICE_ACCOUNT_ID, GPUAAS_KEY_ID and GPUAAS_CLIENT_SECRET"
            " (or GPUAAS_OPERATOR_TOKEN): the key may be revoked or the token expired",
            **context,
        )
    if status == 403:
        return Forbidden(
            f"{call}: {said}{tail}. {_missing(detail)}Ask whoever grants action keys in this project",
            **context,
        )
    if status == 404:
        return NotFound(f"{call}: {said}{tail}", **context)
    if status in (409, 412):
        return Conflict(f"{call}: {said}{tail}", **context)
    if status == 429 or status >= 500:
        return Unavailable(
            f"{call}: {said}{tail}. The platform is busy or broken; the next tick tries again", **context
        )
    where = f" {detail}" if detail else ""
    return Rejected(f"{call}: {said}{where}{tail}", **context)


def _missing(detail: Any) -> str:
    if isinstance(detail, dict) and detail:
        return ", ".join(f"{key}: {value}" for key, value in sorted(detail.items())) + ". "
    return ""
