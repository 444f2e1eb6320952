"""Reads placement_intent strictly. The contract leaves its shape to the app."""

from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.intent.errors import IntentError, first_problem
from runner.model.platform import AppInstance


class Placement(BaseModel):
    """The two modes are explicit, and nothing is inferred."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    mode: str
    controller_allocation_id: UUID
    worker_allocation_ids: list[UUID] = Field(default_factory=list)

    @property
    def same_node(self) -> bool:
        return self.mode == "same_node"


def read_placement(instance: AppInstance) -> Placement:
    try:
        placement = Placement.model_validate(instance.placement_intent)
    except ValidationError as error:
        raise IntentError("placement_invalid", f"placement_intent cannot be used: {first_problem(error)}") from None
    if placement.mode not in ("same_node", "split"):
        raise IntentError("placement_invalid", f"placement mode {placement.mode!r} is neither same_node nor split")
    shared = placement.controller_allocation_id in placement.worker_allocation_ids
    if placement.same_node and not shared:
        raise IntentError(
            "placement_invalid", "same_node placement must name the controller's allocation among the workers"
        )
    if shared and not placement.same_node:
        raise IntentError(
            "placement_invalid",
            "split placement names the controller's allocation as a worker: use same_node, or another allocation",
        )
    return placement
