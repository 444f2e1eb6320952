"""The part of Vault's HTTP API that adapters use: AppRole login, KV v2 with check-and-set, response wrapping."""

import hmac
import json
import secrets
import uuid
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from sandbox.platform import vault_kv, wrapping
from sandbox.platform.auth import digest
from sandbox.platform.store import Doc, Store, Tx

MOUNT = "secret"
TOKEN_TTL_SECONDS = 3600


class VaultError(Exception):
    """Answered the way Vault does: a status and a list of sentences."""

    def __init__(self, status: int, *errors: str, data: Doc | None = None) -> None:
        super().__init__(*errors)
        self.status = status
        self.errors = list(errors)
        self.data = data

    def response(self) -> JSONResponse:
        return JSONResponse({"errors": self.errors} if self.data is None else _reply(self.data), self.status)


def create_role(tx: Tx, project_id: str) -> Doc:
    """An AppRole that may touch its project's secrets and no others; asking again gives it a new secret_id."""
    prefix, secret_id = f"projects/{project_id}/", secrets.token_urlsafe(32)
    row = tx.sql.execute("SELECT role_id FROM vault_roles WHERE project_id=?", (project_id,)).fetchone()
    role_id = row[0] if row else str(uuid.uuid4())
    tx.sql.execute(
        "INSERT OR REPLACE INTO vault_roles VALUES (?,?,?,?)", (role_id, digest(secret_id), prefix, project_id)
    )
    return {"role_id": role_id, "secret_id": secret_id, "mount": MOUNT, "prefix": prefix}


def expire_tokens(tx: Tx, project_id: str) -> None:
    """As if their time were over: the logins of a project's role, not what is wrapped."""
    tx.sql.execute("DELETE FROM vault_tokens WHERE prefix=? AND wrapped IS NULL", (f"projects/{project_id}/",))


def _reply(data: Doc | None, **more: Any) -> Doc:
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


async def _body(request: Request) -> Doc:
    """Handlers are sync, to run in threads beside SQLite; only the reading of the body is not."""
    try:
        body = json.loads(await request.body() or b"{}")
    except ValueError:
        raise VaultError(400, "error parsing JSON") from None
    if not isinstance(body, dict):
        raise VaultError(400, "error parsing JSON")
    return body


def _token(request: Request) -> str:
    header = request.headers.get("x-vault-token") or ""
    return header or request.headers.get("authorization", "").removeprefix("Bearer ")


def _login_required(tx: Tx, request: Request, path: str | None = None) -> wrapping.VaultToken:
    found = wrapping.look_up(tx, _token(request))
    parts = (path or "").split("/")
    inside = path is None or (found is not None and f"{path}/".startswith(found.prefix) and ".." not in parts)
    if found is None or found.wrapped is not None or not inside:
        raise VaultError(403, "permission denied")
    return found


