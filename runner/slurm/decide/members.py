"""One member: which runner holds it, whether its host can be used, and the result of its play."""

from datetime import datetime

from runner.intent import host_keys
from runner.intent.connection import read_target
from runner.intent.errors import IntentError
from runner.model import claims
from runner.model.member_notes import MemberNotes
from runner.model.names import host_name
from runner.model.plan import AdapterError, Claim, Detail, SetMember, Step, Wait, stamp
from runner.model.platform import NOT_FOUND, Allocation, Member, MemberStatus
from runner.model.world import Outcome
from runner.slurm import detail, notes
from runner.slurm.components import CONTROLLER
from runner.slurm.notes import WorkerNotes
from runner.slurm.readiness import controller_problem, worker_problem
from runner.slurm.world import World

NOT_REACHED = "the play did not reach it; the next tick continues"
COMING = ("requested", "provisioning")


def try_claim(world: World, member: Member, why: str) -> tuple[list[Step], bool]:
    """Claim a member's bootstrap unless another runner holds it or its next try is not due."""
    held = obstacle(world, member)
    if held:
        return [Wait(held, host_name(member))], False
    later = member.notes.attempts.not_due(world.now)
    if later:
        return [Wait(later, host_name(member))], False
    if world.played:
        return [Wait("the next tick continues", host_name(member))], False
    if not is_claimed(world, member):
        return [Claim(why, member)], False
    return [], True


def obstacle(world: World, member: Member) -> str | None:
    """Why nothing is done with the member now: another runner holds it, or a note of it cannot be read."""
    return unreadable_note(member) or held_by_another(world, *claims.lease(member))


def unreadable_note(member: Member) -> str | None:
    """Which note keeps the member from being worked on, or from being concluded about."""
    problem = next(iter(notes.of(member).problems), None)
    return f"{problem.code}: adapter_detail.{problem.message}" if problem else None


def before_play(world: World, member: Member, act: str) -> SetMember | Wait | None:
    """The member's step if its play cannot run now; None if it can. Its host is checked first, then when it is due."""
    error, waiting = host_problem(world, member)
    if error:
        return fail(world, member, error)
    waiting = waiting or member.notes.attempts.not_due(world.now)
    if not waiting and world.did(act, member):
        waiting = NOT_REACHED
    return Wait(waiting, host_name(member)) if waiting else None


def is_claimed(world: World, member: Member) -> bool:
    """Whether this tick has claimed the member itself. A claim of an earlier tick has an earlier number."""
    return member.id in world.fences and is_ours(world, *claims.lease(member))


def conclude(world: World, member: Member, outcome: Outcome) -> list[Step]:
    """A member after its play: ready if the controller shows it serving, else the reason why not."""
    if outcome.error:
        return [fail(world, member, outcome.error, outcome)]
    merged, snapshot = {**detail.filled(member), **outcome.detail}, world.snapshot
    if member.component_key == CONTROLLER:
        problem = controller_problem(snapshot)
        seen = detail.of_controller(snapshot) if snapshot else {}
    else:
        worker = WorkerNotes.read(merged)
        problem = worker_problem(snapshot, worker)
        seen = detail.of_worker(snapshot, worker.worker_hostname) if snapshot else {}
    if problem:
        code, message = problem
        return [fail(world, member, AdapterError(code, message, "retryable"), Outcome(outcome.phase, merged | seen))]
    return [
        SetMember(
            "the controller shows it serving",
            member,
            MemberStatus.READY,
            {**outcome.detail, **seen, **_unclaimed(), **MemberNotes(phase="serving", last_adapter_error=None).changes},
        )
    ]


def controller_error(world: World, outcome: Outcome) -> AdapterError | None:
    """What went wrong in the controller's play, or what keeps it from serving after it."""
    if outcome.error:
        return outcome.error
    problem = controller_problem(world.snapshot)
    return AdapterError(problem[0], problem[1], "retryable") if problem else None


def fail(world: World, member: Member, error: AdapterError, outcome: Outcome | None = None) -> SetMember:
    """Failed for good, or to be tried again later if the error's class allows it."""
    attempts = member.notes.attempts
    if outcome:
        attempts = attempts.failed(world.now, error.code, world.policy.retry_seconds)
    again = outcome and error.klass == "retryable" and not attempts.is_spent(world.policy.max_attempts)
    changes = {**(outcome.detail if outcome else {}), **_unclaimed()}
    changes |= MemberNotes.tried(attempts if again else attempts.but(next_at=None)).changes
    changes |= MemberNotes(last_adapter_error=error.as_note(world.now)).changes
    if outcome and outcome.phase:
        changes |= MemberNotes(phase=outcome.phase).changes
    if again:
        why = f"{error.code}: try {attempts.count} of {world.policy.max_attempts}"
        return SetMember(why, member, MemberStatus.RECONCILING, changes)
    return SetMember(f"{error.code}: {error.message}", member, MemberStatus.FAILED, changes)


def _unclaimed() -> Detail:
    return MemberNotes(claimed_by=None, lease_expires_at=None, next_attempt_at=None).changes


def host_problem(world: World, member: Member) -> tuple[AdapterError | None, str | None]:
    """(error, None), (None, what it waits for), or (None, None) for a host that can be used."""
    unreadable = unreadable_note(member)
    if unreadable:
        return None, unreadable
    allocation = world.allocation_of(member)
    if allocation is None:
        return None, unknown_allocation(world, member)
    if allocation.status == NOT_FOUND:
        return AdapterError("allocation_not_found", f"allocation {member.allocation_id} is not in this project"), None
    if allocation.status in COMING:
        return None, f"allocation {allocation.id} is {allocation.status}"
    if allocation.status != "active":
        message = f"allocation {allocation.id} is {allocation.status}, not active: choose another one"
        return AdapterError("allocation_not_active", message), None
    try:
        read_target(allocation, member)
    except IntentError as problem:
        if problem.code == host_keys.MISSING and host_keys.is_first_sight(allocation, member):
            return None, None  # its keys are pinned before it is played
        return AdapterError(problem.code, problem.message), None
    return None, None


def unknown_allocation(world: World, member: Member) -> str:
    """Why the member's allocation could not be read. It may exist, so work on it waits."""
    odd = world.unknown_allocations.get(member.allocation_id) if member.allocation_id else None
    if odd:
        return f"{odd}: nothing is done with its host until it can be read"
    return f"allocation {member.allocation_id} of {host_name(member)} is not known: nothing is done with its host"


def is_gone(allocation: Allocation | None) -> bool:
    """Whether the platform shows this allocation as released, or answers 404 for it."""
    return allocation is not None and allocation.status in ("released", NOT_FOUND)


def held_by_another(world: World, by: str | None, until: datetime | None) -> str | None:
    """Why it is not ours: another runner's lease still runs."""
    holder = claims.other_holder(world.runner_id, world.now, by, until)
    return f"runner {holder[0]} holds it until {stamp(holder[1])}" if holder else None


def is_ours(world: World, by: object, until: datetime | None) -> bool:
    """Whether we hold a lease that still runs. Our name on one that ran out is a claim of an earlier tick."""
    return by == world.runner_id and until is not None and until > world.now
