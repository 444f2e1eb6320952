"""How an instance is taken down: workers once no job is on them, then the controller, its secrets, and the instance.

An instance that is being deleted cannot come back, so this continues to the end even if the operation that requested it
ends; without an operation the default terms apply. The terms are in decommission_terms.py, the work on a host in
decommission_hosts.py; here is the order of the steps, and which runner carries them out. Over 300 lines, because a
reader follows that order from its first step to its last in one place.
"""

from dataclasses import replace

from runner.intent.errors import IntentError
from runner.model import limits
from runner.model.instance_notes import Reason
from runner.model.names import host_name
from runner.model.plan import (
    AdapterError,
    Claim,
    Detail,
    Finish,
    ForgetSecrets,
    Play,
    Refuse,
    SetMember,
    Step,
    Wait,
    for_operation,
)
from runner.model.platform import OPEN, Health, InstanceStatus, Member, MemberStatus, Operation, OperationStatus
from runner.slurm import detail
from runner.slurm.components import CONTROLLER
from runner.slurm.controller import find_controller
from runner.slurm.decide import attachments
from runner.slurm.decide.instance import decommission_hosts, queue
from runner.slurm.decide.instance.decommission_terms import (
    NAME,
    AgreedTerms,
    Terms,
    agreed_terms,
    lost_controller,
    note_of,
    read_terms,
    silence,
)
from runner.slurm.decide.instance.queue import Verb
from runner.slurm.decide.members import held_by_another, is_claimed, is_ours, obstacle
from runner.slurm.decide.status import set_instance
from runner.slurm.decide.workers import leave
from runner.slurm.decide.workers.clean_host import Progress
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.decide.workers.results import fitted, leave_error, member_result, message_of
from runner.slurm.decide.workers.terms import LeaveTerms, read_as
from runner.slurm.lifecycle_notes import DecommissionNote
from runner.slurm.node_names import node_name
from runner.slurm.world import World

DELETING = AdapterError("instance_deleting", "the instance is being deleted: nothing else is done for it any more")


def check(world: World, operation: Operation) -> None:
    read_terms(operation.parameters)
    attachments.require_all_leave(world)


def begin(world: World, operation: Operation) -> list[Step]:
    """From here on the instance is being deleted, and that cannot be undone."""
    return _write(world, note_of(world, operation), [])


VERB = Verb(
    allowed=tuple(status for status in InstanceStatus if status != InstanceStatus.DELETED),
    carry_out=begin,
    check=check,
    ahead=True,
)


def take_down(world: World) -> list[Step] | None:
    """The next steps of an instance in `deleting`; None for any other."""
    if world.instance.status != InstanceStatus.DELETING:
        return None
    requested, steps = _decommissions(world), _next_steps(world)
    return for_operation(requested[0], steps) if requested else steps


def _next_steps(world: World) -> list[Step]:
    steps = _settle(world)
    if any(not isinstance(step, Wait) for step in steps) or _is_anothers(world):
        return steps
    operation = next(iter(_decommissions(world)), None)
    note = note_of(world, operation)
    if note != queue.note(world):
        return [*steps, *_write(world, note, decommission_hosts.reasons(world.members))]
    terms = read_terms(operation.parameters if operation else {})
    members = _alive(world)
    if not members:
        return [*steps, *_end(world, note)]
    agreed = agreed_terms(note, terms, operation)
    more, plays, to_clean, waited_for = _members(world, members, agreed, lost_controller(world, note, terms))
    steps += more
    if _has_writes(steps):
        return steps
    play = _play(world, members, plays, to_clean, agreed)
    if play:
        begun = note.but(phase=_phase(note, play))
        return [*steps, *_write(world, begun, decommission_hosts.reasons(members)), play]
    return steps + _rest(world, note, terms, operation, waited_for)


# -- whose it is -----------------------------------------------------------------------------------------------


def _decommissions(world: World) -> list[Operation]:
    return [one for one in world.instance_operations if one.operation == NAME and one.status in OPEN]


def _settle(world: World) -> list[Step]:
    """Other operations end; then the decommission is claimed. A second decommission ends with the first."""
    steps: list[Step] = []
    for operation in (*world.operations, *world.instance_operations):
        if operation.status in OPEN and operation.operation != NAME:
            steps.append(_taken(world, operation) or Refuse(DELETING.message, operation, DELETING.code))
    for operation in _decommissions(world):
        try:
            read_terms(operation.parameters)
        except IntentError as error:
            steps.append(_taken(world, operation) or Refuse(error.message, operation, error.code))
    if steps:
        return steps
    requested = _decommissions(world)
    ours = _taken(world, requested[0], claim_accepted=True) if requested else None
    steps += [ours] if ours else []
    later = requested[1:]
    steps += [Wait(f"{requested[0].label} came first: it ends with that", one.label, operation=one) for one in later]
    keeper = _keeper(world)
    if keeper and not ours:
        held = [Wait(why, host_name(one)) for one in _alive(world) if (why := obstacle(world, one))]
        steps += held
        if not held and not is_claimed(world, keeper):
            steps.append(Claim("the instance is taken down by one runner at a time", keeper, keeper.status))
    return steps


