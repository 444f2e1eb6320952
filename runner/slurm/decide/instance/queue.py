"""Operations on the whole instance: one at a time, oldest first, and what they have in common.

Each verb has its own module; this one only chooses the operation that is carried out now. Between ticks the progress is
in the instance's note: runner/slurm/lifecycle_notes.py has a record for each verb. Without a result it is still under
way, so a cancelled operation is noticed, and its verb may undo what it did.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from runner.intent.errors import IntentError
from runner.model.instance_notes import OperationNote, Reason
from runner.model.names import host_name
from runner.model.plan import Claim, Detail, Finish, Refuse, Step, Wait, for_operation
from runner.model.platform import OPEN, Health, InstanceStatus, MemberStatus, Operation, OperationStatus
from runner.model.records import UNREADABLE, NotedError
from runner.slurm import detail, lifecycle_notes
from runner.slurm.decide.members import held_by_another, is_ours, obstacle
from runner.slurm.decide.status import set_instance
from runner.slurm.lifecycle_notes import VerbNote
from runner.slurm.world import World

N = TypeVar("N", bound=VerbNote)
NO_REASON = NotedError(code=UNREADABLE, message="the instance's note has a result and no reason: request it again")


@dataclass(frozen=True)
class Verb:
    """One instance operation. `carry_out` gives the next steps, and a Finish when it is done."""

    allowed: tuple[InstanceStatus, ...]
    carry_out: Callable[[World, Operation], list[Step]]
    # Raises IntentError for parameters that cannot be used; nothing has been touched then.
    check: Callable[[World, Operation], None] = lambda _world, _operation: None
    # What to undo, by its note, once the operation was cancelled; the note's result must be set in the end.
    called_off: Callable[[World, Any], list[Step]] | None = None
    # Whether it goes before operations that were requested earlier and have not begun.
    ahead: bool = False
    # What the operation ends with, where that is in the members' records and not in the note.
    result: Callable[[World, Operation], Detail] | None = None

    def next_steps(self, world: World, operation: Operation) -> list[Step]:
        """The result is written before the operation ends: a runner may be killed between the two."""
        note = own_note(world, operation)
        if note is None or note.is_under_way:
            return self.carry_out(world, operation)
        return [finish(operation, note, self.result(world, operation) if self.result else note.operation_result())]


def note(world: World) -> OperationNote | None:
    """The note of the operation that is or was last under way."""
    return lifecycle_notes.of_instance(world.instance)


def own_note(world: World, operation: Operation) -> OperationNote | None:
    """The note, if it is this operation's; None before its first step."""
    found = note(world)
    return found if found and found.belongs_to(operation.id) else None


def progress(world: World, operation: Operation, kind: type[N]) -> N | None:
    """This operation's note as the record of its verb."""
    found = own_note(world, operation)
    return found if isinstance(found, kind) else None


def claim_next(world: World, verbs: Mapping[str, Verb]) -> list[Step]:
    """Refusals, the claim of the operation whose turn it is, and waits for all others."""
    return _turn(world, verbs)[0]


def carry_out(world: World, verbs: Mapping[str, Verb]) -> list[Step] | None:
    """The next steps of the operation that is ours. Operations on members wait for it."""
    operation = _turn(world, verbs)[1]
    if operation is None:
        return None
    try:
        steps = verbs[operation.operation].next_steps(world, operation)
    except IntentError as error:
        # Its parameters were usable when it began and are not now: it ends, and what was begun is undone.
        return [Refuse(error.message, operation, error.code)]
    return [*_members_wait(world, operation), *for_operation(operation, steps)]


def _turn(world: World, verbs: Mapping[str, Verb]) -> tuple[list[Step], Operation | None]:
    """Steps that settle whose turn it is, and the operation that is ours to carry out now."""
    steps: list[Step] = []
    first: Operation | None = None
    current: Operation | None = None
    for operation in sorted(world.instance_operations, key=lambda one: _rank(one, verbs)):
        if operation.status not in OPEN:
            continue
        refusal = None if first else _refusal(world, operation, verbs)
        if refusal:
            steps.append(Refuse(refusal[1], operation, refusal[0]))
            continue
        if first:
            steps.append(Wait(f"{first.label} came first", operation.label, operation=operation))
            continue
        first = operation
        own, ours = _claim(world, operation, verbs[operation.operation])
        steps += for_operation(operation, own)
        current = operation if ours else None
    return steps, current


def _rank(operation: Operation, verbs: Mapping[str, Verb]) -> tuple[bool, bool]:
    """What has begun comes first, then what goes ahead; otherwise as they came."""
    verb = verbs.get(operation.operation)
    return operation.status != OperationStatus.RUNNING, not (verb and verb.ahead)


