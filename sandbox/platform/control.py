"""The control API of the sandbox (/sandbox/v1, admin token): administration of the platform, and planted faults.

It is not part of the contract, and an adapter never calls it.
"""

import hmac
import json
import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from sandbox.platform import (
    allocations,
    apps,
    auth,
    control_policies,
    control_tenants,
    control_vault,
    credentials,
    entitlements,
    projects,
)
from sandbox.platform.errors import not_found
from sandbox.platform.faults import Fault, Faults
from sandbox.platform.gate import RequestLog
from sandbox.platform.store import Doc, Store

PREFIX = "/sandbox/v1"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewProject(Strict):
    name: str
    org_id: uuid.UUID | None = None


class NewPrincipal(Strict):
    name: str
    action_keys: list[str]
    ttl_seconds: int = Field(12 * 3600, ge=1)


class AccountChange(Strict):
    action_keys: list[str] | None = None
    active: bool | None = None


class AllocationState(Strict):
    status: str
    name: str | None = None
    connection: dict[str, Any] | None = None
    sku: str | None = None
    region: str | None = None
    gpus: int | None = None


class StatusChange(Strict):
    status: str


class NewCredential(Strict):
    """For a machine, or for an artifact source."""

    username: str
    private_key: str | None = None
    password: str | None = None


class Settings(Strict):
    token_ttl_seconds: int | None = Field(None, ge=1)
    delivery_ttl_seconds: int | None = Field(None, ge=1)
    vault_ttl_seconds: int | None = Field(None, ge=1)
    # 1: the platform issues runtime secrets.
    runtime_secret_issue: int | None = Field(None, ge=0, le=1)


def router(store: Store, faults: Faults, log: RequestLog, admin_token: str) -> APIRouter:
    def admin_only(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), admin_token.encode()):
            raise HTTPException(401, "send the token of the state directory's admin.token")

    routes = APIRouter(prefix=PREFIX, dependencies=[Depends(admin_only)])
    _add_projects(routes, store)
    _add_principals(routes, store)
    _add_project_content(routes, store)
    _add_platform_state(routes, store)
    control_policies.add(routes, store)
    control_tenants.add(routes, store)
    control_vault.add(routes, store)
    _add_observation(routes, store, faults, log)
    return routes


def _add_projects(routes: APIRouter, store: Store) -> None:
    @routes.post("/projects")
    def create_project(new: NewProject) -> Doc:
        """Without org_id in a tenant of its own."""
        with store.transaction(write=True) as tx:
            made = projects.create(tx, new.name, str(new.org_id) if new.org_id else None)
            entitlements.grant(tx, project_id=made["project_id"])
            return made

    @routes.put("/apps")
    def register_app(manifest: Annotated[dict[str, Any], Body()]) -> Doc:
        with store.transaction(write=True) as tx:
            row = apps.register(tx, manifest)
            entitlements.grant(tx, app_slug=manifest["app_slug"])
            return apps.in_catalog(row.doc, row.etag)


def _add_principals(routes: APIRouter, store: Store) -> None:
    @routes.post("/projects/{project_id}/service-accounts")
    def create_service_account(project_id: str, new: NewPrincipal) -> Doc:
        with store.transaction(write=True) as tx:
            org = projects.org_of(tx, project_id)
            made = auth.create_principal(
                tx, auth.SERVICE_ACCOUNT, org, new.name, new.action_keys, project_id=project_id
            )
            return {"service_account_id": made.id, **auth.create_account_key(tx, made.id)}

    @routes.post("/service-accounts/{account_id}/keys")
    def add_key(account_id: str) -> Doc:
        with store.transaction(write=True) as tx:
            if auth.find_principal(tx, account_id) is None:
                raise not_found("service_account")
            return {"service_account_id": account_id, **auth.create_account_key(tx, account_id)}

    @routes.delete("/service-accounts/{account_id}/keys/{key_id}")
    def revoke_key(account_id: str, key_id: str) -> Doc:
        """The key gets no new tokens; its earlier tokens stay valid until they expire."""
        with store.transaction(write=True) as tx:
            tx.sql.execute("UPDATE account_keys SET revoked=1 WHERE key_id=? AND principal_id=?", (key_id, account_id))
        return {"revoked": key_id}

    @routes.patch("/service-accounts/{account_id}")
    def change_account(account_id: str, change: AccountChange) -> Doc:
        with store.transaction(write=True) as tx:
            if change.action_keys is not None:
                keys = json.dumps(sorted(change.action_keys))
                tx.sql.execute("UPDATE principals SET action_keys=? WHERE id=?", (keys, account_id))
            if change.active is not None:
                tx.sql.execute("UPDATE principals SET active=? WHERE id=?", (change.active, account_id))
        return {"service_account_id": account_id}

    @routes.post("/projects/{project_id}/operator-tokens")
    def mint_operator_token(project_id: str, new: NewPrincipal) -> Doc:
        with store.transaction(write=True) as tx:
            org = projects.org_of(tx, project_id)
            made = auth.create_principal(tx, "user", org, new.name, new.action_keys, project_id=project_id)
            token = auth.mint(tx, made, new.ttl_seconds)
            return {"operator_id": made.id, "access_token": token, "expires_in": new.ttl_seconds}

    @routes.post("/signing-keys/rotate")
    def rotate(immediate: bool = False) -> Doc:
        """With `immediate` the former keys end at once, as after a leak, and every earlier token is invalid."""
        with store.transaction(write=True) as tx:
            kid = auth.rotate_signing_key(tx)
            if immediate:
                tx.sql.execute("DELETE FROM signing_keys WHERE kid<>?", (kid,))
        return {"kid": kid}


