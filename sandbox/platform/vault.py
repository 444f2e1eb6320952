"""The part of Vault's HTTP API that adapters use: AppRole login, KV v2 with check-and-set, response wrapping."""

from fastapi import APIRouter, Depends, Request, Response

from sandbox.platform import vault_admin, vault_kv, wrapping
from sandbox.platform.store import Doc, Store, Tx
from sandbox.platform.vault_answers import VaultError, body, reply, token_of

TOKEN_TTL_SECONDS = 3600


def create_project_role(tx: Tx, project_id: str) -> Doc:
    """Create an AppRole that may use only its project's secrets; a second call gives it a new secret_id."""
    prefix = f"projects/{project_id}/"
    return _create_role(tx, f"project-{project_id}", f"{prefix}*") | {"prefix": prefix}


def create_runtime_role(tx: Tx, org_id: str, runtime_id: str) -> Doc:
    """The same for a shared runtime, which has one path and nothing below it."""
    path = f"orgs/{org_id}/shared-app-runtimes/{runtime_id}"
    return _create_role(tx, f"shared-runtime-{runtime_id}", path) | {"path": path}


def _create_role(tx: Tx, name: str, path: str) -> Doc:
    paths = [f"{vault_admin.KV_MOUNT}/{kind}/{path}" for kind in ("data", "metadata")]
    vault_admin.put_policy(tx, name, dict.fromkeys(paths, wrapping.EVERYTHING))
    role_id = vault_admin.put_role(tx, vault_admin.APPROLE_MOUNT, name, [name])
    tx.sql.execute("DELETE FROM vault_secret_ids WHERE role_id=?", (role_id,))
    secret_id = vault_admin.add_secret_id(tx, role_id)
    return {"role_id": role_id, "secret_id": secret_id, "mount": vault_admin.KV_MOUNT}


def expire_tokens(tx: Tx, project_id: str) -> None:
    """Expire the logins of a project's role, but not wrapping tokens."""
    tx.sql.execute("DELETE FROM vault_logins WHERE wrapped IS NULL AND instr(rights, ?)", (f"projects/{project_id}/*",))


def _login_required(tx: Tx, request: Request) -> wrapping.VaultToken:
    found = wrapping.look_up(tx, token_of(request))
    if found is None or found.wrapped is not None:
        raise VaultError(403, "permission denied")
    return found


def _stored(mount: str, path: str) -> str:
    return path if mount == vault_admin.KV_MOUNT else f"{mount}:{path}"


def _may(tx: Tx, request: Request, capability: str, mount: str, kind: str, path: str) -> str:
    """The stored path of a secret, if the caller's token has the capability there."""
    if not _login_required(tx, request).may(capability, f"{mount}/{kind}/{path}"):
        raise VaultError(403, "permission denied")
    if not vault_admin.has_mount(tx, mount):
        raise VaultError(404, f"no handler for route {mount!r}")
    return _stored(mount, path)


def router(store: Store) -> APIRouter:
    routes = APIRouter(prefix="/v1")

    @routes.get("/sys/health")
    @routes.head("/sys/health")
    def health() -> Doc:
        return {"initialized": True, "sealed": False, "standby": False, "version": "1.0.0-sandbox"}

    @routes.get("/sys/seal-status")
    def seal_status() -> Doc:
        return {"type": "sandbox", "initialized": True, "sealed": False}

    @routes.post("/auth/{mount}/login")
    def login(mount: str, given: Doc = Depends(body)) -> Doc:  # noqa: B008 - FastAPI's way
        with store.transaction(write=True) as tx:
            if not vault_admin.has_mount(tx, f"auth/{mount}"):
                raise VaultError(404, f"no handler for route 'auth/{mount}/login'")
            role_id, secret_id = str(given.get("role_id")), str(given.get("secret_id"))
            rights = vault_admin.rights_of(tx, f"auth/{mount}", role_id, secret_id)
            if rights is None:
                raise VaultError(400, "invalid role or secret ID")
            token, made = wrapping.issue(tx, rights, int(tx.setting("vault_ttl_seconds", str(TOKEN_TTL_SECONDS))))
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
        return reply(None, auth=auth)

    @routes.get("/auth/token/lookup-self")
    def lookup_self(request: Request) -> Doc:
        with store.transaction(write=False) as tx:
            found = _login_required(tx, request)
        return reply({"accessor": found.accessor, "ttl": found.ttl, "policies": ["default"], "type": "service"})

    @routes.post("/auth/token/revoke-self", status_code=204)
    @routes.put("/auth/token/revoke-self", status_code=204)
    def revoke_self(request: Request) -> Response:
        with store.transaction(write=True) as tx:
            _login_required(tx, request)
            wrapping.revoke(tx, token_of(request))
        return Response(status_code=204)

    @routes.post("/sys/wrapping/unwrap")
    @routes.put("/sys/wrapping/unwrap")
    def unwrap(request: Request, given: Doc = Depends(body)) -> Doc:  # noqa: B008
        with store.transaction(write=True) as tx:
            # A wrapping token in the body needs a login token; without a body, the wrapping token is the login.
            if not token_of(request):
                raise VaultError(400, "missing client token")
            if "token" in given:
                _login_required(tx, request)
            data = wrapping.unwrap(tx, str(given.get("token") or token_of(request)))
        if data is None:
            raise VaultError(400, "wrapping token is not valid or does not exist")
        return reply(data)

    @routes.post("/sys/wrapping/wrap")
    def wrap(request: Request, given: Doc = Depends(body)) -> Doc:  # noqa: B008
        ttl = int(request.headers.get("x-vault-wrap-ttl") or 300)
        with store.transaction(write=True) as tx:
            _login_required(tx, request)
            token, _ = wrapping.wrap(tx, given, ttl)
        return reply(None, wrap_info={"token": token, "ttl": ttl, "creation_path": "sys/wrapping/wrap"})

    @routes.post("/sys/wrapping/lookup")
    @routes.put("/sys/wrapping/lookup")
    def wrapping_lookup(request: Request, given: Doc = Depends(body)) -> Doc:  # noqa: B008
        with store.transaction(write=False) as tx:
            found = wrapping.look_up(tx, str(given.get("token") or token_of(request)))
        if found is None or found.wrapped is None:
            raise VaultError(400, "wrapping token is not valid or does not exist")
        return reply({"creation_path": "sys/wrapping/wrap", "creation_ttl": found.ttl})

    _add_kv(routes, store)
    routes.include_router(vault_admin.router(store))

    @routes.api_route("/{path:path}", methods=["GET", "POST", "PUT", "DELETE", "LIST", "PATCH"])
    def anything_else(path: str) -> Response:
        raise VaultError(404, f"no handler for route {path!r}")

    return routes