def router(store: Store) -> APIRouter:
    routes = APIRouter(prefix="/v1")

    @routes.get("/sys/health")
    @routes.head("/sys/health")
    def health() -> Doc:
        return {"initialized": True, "sealed": False, "standby": False, "version": "1.0.0-sandbox"}

    @routes.get("/sys/seal-status")
    def seal_status() -> Doc:
        return {"type": "sandbox", "initialized": True, "sealed": False}

    @routes.post("/auth/approle/login")
    def login(body: Doc = Depends(_body)) -> Doc:  # noqa: B008 - FastAPI's way
        with store.transaction(write=True) as tx:
            row = tx.sql.execute(
                "SELECT secret_hash, prefix FROM vault_roles WHERE role_id=?", (str(body.get("role_id")),)
            ).fetchone()
            if row is None or not hmac.compare_digest(row[0], digest(str(body.get("secret_id")))):
                raise VaultError(400, "invalid role or secret ID")
            token, made = wrapping.issue(tx, row[1], int(tx.setting("vault_ttl_seconds", str(TOKEN_TTL_SECONDS))))
        auth = {
            "client_token": token,
            "accessor": made.accessor,
            "policies": ["default"],
            "token_policies": ["default"],
            "metadata": {},
            "lease_duration": made.ttl,
            "renewable": False,
            "entity_id": "",
            "token_type": "service",
            "orphan": True,
        }
        return _reply(None, auth=auth)

    @routes.get("/auth/token/lookup-self")
    def lookup_self(request: Request) -> Doc:
        with store.transaction(write=False) as tx:
            found = _login_required(tx, request)
        return _reply({"accessor": found.accessor, "ttl": found.ttl, "policies": ["default"], "type": "service"})

    @routes.post("/auth/token/revoke-self", status_code=204)
    @routes.put("/auth/token/revoke-self", status_code=204)
    def revoke_self(request: Request) -> Response:
        with store.transaction(write=True) as tx:
            _login_required(tx, request)
            wrapping.revoke(tx, _token(request))
        return Response(status_code=204)

    @routes.post("/sys/wrapping/unwrap")
    @routes.put("/sys/wrapping/unwrap")
    def unwrap(request: Request, body: Doc = Depends(_body)) -> Doc:  # noqa: B008
        with store.transaction(write=True) as tx:
            data = wrapping.unwrap(tx, str(body.get("token") or _token(request)))
        if data is None:
            raise VaultError(400, "wrapping token is not valid or does not exist")
        return _reply(data)

    @routes.post("/sys/wrapping/lookup")
    @routes.put("/sys/wrapping/lookup")
    def wrapping_lookup(request: Request, body: Doc = Depends(_body)) -> Doc:  # noqa: B008
        with store.transaction(write=False) as tx:
            found = wrapping.look_up(tx, str(body.get("token") or _token(request)))
        if found is None or found.wrapped is None:
            raise VaultError(400, "wrapping token is not valid or does not exist")
        return _reply({"creation_path": "sys/wrapping/wrap", "creation_ttl": found.ttl})

    _add_kv(routes, store)

    @routes.api_route("/{path:path}", methods=["GET", "POST", "PUT", "DELETE", "LIST", "PATCH"])
    def anything_else(path: str) -> Response:
        raise VaultError(404, f"no handler for route {path!r}")

    return routes


def _add_kv(routes: APIRouter, store: Store) -> None:
    data_path, metadata_path = f"/{MOUNT}/data/{{path:path}}", f"/{MOUNT}/metadata/{{path:path}}"

    @routes.get(data_path)
    def read(path: str, request: Request, version: int = 0) -> Doc:
        with store.transaction(write=False) as tx:
            _login_required(tx, request, path)
            found = [one for one in vault_kv.versions(tx, path) if version in (0, one.number)]
        if not found:
            raise VaultError(404)
        answer = {"data": found[-1].data, "metadata": found[-1].metadata()}
        if found[-1].deleted_at:
            raise VaultError(404, data=answer)
        return _reply(answer)

    @routes.post(data_path)
    @routes.put(data_path)
    def write(path: str, request: Request, body: Doc = Depends(_body)) -> Doc:  # noqa: B008
        data, options = body.get("data"), body.get("options") or {}
        if not isinstance(data, dict):
            raise VaultError(400, "no data provided")
        with store.transaction(write=True) as tx:
            _login_required(tx, request, path)
            try:
                made = vault_kv.write(tx, path, data, options.get("cas"))
            except vault_kv.CasError:
                raise VaultError(400, "check-and-set parameter did not match the current version") from None
        return _reply(made.metadata())

    @routes.delete(data_path, status_code=204)
    def delete(path: str, request: Request) -> Response:
        with store.transaction(write=True) as tx:
            _login_required(tx, request, path)
            vault_kv.delete_latest(tx, path)
        return Response(status_code=204)

    @routes.delete(metadata_path, status_code=204)
    def destroy(path: str, request: Request) -> Response:
        with store.transaction(write=True) as tx:
            _login_required(tx, request, path)
            vault_kv.destroy(tx, path)
        return Response(status_code=204)

    @routes.api_route(metadata_path, methods=["GET", "LIST"])
    def metadata(path: str, request: Request, list: bool = False) -> Doc:
        with store.transaction(write=False) as tx:
            _login_required(tx, request, path)
            if request.method == "LIST" or list:
                keys = vault_kv.children(tx, path)
                if not keys:
                    raise VaultError(404)
                return _reply({"keys": keys})
            found = vault_kv.versions(tx, path)
        if not found:
            raise VaultError(404)
        return _reply(
            {
                "cas_required": False,
                "created_time": found[0].created_at,
                "current_version": found[-1].number,
                "oldest_version": found[0].number,
                "versions": {str(one.number): one.metadata() for one in found},
            }
        )