def _refusal(world: World, operation: Operation, verbs: Mapping[str, Verb]) -> tuple[str, str] | None:
    verb, status = verbs.get(operation.operation), world.instance.status
    if verb is None:
        offered = ", ".join(sorted(verbs))
        return (
            "operation_unknown",
            f"{operation.operation!r} is not an operation of this app's instances. Supported: {offered}",
        )
    if own_note(world, operation):
        return None  # it is under way, and has set the instance's status itself
    if status not in verb.allowed and status not in COMING:
        return "instance_state", f"{operation.operation} is not possible while the instance is {status}"
    try:
        verb.check(world, operation)
    except IntentError as error:
        return error.code, error.message
    return None


COMING = (InstanceStatus.REQUESTED, InstanceStatus.DEPLOYING)


def _claim(world: World, operation: Operation, verb: Verb) -> tuple[list[Step], bool]:
    if world.instance.status not in verb.allowed and not own_note(world, operation):
        return [Wait(f"the instance is {world.instance.status}", operation.label)], False
    busy = next((one for one in world.operations if held_by_another(world, one.claimed_by, one.lease_expires_at)), None)
    if busy and busy.status == OperationStatus.RUNNING:
        return [Wait(f"{busy.label} is another runner's at this moment", operation.label)], False
    held = _held_member(world)
    if held:
        return [Wait(held, operation.label)], False
    if operation.status == OperationStatus.RUNNING:
        held = held_by_another(world, operation.claimed_by, operation.lease_expires_at)
        if held:
            return [Wait(held, operation.label)], False
        if is_ours(world, operation.claimed_by, operation.lease_expires_at):
            return [], True
    if world.played:
        return [Wait("the next tick takes it", operation.label)], False
    return [Claim(f"{operation.operation} was requested", operation)], False


def _held_member(world: World) -> str | None:
    """A member that another runner holds, or that cannot be claimed: the instance operation waits for it."""
    for member in world.members:
        why = obstacle(world, member) if member.status != MemberStatus.DELETED else None
        if why:
            return f"{host_name(member)}: {why}"
    return None


def wait_for_another_runner(world: World) -> list[Step] | None:
    """Nothing else begins while another runner carries out an operation, or one that has begun waits."""
    for operation in world.instance_operations:
        held = held_by_another(world, operation.claimed_by, operation.lease_expires_at)
        if operation.status == OperationStatus.RUNNING and (held or own_note(world, operation)):
            return _members_wait(world, operation)
    return None


def undo_cancelled(world: World, verbs: Mapping[str, Verb]) -> list[Step] | None:
    """Steps for an operation that is over in the platform but not in our note; None if there is none.

    It comes before anything else begins: the note of what is to be undone would be overwritten.
    """
    return _called_off(world, verbs) or None


def _called_off(world: World, verbs: Mapping[str, Verb]) -> list[Step]:
    found = note(world)
    if found is None or not found.is_under_way or any(found.belongs_to(one.id) for one in world.instance_operations):
        return []
    verb = verbs.get(found.verb)
    try:
        if verb and verb.called_off:
            return verb.called_off(world, found)
    except IntentError:
        pass  # there is no controller any more, so there is nothing to undo
    return write_note(world, found.but(result="cancelled"))


def _members_wait(world: World, operation: Operation) -> list[Step]:
    """Operations on members while one on the instance is under way."""
    return [Wait(f"{operation.label} is under way", one.label, operation=one) for one in world.operations]


def write_note(
    world: World,
    note: OperationNote,
    *,
    status: InstanceStatus | None = None,
    health: Health = Health.PROGRESSING,
    reasons: Sequence[Reason] = (),
) -> list[Step]:
    """Write the note, with what is reported of the instance beside it; nothing if both are there already."""
    written = detail.of_instance(world.instance, world.snapshot, world.members, reasons, world.now, note)
    return set_instance(world, status or InstanceStatus(world.instance.status), health, written, None)


def write_note_alone(world: World, note: OperationNote) -> list[Step]:
    """What is reported of the cluster stays until its next look: it serves all the while."""
    health = next((one for one in Health if one == world.instance.health), Health.UNKNOWN)
    reasons = world.instance.notes.reasons or []
    return write_note(world.later(snapshot=None), note, health=health, reasons=reasons)


def finish(operation: Operation, note: OperationNote, result: Detail) -> Finish:
    """The end of an operation whose result is in its note."""
    if note.result == "done":
        return Finish(f"{operation.operation} is done", operation, OperationStatus.SUCCEEDED, result)
    error = note.error or NO_REASON
    failure = {"code": error.code, "message": error.message}
    return Finish(f"{error.code}: {error.message}", operation, OperationStatus.FAILED, result, failure)