def _add_kv(routes: APIRouter, store: Store) -> None:
    data_path, metadata_path = "/{mount}/data/{path:path}", "/{mount}/metadata/{path:path}"

    @routes.get(data_path)
    def read(mount: str, path: str, request: Request, version: int = 0) -> Doc:
        with store.transaction(write=False) as tx:
            path = _may(tx, request, "read", mount, "data", path)
            found = [one for one in vault_kv.versions(tx, path) if version in (0, one.number)]
        if not found:
            raise VaultError(404)
        answer = {"data": found[-1].data, "metadata": found[-1].metadata()}
        if found[-1].deleted_at:
            raise VaultError(404, data=answer)
        return reply(answer)

    @routes.post(data_path)
    @routes.put(data_path)
    def write(mount: str, path: str, request: Request, given: Doc = Depends(body)) -> Doc:  # noqa: B008
        data, options = given.get("data"), given.get("options") or {}
        if not isinstance(data, dict):
            raise VaultError(400, "no data provided")
        with store.transaction(write=True) as tx:
            is_new = vault_kv.latest(tx, _stored(mount, path)) is None
            path = _may(tx, request, "create" if is_new else "update", mount, "data", path)
            try:
                made = vault_kv.write(tx, path, data, options.get("cas"))
            except vault_kv.CasError:
                raise VaultError(400, "check-and-set parameter did not match the current version") from None
        return reply(made.metadata())

    @routes.delete(data_path, status_code=204)
    def delete(mount: str, path: str, request: Request) -> Response:
        with store.transaction(write=True) as tx:
            path = _may(tx, request, "delete", mount, "data", path)
            vault_kv.delete_latest(tx, path)
        return Response(status_code=204)

    @routes.post("/{mount}/undelete/{path:path}", status_code=204)
    def undelete(mount: str, path: str, request: Request, given: Doc = Depends(body)) -> Response:  # noqa: B008
        with store.transaction(write=True) as tx:
            vault_kv.undelete(tx, _may(tx, request, "update", mount, "undelete", path), given.get("versions") or [])
        return Response(status_code=204)

    @routes.delete(metadata_path, status_code=204)
    def destroy(mount: str, path: str, request: Request) -> Response:
        with store.transaction(write=True) as tx:
            path = _may(tx, request, "delete", mount, "metadata", path)
            vault_kv.destroy(tx, path)
        return Response(status_code=204)

    @routes.api_route(metadata_path, methods=["GET", "LIST"])
    def metadata(mount: str, path: str, request: Request, list: bool = False) -> Doc:
        with store.transaction(write=False) as tx:
            listing = list or request.method == "LIST"
            path = _may(tx, request, "list" if listing else "read", mount, "metadata", path)
            if listing:
                keys = vault_kv.children(tx, path)
                if not keys:
                    raise VaultError(404)
                return reply({"keys": keys})
            found = vault_kv.versions(tx, path)
        if not found:
            raise VaultError(404)
        return reply(
            {
                "cas_required": False,
                "created_time": found[0].created_at,
                "current_version": found[-1].number,
                "oldest_version": found[0].number,
                "versions": {str(one.number): one.metadata() for one in found},
            }
        )
