"""Builds the ASGI app from store, contract, API, Vault and control API."""

import os
import secrets
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

# Importing a module of calls registers its handlers.
from sandbox.platform import (
    allocations,
    artifacts,
    attachments,
    auth,
    catalog,
    control,
    credentials,
    entitlements,
    events,
    instances,
    issued_secrets,
    members,
    operations,
    runtimes,
    usage,
    vault,
    wrapping,
)
from sandbox.platform.api import Api, Incoming
from sandbox.platform.contract import Contract
from sandbox.platform.errors import ApiError
from sandbox.platform.faults import Faults
from sandbox.platform.gate import Gate, Receive, RequestLog, Scope, Send
from sandbox.platform.store import Store
from sandbox.platform.vault_answers import VaultError

CALLS = (
    allocations,
    artifacts,
    attachments,
    catalog,
    credentials,
    entitlements,
    events,
    instances,
    issued_secrets,
    members,
    operations,
    runtimes,
    usage,
)
API_PREFIX = "/api/v1"
ADMIN_TOKEN_FILE = "admin.token"  # noqa: S105 - a file name
DATABASE_FILE = "platform.sqlite"


def create_app(state: Path, contract: Path) -> Gate:
    store = Store(state / DATABASE_FILE)
    with store.transaction(write=True) as tx:
        if tx.sql.execute("SELECT 1 FROM signing_keys").fetchone() is None:
            auth.rotate_signing_key(tx)
        wrapping.keep_root(tx, admin_token(state))
    api, faults, log = Api(store, Contract(contract)), Faults(), RequestLog()
    app = FastAPI(title="sandbox platform", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get(f"{control.PREFIX}/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    async def call(request: Request) -> Response:
        fault = request.scope["sandbox.fault"]
        incoming = Incoming(
            method=request.method,
            # The raw path: a decoded slash would make it another path.
            path=request.scope["raw_path"].decode("latin-1").removeprefix(API_PREFIX),
            query=request.scope["query_string"].decode("latin-1"),
            headers=request.headers,
            body=await request.body(),
            origin=str(request.base_url).rstrip("/"),
            abort_transaction=fault is not None and fault.action == "abort_transaction",
            notes=request.scope["sandbox.notes"],
        )
        answer = await run_in_threadpool(api.answer, incoming)
        return Response(answer.body, answer.status, answer.headers, "application/json" if answer.body else None)

    app.include_router(control.router(store, faults, log, admin_token(state)))
    app.include_router(vault.router(store))

    @app.exception_handler(VaultError)
    def vault_error(_: Request, error: VaultError) -> JSONResponse:
        return error.response()

    @app.exception_handler(ApiError)
    def control_error(_: Request, error: ApiError) -> JSONResponse:
        return JSONResponse({"code": error.code, "message": error.message, "details": error.details}, error.status)

    async def entry(scope: Scope, receive: Receive, send: Send) -> None:
        # Not through FastAPI's router: the contract has the paths and methods, and the API answers 404 and 405.
        if scope["type"] == "http" and scope["path"].startswith(f"{API_PREFIX}/"):
            response = await call(Request(scope, receive))
            await response(scope, receive, send)
        else:
            await app(scope, receive, send)

    return Gate(entry, faults, log)


def admin_token(state: Path) -> str:
    """The token of the control API: created at the first start, readable by the owner of the state directory."""
    path = state / ADMIN_TOKEN_FILE
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(handle, "w") as file:
        token = secrets.token_urlsafe(32)
        file.write(token + "\n")
    return token
