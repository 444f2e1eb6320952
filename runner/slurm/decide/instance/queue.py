"""Operations on the whole instance: one at a time, oldest first, and what they have in common.

What a verb does stands in a module of its own; here is only whose turn it is. Between ticks the agreement stands in the
instance's `status_detail.lifecycle`: `{operation_id, verb, since, verdict}` and what the verb adds to it. Without a
verdict it is still under way, so an operation that was cancelled meanwhile is noticed, and its verb may undo.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runner.intent.errors import IntentError
from runner.model import progress
from runner.model.names import host_name
from runner.model.plan import AdapterError, Claim, Detail, Finish, Refuse, Step, Wait, stamp
from runner.model.platform import Health, InstanceStatus, MemberStatus, Operation, OperationStatus
from runner.slurm import detail
from runner.slurm.decide.members import held_by_another, is_ours, obstacle
from runner.slurm.decide.status import set_instance
from runner.slurm.world import World


@dataclass(frozen=True)
class Verb:
    """One instance operation. `carry_out` gives the next steps, and a Finish when it is done."""

    allowed: tuple[InstanceStatus, ...]
    carry_out: Callable[[World, Operation], list[Step]]
    # Raises IntentError for parameters that cannot be used; nothing has been touched then.
    check: Callable[[World, Operation], None] = lambda _world, _operation: None
    # What to undo once a person called the operation off; the note's verdict must be set in the end.
    called_off: Callable[[World], list[Step]] | None = None
    # Whether it goes before what was asked for earlier and has not begun.
    ahead: bool = False


def note(world: World) -> Detail:
    """What was agreed with the operation that is or was last under way."""
    known = (world.instance.status_detail or {}).get("lifecycle")
    return dict(known) if isinstance(known, dict) else {}


def noted(world: World, operation: Operation) -> Detail:
    """The note, if it is this operation's; empty before its first step."""
    known = note(world)
    return known if known.get("operation_id") == str(operation.id) else {}


def turn(world: World, verbs: Mapping[str, Verb]) -> tuple[list[Step], Operation | None]:
    """Steps that settle whose turn it is, and the operation that is ours to carry out now."""
    steps: list[Step] = []
    first: Operation | None = None
    mine: Operation | None = None
    for operation in sorted(world.instance_operations, key=lambda one: _rank(one, verbs)):
        if operation.status not in (OperationStatus.ACCEPTED, OperationStatus.RUNNING):
            continue
        refusal = None if first else _refusal(world, operation, verbs)
        if refusal:
            steps.append(Refuse(refusal[1], operation, refusal[0]))
            continue
        if first:
            steps.append(Wait(f"{_label(first)} came first", _label(operation)))
            continue
        first = operation
        own, ours = _take(world, operation, verbs[operation.operation])
        steps += own
        mine = operation if ours else None
    return steps, mine


def _rank(operation: Operation, verbs: Mapping[str, Verb]) -> tuple[bool, bool]:
    """What has begun comes first, then what goes ahead; otherwise as they came."""
    verb = verbs.get(operation.operation)
    return operation.status != OperationStatus.RUNNING, not (verb and verb.ahead)


def _refusal(world: World, operation: Operation, verbs: Mapping[str, Verb]) -> tuple[str, str] | None:
    verb, status = verbs.get(operation.operation), world.instance.status
    if verb is None:
        known = ", ".join(sorted(verbs))
        return "operation_unknown", f"{operation.operation!r} is not an operation of this app's instances: {known} are"
    if noted(world, operation):
        return None  # it is under way, and has itself brought the instance where it is
    if status not in verb.allowed and status not in COMING:
        return "instance_state", f"the instance is {status}: it cannot be asked to {operation.operation}"
    try:
        verb.check(world, operation)
    except IntentError as error:
        return error.code, error.message
    return None


COMING = (InstanceStatus.REQUESTED, InstanceStatus.DEPLOYING)


