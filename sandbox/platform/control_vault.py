"""The part of the control API for Vault: logins of runners, and which Vault keeps the platform's secrets."""

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel, ConfigDict, Field

from sandbox.platform import custody, projects, vault
from sandbox.platform.store import Doc, Store


class OtherVault(BaseModel):
    model_config = ConfigDict(extra="forbid")

    address: str = Field(pattern=r"^https?://[^/@]+/?$")
    token: str = Field(min_length=1, repr=False)
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")


def add(routes: APIRouter, store: Store) -> None:
    @routes.post("/projects/{project_id}/approle")
    def create_approle(project_id: str) -> Doc:
        with store.transaction(write=True) as tx:
            projects.org_of(tx, project_id)
            return custody.of(tx).project_role(project_id)

    @routes.post("/projects/{project_id}/vault-tokens/expire")
    def expire_vault_tokens(project_id: str) -> Doc:
        with store.transaction(write=True) as tx:
            projects.org_of(tx, project_id)
            vault.expire_tokens(tx, project_id)
        return {}

    @routes.put("/vault")
    def use_vault(given: OtherVault) -> Doc:
        """Keep secrets in another Vault. Before anything is kept: nothing moves from one to the other."""
        with store.transaction(write=True) as tx:
            before = custody.another(tx)
            if before and (before.address, before.name) != (given.address.rstrip("/"), given.name):
                raise HTTPException(409, f"secrets are kept at {before.address}: another sandbox can use another Vault")
            found = custody.use(tx, given.address, given.token, given.name)
            if before is None:
                found.prepare()
        return {"address": found.address, "mount": found.name}

    @routes.get("/vault")
    def shown_vault() -> Doc:
        with store.transaction(write=False) as tx:
            found = custody.another(tx)
        return {"address": found.address, "mount": found.name} if found else {}

    @routes.delete("/vault")
    def release_vault() -> Doc:
        """Remove from another Vault what the sandbox made there."""
        with store.transaction(write=True) as tx:
            if found := custody.another(tx):
                found.release()
        return {}
