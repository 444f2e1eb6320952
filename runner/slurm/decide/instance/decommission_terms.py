"""What a teardown goes by: the parameters of a decommission, whose terms hold now, and since when.

It stands in `status_detail.lifecycle`. `operation_id` is the teardown's for good, in notes and drain reasons: that of
the operation it began with, or the instance's own id if nobody asked. `terms_of` is whose terms hold now, and
`terms_since` is when they began to: a deadline counts from there, so who asks later shortens nobody's.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from runner.intent.errors import IntentError
from runner.model import progress
from runner.model.names import CONTROLLER
from runner.model.plan import Detail, stamp
from runner.model.platform import MemberStatus, Operation
from runner.model.shapes import read_time
from runner.slurm.decide.instance import queue
from runner.slurm.snapshot import Snapshot
from runner.slurm.world import World

NAME = "decommission"


class Terms(BaseModel):
    """`parameters` of decommission."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    reason: str = Field("", max_length=120, pattern=r"^[A-Za-z0-9 _.,:/@+-]*$")
    deadline_seconds: int | None = Field(None, ge=0, le=31_536_000)
    on_deadline: Literal["cancel", "give_up"] | None = None
    keep_logs: bool = False
    remove_homes: bool = False
    abandon_unreachable: bool = False
    host_patience_seconds: int = Field(600, ge=0, le=31_536_000)

    @model_validator(mode="after")
    def _together(self) -> "Terms":
        if self.on_deadline and self.deadline_seconds is None:
            raise ValueError("on_deadline needs deadline_seconds")
        return self


def read_terms(parameters: Detail) -> Terms:
    try:
        return Terms.model_validate(parameters)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        message = f"parameters cannot be used: {where} {problem['msg']}".strip()
        raise IntentError("parameters_invalid", message) from None


@dataclass(frozen=True)
class AgreedTerms:
    """What holds for every member of one teardown."""

    id: UUID  # in the members' notes and the nodes' reasons
    asked_by: str | None  # whose terms these are: a failed member is tried again for the next who asks
    jobs_until: datetime | None  # then they are cancelled; without it they are waited for
    gives_up_at: datetime | None  # then the operation fails, and nothing is cancelled
    reason: str
    keep_logs: bool
    remove_homes: bool  # from the terms that hold now, not from a cancelled operation
    abandons: bool
    patience: timedelta


def note_of(world: World, operation: Operation | None) -> Detail:
    """The agreement, with whose terms hold now. Logs that were to be kept stay kept, whoever asks next."""
    known = queue.note(world)
    terms_of = str(operation.id if operation else world.instance.id)
    if known.get("verb") != NAME:
        known = {"operation_id": terms_of, "verb": NAME, "since": stamp(world.now), "verdict": None, "phase": "begun"}
    if known.get("terms_of") != terms_of:
        keep = bool(known.get("keep_logs")) or bool(operation and read_terms(operation.parameters).keep_logs)
        known |= {"terms_of": terms_of, "terms_since": stamp(world.now), "keep_logs": keep}
    if _answered(world.snapshot):
        known.pop("controller_silent_since", None)
    elif {kind for kind, _ in world.played} == {"drain"}:  # it was asked, and nobody else since
        known.setdefault("controller_silent_since", stamp(world.now))
    return known


def _answered(snapshot: Snapshot | None) -> bool:
    return snapshot is not None and snapshot.nodes is not None and snapshot.jobs is not None


def agreed_terms(note: Detail, terms: Terms, operation: Operation | None) -> AgreedTerms:
    since = read_time(note.get("terms_since"))
    until = since + timedelta(seconds=terms.deadline_seconds) if since and terms.deadline_seconds is not None else None
    return AgreedTerms(
        id=UUID(str(note["operation_id"])),
        asked_by=str(note["terms_of"]) if operation else None,
        jobs_until=until if terms.on_deadline == "cancel" else None,
        gives_up_at=until if terms.on_deadline != "cancel" else None,
        reason=terms.reason,
        keep_logs=bool(note.get("keep_logs")),
        remove_homes=terms.remove_homes,
        abandons=terms.abandon_unreachable,
        patience=timedelta(seconds=terms.host_patience_seconds),
    )


def lost_controller(world: World, note: Detail, terms: Terms) -> str | None:
    """Why no controller can be asked about its workers; None while one can."""
    alive = [one for one in world.members if one.status != MemberStatus.DELETED]
    controller = next((one for one in alive if one.component_key == CONTROLLER), None)
    if controller is None:
        return "there is no controller"
    known = controller.adapter_detail
    if not known.get("controller_hostname") or progress.is_stopped(controller):
        return "its controller does not serve"
    allocation = world.allocation_of(controller)
    if allocation is not None and allocation.status != "active":
        return "its controller's allocation is gone"
    silent = read_time(note.get("controller_silent_since"))
    if silent and world.now >= silent + timedelta(seconds=terms.host_patience_seconds):
        return f"its controller does not answer since {stamp(silent)}"
    return None


def silence(world: World, note: Detail, terms: Terms) -> Detail:
    """What is done about a controller that its workers cannot be asked of."""
    told = f"the controller cannot be asked since {note['controller_silent_since']}"
    if lost_controller(world, note, terms):
        return {"code": "controller_lost", "message": f"{told}: its workers' hosts are asked themselves"}
    told += f"; after {terms.host_patience_seconds} s of that its workers are taken down without it"
    return {"code": "controller_silent", "message": told}
