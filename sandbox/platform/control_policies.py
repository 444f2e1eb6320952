"""The part of the control API for policies: of artifact sources, of regions and SKUs, and who may use an app."""

import uuid
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from sandbox.platform import artifacts, entitlements, projects
from sandbox.platform.store import Doc, Store


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ArtifactRule(Strict):
    scope: Literal["global", "tenant", "project"]
    effect: Literal["allow", "deny"]
    artifact: str
    owner_id: str | None = None
    reason: str | None = None
    source: dict[str, Any] | None = None


class PlacementPolicy(Strict):
    regions: list[str] | None = None
    skus: list[str] | None = None


class EntitlementState(Strict):
    status: Literal["enabled", "disabled"]
    policy: PlacementPolicy | None = None


def add(routes: APIRouter, store: Store) -> None:
    @routes.put("/artifact-rules/{rule_id}")
    def put_rule(rule_id: str, rule: ArtifactRule) -> Doc:
        doc = {"id": rule_id, **rule.model_dump()}
        with store.transaction(write=True) as tx:
            artifacts.put_rule(tx, doc)
        return doc

    @routes.put("/placement-policy")
    def restrict(policy: PlacementPolicy, org_id: uuid.UUID | None = None) -> Doc:
        """Of one tenant's projects; of every project, if no tenant is given."""
        with store.transaction(write=True) as tx:
            entitlements.restrict(tx, str(org_id) if org_id else None, policy.model_dump())
        return policy.model_dump()

    @routes.put("/projects/{project_id}/entitlements/{app_slug}")
    def put_entitlement(project_id: str, app_slug: str, state: EntitlementState) -> Doc:
        with store.transaction(write=True) as tx:
            projects.org_of(tx, project_id)
            policy = state.policy.model_dump() if state.policy else None
            return entitlements.put(tx, project_id, app_slug, state.status, policy).shown()

    @routes.delete("/artifact-rules/{rule_id}")
    def delete_rule(rule_id: str) -> Doc:
        with store.transaction(write=True) as tx:
            tx.sql.execute("DELETE FROM artifact_rules WHERE id=?", (rule_id,))
        return {"deleted": rule_id}
