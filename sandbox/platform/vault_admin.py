"""The part of Vault's HTTP API for administrators: mounts, policies, AppRoles. It needs the root token.

With it tests prepare this stand-in and a real Vault by the same calls. Policies must be in their JSON form.
"""

import json
import secrets
import uuid

from fastapi import APIRouter, Depends, Response

from sandbox.platform import vault_kv, wrapping
from sandbox.platform.auth import digest
from sandbox.platform.store import Doc, Store, Tx
from sandbox.platform.vault_answers import VaultError, body, reply, token_of

KV_MOUNT, APPROLE_MOUNT = "secret", "auth/approle"
Rights = wrapping.Rights


def has_mount(tx: Tx, path: str) -> bool:
    found = tx.sql.execute("SELECT 1 FROM vault_mounts WHERE path=?", (path,)).fetchone()
    return found is not None or path in (KV_MOUNT, APPROLE_MOUNT)


def put_policy(tx: Tx, name: str, rights: Rights) -> None:
    tx.sql.execute("INSERT OR REPLACE INTO vault_policies VALUES (?,?)", (name, json.dumps(rights)))


def put_role(tx: Tx, mount: str, name: str, policies: list[str]) -> str:
    row = tx.sql.execute("SELECT role_id FROM vault_approles WHERE mount=? AND name=?", (mount, name)).fetchone()
    role_id = str(row[0]) if row else str(uuid.uuid4())
    tx.sql.execute(
        "INSERT OR REPLACE INTO vault_approles VALUES (?,?,?,?)", (mount, name, role_id, json.dumps(policies))
    )
    return role_id


def add_secret_id(tx: Tx, role_id: str) -> str:
    secret_id = secrets.token_urlsafe(32)
    tx.sql.execute("INSERT INTO vault_secret_ids VALUES (?,?)", (role_id, digest(secret_id)))
    return secret_id


def rights_of(tx: Tx, mount: str, role_id: str, secret_id: str) -> Rights | None:
    """The rights of this login; None if the login is wrong."""
    row = tx.sql.execute(
        "SELECT policies FROM vault_approles NATURAL JOIN vault_secret_ids"
        " WHERE mount=? AND role_id=? AND secret_hash=?",
        (mount, role_id, digest(secret_id)),
    ).fetchone()
    if row is None:
        return None
    rights: Rights = {}
    for name in json.loads(row[0]):
        policy = tx.sql.execute("SELECT rights FROM vault_policies WHERE name=?", (name,)).fetchone()
        rights |= json.loads(policy[0]) if policy else {}
    return rights


def _rights(policy: str) -> Rights:
    try:
        paths = json.loads(policy)["path"]
        return {str(path): [str(capability) for capability in rule["capabilities"]] for path, rule in paths.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise VaultError(400, "failed to parse policy: this stand-in reads JSON") from None


def router(store: Store) -> APIRouter:
    def root_only(given: str = Depends(token_of)) -> None:
        with store.transaction(write=False) as tx:
            found = wrapping.look_up(tx, given)
        if found is None or not found.may("sudo", "sys"):
            raise VaultError(403, "permission denied")

    routes = APIRouter(dependencies=[Depends(root_only)])
    _add_mounts(routes, store)
    _add_roles(routes, store)

    @routes.post("/auth/token/revoke", status_code=204)
    def revoke(given: Doc = Depends(body)) -> Response:  # noqa: B008 - FastAPI's way
        with store.transaction(write=True) as tx:
            wrapping.revoke(tx, str(given.get("token")))
        return Response(status_code=204)

    return routes


def _add_mounts(routes: APIRouter, store: Store) -> None:
    @routes.get("/sys/mounts")
    def mounts() -> Doc:
        with store.transaction(write=False) as tx:
            made = [row[0] for row in tx.sql.execute("SELECT path FROM vault_mounts WHERE path NOT LIKE 'auth/%'")]
        return reply({f"{path}/": {"type": "kv"} for path in (KV_MOUNT, *made)})

    @routes.get("/sys/policy")
    def policies() -> Doc:
        with store.transaction(write=False) as tx:
            found = [row[0] for row in tx.sql.execute("SELECT name FROM vault_policies ORDER BY name")]
        return reply({"policies": found})

    @routes.post("/sys/{kind}/{name}", status_code=204)
    def enable(kind: str, name: str, given: Doc = Depends(body)) -> Response:  # noqa: B008
        path, supported = _mount(kind, name)
        if given.get("type") != supported:
            raise VaultError(400, f"this stand-in supports only the type {supported}")
        with store.transaction(write=True) as tx:
            if has_mount(tx, path):
                raise VaultError(400, f"path is already in use at {path}/")
            tx.sql.execute("INSERT INTO vault_mounts VALUES (?)", (path,))
        return Response(status_code=204)

    @routes.delete("/sys/{kind}/{name}", status_code=204)
    def disable(kind: str, name: str) -> Response:
        if kind == "policy":
            with store.transaction(write=True) as tx:
                tx.sql.execute("DELETE FROM vault_policies WHERE name=?", (name,))
            return Response(status_code=204)
        path, _ = _mount(kind, name)
        with store.transaction(write=True) as tx:
            tx.sql.execute("DELETE FROM vault_mounts WHERE path=?", (path,))
            tx.sql.execute("DELETE FROM vault_approles WHERE mount=?", (path,))
            vault_kv.destroy_mount(tx, path)
        return Response(status_code=204)

    @routes.put("/sys/policy/{name}", status_code=204)
    def policy(name: str, given: Doc = Depends(body)) -> Response:  # noqa: B008
        with store.transaction(write=True) as tx:
            put_policy(tx, name, _rights(str(given.get("policy"))))
        return Response(status_code=204)


def _mount(kind: str, name: str) -> tuple[str, str]:
    """The path of the mount, and its only supported type."""
    if kind not in ("mounts", "auth"):
        raise VaultError(404, f"no handler for route 'sys/{kind}/{name}'")
    return (name, "kv") if kind == "mounts" else (f"auth/{name}", "approle")


def _add_roles(routes: APIRouter, store: Store) -> None:
    @routes.post("/auth/{mount}/role/{name}", status_code=204)
    def role(mount: str, name: str, given: Doc = Depends(body)) -> Response:  # noqa: B008
        with store.transaction(write=True) as tx:
            put_role(tx, f"auth/{mount}", name, str(given.get("token_policies") or "").split(","))
        return Response(status_code=204)

    @routes.get("/auth/{mount}/role/{name}/role-id")
    def role_id(mount: str, name: str) -> Doc:
        with store.transaction(write=False) as tx:
            return reply({"role_id": _role_id(tx, mount, name)})

    @routes.post("/auth/{mount}/role/{name}/secret-id")
    def secret_id(mount: str, name: str) -> Doc:
        with store.transaction(write=True) as tx:
            return reply({"secret_id": add_secret_id(tx, _role_id(tx, mount, name))})


def _role_id(tx: Tx, mount: str, name: str) -> str:
    row = tx.sql.execute(
        "SELECT role_id FROM vault_approles WHERE mount=? AND name=?", (f"auth/{mount}", name)
    ).fetchone()
    if row is None:
        raise VaultError(404)
    return str(row[0])