def _add_project_content(routes: APIRouter, store: Store) -> None:
    @routes.put("/projects/{project_id}/allocations/{allocation_id}")
    def put_allocation(project_id: str, allocation_id: uuid.UUID, state: AllocationState) -> Doc:
        with store.transaction(write=True) as tx:
            projects.org_of(tx, project_id)
            row = tx.find(allocations.KIND, str(allocation_id), project=project_id)
            if row is None:
                doc = {"id": str(allocation_id), "project_id": project_id, **state.model_dump()}
                return tx.insert(allocations.KIND, doc).shown()
            return tx.save(row, state.model_dump()).shown()

    @routes.post("/projects/{project_id}/allocations/{allocation_id}/status")
    def set_allocation_status(project_id: str, allocation_id: str, change: StatusChange) -> Doc:
        with store.transaction(write=True) as tx:
            row = tx.get(allocations.KIND, allocation_id, project=project_id)
            return tx.save(row, {"status": change.status}).shown()

    @routes.put("/projects/{project_id}/access-credentials/{credential_id}")
    def put_credential(project_id: str, credential_id: uuid.UUID, new: NewCredential) -> Doc:
        with store.transaction(write=True) as tx:
            projects.org_of(tx, project_id)
            row = credentials.upsert(tx, project_id, str(credential_id), new.model_dump(exclude_none=True))
            return row.doc

    @routes.post("/projects/{project_id}/access-credentials/{credential_id}/status")
    def set_credential_status(
        project_id: str,
        credential_id: str,
        status: Annotated[Literal["active", "revoked", "rotated"], Body(embed=True)],
    ) -> Doc:
        with store.transaction(write=True) as tx:
            return credentials.set_status(tx, project_id, credential_id, status)


def _add_platform_state(routes: APIRouter, store: Store) -> None:
    @routes.put("/settings")
    def change_settings(change: Settings) -> Doc:
        given = change.model_dump(exclude_none=True)
        with store.transaction(write=True) as tx:
            for name, value in given.items():
                tx.set_setting(name, str(value))
        return given


def _rows(store: Store, table: Literal["audit", "violations"], json_column: str) -> list[Doc]:
    with store.transaction(write=False) as tx:
        cursor = tx.sql.execute(f"SELECT * FROM {table} ORDER BY seq")  # noqa: S608 - a literal of ours
        names = [column[0] for column in cursor.description]
        found = [dict(zip(names, row, strict=True)) for row in cursor]
    return [{**row, json_column: json.loads(row[json_column])} for row in found]


def _add_observation(routes: APIRouter, store: Store, faults: Faults, log: RequestLog) -> None:
    @routes.get("/audit")
    def audit() -> list[Doc]:
        return _rows(store, "audit", "changes")

    @routes.get("/violations")
    def violations() -> list[Doc]:
        return _rows(store, "violations", "problems")

    @routes.delete("/violations")
    def forget_violations() -> Doc:
        with store.transaction(write=True) as tx:
            tx.sql.execute("DELETE FROM violations")
        return {}

    @routes.get("/requests")
    def requests(since: int = 0) -> Doc:
        found = log.since(since)
        return {"count": len(found), "last": log.last, "requests": found}

    @routes.put("/requests/bodies")
    def keep_bodies(keep: Annotated[bool, Body(embed=True)]) -> Doc:
        """Whether requests are kept with their bodies and answers from now on."""
        log.keeps_bodies = keep
        return {"keep": keep}

    @routes.post("/faults")
    def add_fault(fault: Fault) -> Doc:
        faults.add(fault)
        return fault.model_dump()

    @routes.get("/faults")
    def pending_faults() -> list[Fault]:
        return faults.pending()

    @routes.get("/held")
    def held() -> list[str]:
        return list(faults.held)

    @routes.delete("/faults")
    def clear_faults() -> list[Fault]:
        """Returns the faults that no request met."""
        return faults.clear()
