"""The part of the control API for tenants: administrators, operators of shared runtimes, people of a project."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict, Field

from sandbox.platform import auth, custody, membership, owners, projects
from sandbox.platform.errors import not_found
from sandbox.platform.store import Doc, Row, Store, Tx


class NewIdentity(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    action_keys: list[str]
    ttl_seconds: int = Field(12 * 3600, ge=1)


class Person(BaseModel):
    """A person or account that belongs to a project."""

    model_config = ConfigDict(extra="forbid")

    subject: str = Field(min_length=1, max_length=255)
    username: str | None = None
    uid: int | None = Field(None, ge=0)
    gid: int | None = Field(None, ge=0)
    ssh_keys: list[str] = []


def add(routes: APIRouter, store: Store) -> None:
    @routes.post("/orgs/{org_id}/administrator-tokens")
    def mint_administrator_token(org_id: uuid.UUID, new: NewIdentity) -> Doc:
        with store.transaction(write=True) as tx:
            made = auth.create_principal(tx, "user", str(org_id), new.name, new.action_keys)
            token = auth.mint(tx, made, new.ttl_seconds)
            return {"administrator_id": made.id, "access_token": token, "expires_in": new.ttl_seconds}

    @routes.post("/shared-runtimes/{runtime_id}/operators")
    def create_runtime_operator(runtime_id: str, new: NewIdentity) -> Doc:
        with store.transaction(write=True) as tx:
            org = _runtime(tx, runtime_id).doc["org_id"]
            made = auth.create_principal(
                tx, auth.RUNTIME_OPERATOR, org, new.name, new.action_keys, shared_runtime_id=runtime_id
            )
            return {"shared_runtime_id": runtime_id, **auth.create_account_key(tx, made.id)}

    @routes.post("/shared-runtimes/{runtime_id}/approle")
    def create_runtime_approle(runtime_id: str) -> Doc:
        with store.transaction(write=True) as tx:
            return custody.of(tx).runtime_role(_runtime(tx, runtime_id).doc["org_id"], runtime_id)

    @routes.get("/projects/{project_id}/identities")
    def identities(project_id: str) -> list[Doc]:
        with store.transaction(write=False) as tx:
            projects.org_of(tx, project_id)
            return projects.identities(tx, project_id)

    @routes.put("/projects/{project_id}/identities")
    def set_identities(project_id: str, people: Annotated[list[Person], Body()]) -> Doc:
        with store.transaction(write=True) as tx:
            membership.set_identities(tx, project_id, [one.model_dump() for one in people])
        return {"project_id": project_id, "count": len(people)}

    @routes.post("/projects/{project_id}/leave-tenant")
    def leave_tenant(project_id: str) -> Doc:
        with store.transaction(write=True) as tx:
            return {"project_id": project_id, "org_id": membership.leave_tenant(tx, project_id)}


def _runtime(tx: Tx, runtime_id: str) -> Row:
    row = tx.sql.execute(
        "SELECT parent_id FROM objects WHERE kind=? AND id=?", (owners.RUNTIME.kind, runtime_id)
    ).fetchone()
    if row is None:
        raise not_found(owners.RUNTIME.kind)
    return tx.get(owners.RUNTIME.kind, runtime_id, parent=row[0])