def _take(world: World, operation: Operation, verb: Verb) -> tuple[list[Step], bool]:
    if world.instance.status not in verb.allowed and not noted(world, operation):
        return [Wait(f"the instance is {world.instance.status}", _label(operation))], False
    busy = next((one for one in world.operations if held_by_another(world, one.claimed_by, one.lease_expires_at)), None)
    if busy and busy.status == OperationStatus.RUNNING:
        return [Wait(f"{_label(busy)} is another runner's at this moment", _label(operation))], False
    held = _held_member(world)
    if held:
        return [Wait(held, _label(operation))], False
    if operation.status == OperationStatus.RUNNING:
        held = held_by_another(world, operation.claimed_by, operation.lease_expires_at)
        if held:
            return [Wait(held, _label(operation))], False
        if is_ours(world, operation.claimed_by, operation.lease_expires_at):
            return [], True
    if world.played:
        return [Wait("the next tick takes it", _label(operation))], False
    return [Claim(f"{operation.operation} was asked for", operation)], False


def _held_member(world: World) -> str | None:
    """A member that another runner holds by itself, or that cannot be claimed: the whole waits for it."""
    for member in world.members:
        why = obstacle(world, member) if member.status != MemberStatus.DELETED else None
        if why:
            return f"{host_name(member)}: {why}"
    return None


def kept_waiting(world: World) -> Operation | None:
    """An operation that another runner carries out, or that waits for one at work on members: nothing else begins."""
    for operation in world.instance_operations:
        held = held_by_another(world, operation.claimed_by, operation.lease_expires_at)
        if operation.status == OperationStatus.RUNNING and (held or noted(world, operation)):
            return operation
    return None


def called_off(world: World, verbs: Mapping[str, Verb]) -> list[Step]:
    """Steps for an operation that is over in the platform but not in our note."""
    known = note(world)
    verb = verbs.get(str(known.get("verb")))
    open_now = {str(operation.id) for operation in world.instance_operations}
    if not known or known.get("verdict") or known.get("operation_id") in open_now:
        return []
    try:
        if verb and verb.called_off:
            return verb.called_off(world)
    except IntentError:
        pass  # there is no controller any more, so there is nothing to undo
    return say(world, None, verdict="cancelled")


def members_wait(world: World, operation: Operation) -> list[Step]:
    """Operations on members while one on the instance is under way."""
    return [Wait(f"{_label(operation)} is under way", _label(one)) for one in world.operations]


def say(
    world: World,
    operation: Operation | None,
    *,
    status: InstanceStatus | None = None,
    health: Health = Health.PROGRESSING,
    reasons: Sequence[Detail] = (),
    **more: object,
) -> list[Step]:
    """Write the note; nothing if it says so already. Without an operation, to the note that is there."""
    known = noted(world, operation) if operation else note(world)
    if not known and operation:
        known = {
            "operation_id": str(operation.id),
            "verb": operation.operation,
            "since": stamp(world.now),
            "verdict": None,
        }
    said = detail.of_instance(world.instance, world.snapshot, world.members, list(reasons), world.now)
    said["lifecycle"] = known | more
    # A person may call it off before it is written again, and only this brings the next tick to notice.
    said["unsettled"] = any(map(detail.is_unsettled, world.members)) or progress.is_under_way(said["lifecycle"])
    return set_instance(world, status or InstanceStatus(world.instance.status), health, said, None)


def succeed(operation: Operation, why: str, result: Detail | None = None) -> Finish:
    return Finish(why, operation, OperationStatus.SUCCEEDED, result or {})


def give_up(operation: Operation, error: AdapterError, result: Detail | None = None) -> Finish:
    told = {"code": error.code, "message": error.message}
    return Finish(f"{error.code}: {error.message}", operation, OperationStatus.FAILED, result or {}, told)


def _label(operation: Operation) -> str:
    return f"{operation.operation} {str(operation.id)[:8]}"
