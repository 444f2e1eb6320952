"""Vault's formats: answers, errors, request bodies and the token header."""

import json
import uuid
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from sandbox.platform.store import Doc


class VaultError(Exception):
    """An error in Vault's format: a status and a list of messages."""

    def __init__(self, status: int, *errors: str, data: Doc | None = None) -> None:
        super().__init__(*errors)
        self.status = status
        self.errors = list(errors)
        self.data = data

    def response(self) -> JSONResponse:
        return JSONResponse({"errors": self.errors} if self.data is None else reply(self.data), self.status)


def reply(data: Doc | None, **more: Any) -> Doc:
    base = {
        "request_id": str(uuid.uuid4()),
        "lease_id": "",
        "renewable": False,
        "lease_duration": 0,
        "data": data,
        "wrap_info": None,
        "warnings": None,
        "auth": None,
    }
    return base | more


async def body(request: Request) -> Doc:
    """The request's body. Handlers are synchronous, for SQLite in threads; only this function is not."""
    try:
        found = json.loads(await request.body() or b"{}")
    except ValueError:
        raise VaultError(400, "error parsing JSON") from None
    if not isinstance(found, dict):
        raise VaultError(400, "error parsing JSON")
    return found


def token_of(request: Request) -> str:
    header = request.headers.get("x-vault-token") or ""
    return header or request.headers.get("authorization", "").removeprefix("Bearer ")
