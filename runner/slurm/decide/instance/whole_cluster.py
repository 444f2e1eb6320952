"""What verbs on a whole cluster share: its parts, its partitions, tries in a row, and how such an operation ends."""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from runner.intent.errors import IntentError
from runner.model import limits
from runner.model.names import CONTROLLER, WORKER
from runner.model.plan import AdapterError, Detail, SetMember, Step, Wait, stamp
from runner.model.platform import Health, InstanceStatus, Member, MemberStatus, Operation
from runner.model.shapes import read_time
from runner.slurm.decide.instance import queue
from runner.slurm.decide.workers.leave import read_as
from runner.slurm.health import health as judge
from runner.slurm.world import World

NOT_REACHED = "the play did not get to the controller; the next tick goes on"
STATES = ("UP", "DOWN", "DRAIN", "INACTIVE")
PARTITIONS_BYTES = 3000
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")


def controller_of(world: World) -> Member:
    for member in world.members:
        if member.component_key == CONTROLLER and member.status != MemberStatus.DELETED:
            return member
    raise IntentError("controller_missing", "the instance has no controller, so there is nothing to ask")


def workers_of(world: World) -> list[Member]:
    """Workers that are there: not gone, and not being taken out."""
    going = (MemberStatus.DELETED, MemberStatus.DELETING)
    found = [one for one in world.members if one.component_key == WORKER and one.status not in going]
    return sorted(found, key=lambda member: str(member.id))


def takes(terms: type[BaseModel]) -> Callable[[World, Operation], None]:
    """A verb's check: its parameters are these, and there is a controller to ask."""

    def check(world: World, operation: Operation) -> None:
        read_as(terms, operation.parameters)
        controller_of(world)

    return check


def partitions(known: Detail) -> dict[str, str]:
    """Partitions and their states out of a note; they go to a controller, so what is not a name or a state is left."""
    listed = known.get("partitions")
    pairs = listed.items() if isinstance(listed, dict) else ()
    return {name: state for name, state in pairs if _PARTITION.fullmatch(str(name)) and state in STATES}


def notable_partitions(found: Mapping[str, str]) -> dict[str, str]:
    """Partitions as a note keeps them: the first by name, as many as fit beside the rest of the record."""
    kept: dict[str, str] = {}
    used = 0
    for name, state in sorted(partitions({"partitions": dict(found)}).items()):
        used += limits.size({name: state})
        if used > PARTITIONS_BYTES:
            break
        kept[name] = state
    return kept


def label(operation: Operation | None) -> str:
    return f"{operation.operation} {str(operation.id)[:8]}" if operation else "instance"


def next_try(world: World, known: Detail, error: AdapterError) -> Detail | None:
    """What to note so that it is tried again, later each time; None when it has been tried often enough."""
    tried = int(known.get("attempts") or 0) + 1
    if error.klass != "retryable" or tried >= world.policy.max_attempts:
        return None
    due = world.now + timedelta(seconds=world.policy.retry_seconds * 2 ** (tried - 1))
    return {
        "attempts": tried,
        "next_attempt_at": stamp(due),
        "last_error": {"code": error.code, "at": stamp(world.now)},
    }


def not_due(world: World, known: Detail) -> str | None:
    due = read_time(known.get("next_attempt_at"))
    return f"the next try is at {stamp(due)}" if due and due > world.now else None


def try_again(
    world: World,
    operation: Operation | None,
    known: Detail,
    controller: Member,
    error: AdapterError,
    reasons: list[Detail],
) -> list[Step] | None:
    """Note that it is tried again, and take the outcome for judged; None when it has been tried often enough."""
    again = next_try(world, known, error)
    if again is None:
        return None
    words = f"{error.code}: {error.message}"
    told = {"last_adapter_error": error.as_detail(world.now)}
    said = queue.say(world, operation, waiting=words, reasons=reasons, **again)
    return [*said, SetMember(words, controller, controller.status, told), Wait(words, label(operation))]


def once_written(world: World, steps: list[SetMember]) -> World:
    """The world once these are written: what is said of the instance with them counts the members as they are then."""
    written = {step.member.id: step.member.written(step.status, step.detail) for step in steps}
    return world.later(members=tuple(written.get(one.id, one) for one in world.members))


def end(
    world: World,
    operation: Operation | None,
    result: Detail,
    *,
    error: AdapterError | None = None,
    status: InstanceStatus | None = None,
    health: Health | None = None,
    reasons: list[Detail] | None = None,
    **more: Any,
) -> list[Step]:
    """The verdict in the note, and the operation's end. Without an operation, a person called it off."""
    if health is None:
        health, seen = judge(world.snapshot, world.members, world.policy, world.unknown_allocations.values())
        reasons = seen if reasons is None else reasons
    told = {"code": error.code, "message": error.message} if error else None
    verdict = "cancelled" if operation is None else "failed" if error else "done"
    noted = {"verdict": verdict, "error": told, "waiting": None, "next_attempt_at": None} | more
    steps = queue.say(world, operation, status=status, health=health, reasons=reasons or [], **noted)
    return [*steps, *(ended(operation, noted, result) if operation else [])]


def ended(operation: Operation, known: Detail, result: Detail) -> list[Step]:
    """The end of an operation whose verdict stands in its note already: a runner may die between the two."""
    told = known.get("error")
    if not isinstance(told, dict):
        return [queue.succeed(operation, f"{operation.operation} is done", result)]
    error = AdapterError(str(told.get("code")), str(told.get("message")))
    return [queue.give_up(operation, error, result)]
