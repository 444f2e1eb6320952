"""What verbs on a whole cluster share: its members, further attempts, and how such an operation ends."""

from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel

from runner.intent.errors import IntentError
from runner.model.instance_notes import Reason
from runner.model.member_notes import MemberNotes
from runner.model.plan import AdapterError, Detail, SetMember, Step, Wait
from runner.model.platform import Health, InstanceStatus, Member, MemberStatus, Operation
from runner.slurm.components import WORKER
from runner.slurm.controller import find_controller
from runner.slurm.decide.instance import queue
from runner.slurm.decide.workers.terms import read_as
from runner.slurm.health import health as judge
from runner.slurm.lifecycle_notes import VerbNote, noted_error
from runner.slurm.world import World

NOT_REACHED = "the play did not reach the controller; the next tick continues"
N = TypeVar("N", bound=VerbNote)


def controller_of(world: World) -> Member:
    found = find_controller(world.members)
    if found is None:
        raise IntentError("controller_missing", "the instance has no controller, so the operation cannot run")
    return found


def workers_of(world: World) -> list[Member]:
    """Workers that are there: not gone, and not being taken out."""
    going = (MemberStatus.DELETED, MemberStatus.DELETING)
    found = [one for one in world.members if one.component_key == WORKER and one.status not in going]
    return sorted(found, key=lambda member: str(member.id))


def takes(terms: type[BaseModel]) -> Callable[[World, Operation], None]:
    """A verb's check: its parameters are these, and the instance has a controller."""

    def check(world: World, operation: Operation) -> None:
        read_as(terms, operation.parameters)
        controller_of(world)

    return check


def label(operation: Operation | None) -> str:
    return operation.label if operation else "instance"


def after_failure(world: World, note: N, error: AdapterError) -> N | None:
    """The note with one more failure, due again after a pause; None after the last attempt."""
    if note.attempts.is_counted(world.now):
        return note
    attempts = note.attempts.failed(world.now, error.code, world.policy.retry_seconds)
    if attempts.is_spent(world.policy.max_attempts):
        return None
    return note.but(attempts=attempts, waiting=f"{error.code}: {error.message}")


def try_again(
    world: World, operation: Operation | None, note: VerbNote, controller: Member, error: AdapterError, reason: Reason
) -> list[Step] | None:
    """Note the failure on the instance and the controller; None if no further attempt is made."""
    why = f"{error.code}: {error.message}"
    failed = after_failure(world, note, error) if error.klass == "retryable" else None
    if failed is None:
        return None
    steps = queue.write_note(world, failed, reasons=[reason])
    changes = MemberNotes(last_adapter_error=error.as_note(world.now)).changes
    return [*steps, SetMember(why, controller, controller.status, changes), Wait(why, label(operation))]


def end(
    world: World,
    operation: Operation | None,
    note: VerbNote,
    *,
    error: AdapterError | None = None,
    status: InstanceStatus | None = None,
    health: Health | None = None,
    reasons: list[Reason] | None = None,
    result: Detail | None = None,
) -> list[Step]:
    """Write the result into the note, then end the operation, which is None if it was cancelled."""
    if health is None:
        health, seen = judge(world.snapshot, world.members, world.policy, world.unknown_allocations.values())
        reasons = seen if reasons is None else reasons
    ended = ended_note(note, error)
    ended = ended if operation else ended.but(result="cancelled")
    steps = queue.write_note(world, ended, status=status, health=health, reasons=reasons or [])
    if operation is None:
        return steps
    return [*steps, queue.finish(operation, ended, ended.operation_result() if result is None else result)]


def ended_note(note: N, error: AdapterError | None) -> N:
    attempts, failure = note.attempts.but(next_at=None), noted_error(error) if error else None
    return note.but(result="failed" if error else "done", error=failure, waiting=None, attempts=attempts)