def _taken(world: World, operation: Operation, *, claim_accepted: bool = False) -> Step | None:
    found = _try_take(world, operation, claim_accepted=claim_accepted)
    return replace(found, operation=operation) if found else None


def _try_take(world: World, operation: Operation, *, claim_accepted: bool) -> Step | None:
    """What has to come before we may end or carry out an operation; None if it is ours or not claimed."""
    if operation.status == OperationStatus.RUNNING:
        held = held_by_another(world, operation.claimed_by, operation.lease_expires_at)
        if held:
            return Wait(held, operation.label)
        if is_ours(world, operation.claimed_by, operation.lease_expires_at):
            return None
    elif not claim_accepted:
        return None
    return Claim("the instance is being deleted", operation)


def _is_anothers(world: World) -> bool:
    """Whether another runner works on the instance or one of its members: then nothing is begun."""
    held = [(one.claimed_by, one.lease_expires_at) for one in (*world.operations, *world.instance_operations)]
    return any(held_by_another(world, *one) for one in held) or any(obstacle(world, one) for one in _alive(world))


def _alive(world: World) -> list[Member]:
    return [member for member in world.members if member.status != MemberStatus.DELETED]


def _keeper(world: World) -> Member | None:
    """The member whose claim keeps two runners apart, operation or not: the controller while there is one."""
    return min(_alive(world), key=lambda one: (one.component_key != CONTROLLER, str(one.id)), default=None)


# -- members ---------------------------------------------------------------------------------------------------


def _members(
    world: World, members: list[Member], agreed: AgreedTerms, lost: str | None
) -> tuple[list[Step], WantedPlays, list[Member], list[Member]]:
    """Steps, requests to the controller, members whose hosts are to be cleaned now, and members that are waited for:
    workers first, and the controller when no worker needs it any more."""
    steps: list[Step] = []
    plays = WantedPlays()
    to_clean: list[Member] = []
    waited_for: list[Member] = []
    # Workers come first, so the list is complete when the controller is reached.
    for member in sorted(members, key=lambda one: one.component_key == CONTROLLER):
        if member.component_key == CONTROLLER and (waited_for or to_clean or _has_writes(steps)):
            waited_for.append(member)
            continue
        held = None if member.component_key == CONTROLLER else _still_at_work(world, member, agreed, lost)
        if held:
            steps += held[0]
            plays.add(held[1])
            waited_for.append(member)
            continue
        # Drained in this tick by a controller that answers, and not held back: the look showed no job on it.
        own, clean = decommission_hosts.clean_host(
            world, member, agreed, seen_free=lost is None and world.did("drain", member)
        )
        steps += own
        to_clean += [member] if clean else []
        waited_for += [] if decommission_hosts.is_out_of_the_way(member) else [member]
    return steps, plays, to_clean, waited_for


def _has_writes(steps: list[Step]) -> bool:
    return any(isinstance(step, SetMember) for step in steps)


def _still_at_work(world: World, member: Member, agreed: AgreedTerms, lost: str | None) -> Progress | None:
    """A worker whose controller can be asked is drained like any other that leaves, by the same code."""
    note = leave.of_operation(member, agreed.id)
    if note is None:
        return [decommission_hosts.begin(world, member, agreed)], WantedPlays()
    if lost or note.result or world.did("clean", member):
        return None
    left = agreed.jobs_until - note.started_at if agreed.jobs_until else None
    seconds = max(0, int(left.total_seconds())) if left is not None else None
    terms = read_as(LeaveTerms, {"reason": agreed.reason}).model_copy(
        update={"deadline_seconds": seconds, "on_deadline": "cancel" if seconds is not None else None}
    )
    return leave.drain(world, member, note, terms)


def _play(
    world: World, members: list[Member], plays: WantedPlays, to_clean: list[Member], agreed: AgreedTerms
) -> Play | None:
    controller = find_controller(members)
    drain = plays.drain_play(world, controller) if controller else None
    if drain or not to_clean:
        return drain
    names = limits.named([node_name(member) or host_name(member) for member in to_clean])
    over = agreed.jobs_until is not None and world.now >= agreed.jobs_until
    terms: Detail = {"decommission_keep_logs": agreed.keep_logs, "teardown_jobs": "end" if over else "wait"}
    terms["decommission_homes_of"] = [str(one.id) for one in to_clean] if agreed.remove_homes else []
    acts = frozenset(("clean", member.id) for member in to_clean)
    return Play(f"clean {names}", NAME, tuple(to_clean), acts, terms=terms, needs_lead=False)


