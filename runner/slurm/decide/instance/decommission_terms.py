"""The terms of a decommission: its parameters, the operation whose terms apply now, and since when.

The note's `operation_id` never changes, and is in members' notes and drain reasons: that of the first operation, or the
instance's own id if the platform deleted the instance. A deadline counts from `terms_since`, so a later request does
not shorten it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from runner.model import progress
from runner.model.instance_notes import Reason
from runner.model.plan import Detail, stamp
from runner.model.platform import Operation
from runner.slurm import notes
from runner.slurm.controller import find_controller
from runner.slurm.decide.instance import queue
from runner.slurm.decide.workers.terms import read_as
from runner.slurm.lifecycle_notes import DecommissionNote
from runner.slurm.snapshot import Snapshot
from runner.slurm.world import World

NAME: Final = "decommission"


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
    return read_as(Terms, parameters)


@dataclass(frozen=True)
class AgreedTerms:
    """What applies to every member of one decommission."""

    id: UUID  # in the members' notes and the nodes' reasons
    requested_by: str | None  # the operation whose terms these are: a failed member is tried again for the next one
    jobs_until: datetime | None  # then jobs are cancelled; without it they are waited for
    gives_up_at: datetime | None  # then the operation fails, and nothing is cancelled
    reason: str
    keep_logs: bool
    remove_homes: bool  # from the terms that apply now, not from a cancelled operation
    abandons: bool
    patience: timedelta


def note_of(world: World, operation: Operation | None) -> DecommissionNote:
    """The note, with the operation whose terms apply now. Logs that were to be kept stay kept, whatever comes later."""
    before = queue.note(world)
    terms_of = operation.id if operation else world.instance.id
    note = before if isinstance(before, DecommissionNote) else None
    if note is None or note.terms_of != terms_of:
        keep = bool(note and note.keep_logs) or bool(operation and read_terms(operation.parameters).keep_logs)
        first = note or DecommissionNote(
            operation_id=terms_of, verb=NAME, started_at=world.now, terms_of=terms_of, terms_since=world.now
        )
        note = first.but(terms_of=terms_of, terms_since=world.now, keep_logs=keep)
    if _answered(world.snapshot):
        return note.but(controller_silent_since=None)
    if {kind for kind, _ in world.played} == {"drain"}:  # it was asked, and nothing else was done since
        return note.but(controller_silent_since=note.controller_silent_since or world.now)
    return note


def _answered(snapshot: Snapshot | None) -> bool:
    return snapshot is not None and snapshot.nodes is not None and snapshot.jobs is not None


def agreed_terms(note: DecommissionNote, terms: Terms, operation: Operation | None) -> AgreedTerms:
    seconds = terms.deadline_seconds
    until = note.terms_since + timedelta(seconds=seconds) if seconds is not None else None
    return AgreedTerms(
        id=note.operation_id,
        requested_by=str(note.terms_of) if operation else None,
        jobs_until=until if terms.on_deadline == "cancel" else None,
        gives_up_at=until if terms.on_deadline != "cancel" else None,
        reason=terms.reason,
        keep_logs=note.keep_logs,
        remove_homes=terms.remove_homes,
        abandons=terms.abandon_unreachable,
        patience=timedelta(seconds=terms.host_patience_seconds),
    )


def lost_controller(world: World, note: DecommissionNote, terms: Terms) -> str | None:
    """Why no controller can be asked about its workers; None while one can."""
    controller = find_controller(world.members)
    if controller is None:
        return "there is no controller"
    if not notes.controller(controller).controller_hostname or progress.is_stopped(controller):
        return "its controller does not serve"
    allocation = world.allocation_of(controller)
    if allocation is not None and allocation.status != "active":
        return "its controller's allocation is gone"
    silent = note.controller_silent_since
    if silent and world.now >= silent + timedelta(seconds=terms.host_patience_seconds):
        return f"its controller has not answered since {stamp(silent)}"
    return None


def silence(world: World, note: DecommissionNote, terms: Terms, since: datetime) -> Reason:
    """The reason while a controller does not answer."""
    silent = f"the controller has not answered since {stamp(since)}"
    if lost_controller(world, note, terms):
        return Reason(code="controller_lost", message=f"{silent}: each worker's host is checked for jobs")
    message = f"{silent}; after {terms.host_patience_seconds} s its workers are removed without it"
    return Reason(code="controller_silent", message=message)
