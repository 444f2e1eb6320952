"""May the app get another machine here? Reads entitlements and effective_policy strictly. Pure.

Anything but a clear yes is a no, and names the rule. Policy is about machines that are new to a cluster: what runs
continues when an entitlement ends.
"""

from collections.abc import Iterable
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from runner.intent.errors import IntentError, first_problem
from runner.model.entitlements import Entitlements
from runner.model.host_data import printable
from runner.model.limits import named
from runner.model.platform import Allocation

ENABLED = "enabled"
NAME_BYTES = 64
NOT_READ = "whether the project may use the app is not known yet"

Limit = Annotated[list[Annotated[str, StringConstraints(min_length=1, max_length=128)]], Field(max_length=200)] | None


class EffectivePolicy(BaseModel):
    """Both fields are required: null restricts nothing, an empty list allows nothing."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    regions: Limit
    skus: Limit


def held(entitlements: Entitlements | None) -> str | None:
    """Why nothing begins now although nothing is refused: the platform has not answered."""
    return NOT_READ if entitlements is None else entitlements.held


def check_entitled(entitlements: Entitlements, projects: Iterable[UUID | None], app_slug: str) -> None:
    """IntentError unless the platform shows each of these projects as entitled to the app."""
    if entitlements.missing:
        if not entitlements.required:
            return
        raise IntentError(
            "entitlement_policy_missing",
            "the platform has no entitlements that could say whether the project may use this app. If that is intended,"
            " set GPUAAS_ENTITLEMENT_POLICY=none",
        )
    if entitlements.unreadable:
        raise IntentError(
            "entitlement_unreadable",
            f"the platform's entitlements cannot be used: {entitlements.unreadable}. No machine is added without a"
            " clear answer: have the record or the permission corrected, then request it again",
        )
    for project in projects:
        own = [one for one in entitlements.listed if one.project_id == project and one.app_slug == app_slug]
        bad = next((one for one in own if one.status != ENABLED), None)
        if own and bad is None:
            continue
        rule = f"entitlement {bad.id} is {printable(bad.status, NAME_BYTES)}" if bad else "it has no entitlement"
        raise IntentError(
            "not_entitled",
            f"project {project} may not use the app {printable(app_slug, NAME_BYTES)}: {rule}. No machine is added."
            " Have the app enabled for the project, then request it again",
        )


def check_allocation(entitlements: Entitlements, policy: Any, allocation: Allocation) -> None:
    """IntentError if the instance's effective_policy does not allow a machine of this region and SKU."""
    if policy is None and entitlements.missing and not entitlements.required:
        return
    try:
        allowed = EffectivePolicy.model_validate(policy)
    except ValidationError as error:
        raise IntentError(
            "effective_policy_unreadable",
            f"the instance's effective_policy cannot be used: {first_problem(error)}. No machine is added without it:"
            " have it corrected, then request it again",
        ) from None
    for rule, one, code, limit, value in (
        ("regions", "region", "region_denied", allowed.regions, allocation.region),
        ("skus", "sku", "sku_denied", allowed.skus, allocation.sku),
    ):
        if limit is not None and value not in limit:
            shown = "not given" if value is None else repr(printable(value, NAME_BYTES))
            allows = named([printable(name, NAME_BYTES) for name in limit]) or "none"
            raise IntentError(
                code,
                f"effective_policy.{rule} allows {allows}, and the {one} of allocation {allocation.id} is {shown}."
                " Choose another allocation, or have the policy changed, then request it again",
            )