def _phase(note: DecommissionNote, play: Play) -> str:
    """How far it is, for a person. Drains are repeated at each look and do not change it."""
    if play.playbook != NAME:
        return "draining" if note.phase == "begun" else note.phase
    return "cleaning the controller" if play.members[0].component_key == CONTROLLER else "cleaning workers"


# -- ends ------------------------------------------------------------------------------------------------------


def _rest(
    world: World, note: DecommissionNote, terms: Terms, operation: Operation | None, waited_for: list[Member]
) -> list[Step]:
    """Nothing more can be done now: report what is left, and end the operation if it cannot succeed."""
    members = _alive(world)
    failed = [member for member in members if decommission_hosts.has_failed(member)]
    reasons = decommission_hosts.reasons(members)
    all_known = all(world.allocation_of(member) for member in members)  # else a host may exist that is not cleaned
    if not waited_for and all_known and not note.secrets_forgotten and not world.not_forgotten:
        if not world.forgotten:
            return [ForgetSecrets("no member needs them any more")]
        note = note.but(secrets_forgotten=True)
    if note.controller_silent_since and waited_for:
        reasons = [silence(world, note, terms, note.controller_silent_since), *reasons]
    if world.not_forgotten:
        reasons = [world.not_forgotten.as_reason(), *reasons]
    phase = _resting(reasons, waited_for, failed)
    steps = _write(world, note.but(phase=phase), reasons)
    agreed = agreed_terms(note, terms, operation)
    at_work = any(decommission_hosts.is_at_work(member) for member in waited_for)
    if operation and agreed.gives_up_at and world.now >= agreed.gives_up_at and at_work:
        late = (
            f"jobs did not end within {terms.deadline_seconds} s; no job was ended and the instance stays deleting."
            " Request the decommission again with on_deadline=cancel, or wait: it continues once the jobs have ended"
        )
        return [*steps, _fail(world, operation, AdapterError("drain_deadline", late))]
    if operation and failed and not waited_for:
        first = leave_error(failed[0])
        why = f"{len(failed)} member(s) could not be removed from their hosts; the first: {message_of(first)}"
        code = first.code if first else "partly_failed"
        return [*steps, _fail(world, operation, AdapterError(code, why))]
    waiting = limits.named([reason.message for reason in reasons], "; ") or phase
    return [*steps, Wait(waiting, "instance")]


def _resting(reasons: list[Reason], waited_for: list[Member], failed: list[Member]) -> str:
    if any(reason.code in ("jobs_running", "jobs_on_host") for reason in reasons):
        return "waiting for jobs"
    if waited_for:
        return "waiting for the next look"
    return "failed" if failed else "waiting for hosts"


def _end(world: World, note: DecommissionNote) -> list[Step]:
    """Every member is gone. The operations end first: a deleted instance is not looked at again."""
    if world.not_forgotten:
        shown = _write(world, note.but(phase="secrets"), [world.not_forgotten.as_reason()])
        return [*shown, Wait(world.not_forgotten.message, "secrets")]
    if not world.forgotten:
        return [ForgetSecrets("no member is left that needs them")]
    unclaimed = [claim for one in _decommissions(world) if (claim := _taken(world, one, claim_accepted=True))]
    if unclaimed:
        return list(unclaimed)
    result = _results(world)
    done: list[Step] = [
        Finish("every member is gone, and so are the secrets", one, OperationStatus.SUCCEEDED, result)
        for one in _decommissions(world)
    ]
    ended = note.but(result="done", phase="done")
    written = detail.of_instance(world.instance, None, world.members, [], world.now, ended)
    left = attachments.end_all(world)
    return [*left, *done, *set_instance(world, InstanceStatus.DELETED, Health.UNKNOWN, written, {})]


def _fail(world: World, operation: Operation, error: AdapterError) -> Finish:
    failure = {"code": error.code, "message": error.message}
    return Finish(error.message, operation, OperationStatus.FAILED, _results(world), failure)


def _results(world: World) -> Detail:
    return fitted({str(one.id): member_result(one, leave_error(one)) for one in world.members})


def _write(world: World, note: DecommissionNote, reasons: list[Reason]) -> list[Step]:
    health = Health.DEGRADED if reasons else Health.PROGRESSING
    return queue.write_note(world, note, status=InstanceStatus.DELETING, health=health, reasons=reasons)
