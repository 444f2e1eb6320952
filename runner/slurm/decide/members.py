"""One member: whose it is, whether its allocation can be worked on, and how it came out of a play."""

from datetime import datetime, timedelta

from runner.intent import host_keys
from runner.intent.connection import read_target
from runner.intent.errors import IntentError
from runner.model import claims
from runner.model.names import CONTROLLER, host_name
from runner.model.plan import AdapterError, Claim, Detail, SetMember, Step, Wait, stamp
from runner.model.platform import NOT_FOUND, Allocation, Member, MemberStatus
from runner.model.shapes import read_time as read_time
from runner.model.world import Outcome
from runner.slurm import detail
from runner.slurm.readiness import controller_problem, worker_problem
from runner.slurm.world import World

UNFINISHED = (MemberStatus.REQUESTED, MemberStatus.RECONCILING)
COMING = ("requested", "provisioning")


def try_claim(world: World, member: Member, why: str) -> tuple[list[Step], bool]:
    """Claim a member's bootstrap unless another runner holds it or its next try is not due."""
    held = obstacle(world, member)
    if held:
        return [Wait(held, host_name(member))], False
    due = read_time(member.adapter_detail.get("next_attempt_at"))
    if due and due > world.now:
        return [Wait(f"the next try is at {stamp(due)}", host_name(member))], False
    if world.played:
        return [Wait("the next tick goes on with it", host_name(member))], False
    if not is_claimed(world, member):
        return [Claim(why, member)], False
    return [], True


def obstacle(world: World, member: Member) -> str | None:
    """Why the member cannot be claimed now: another runner holds it, or its number cannot be read."""
    if claims.number(member) is None:
        return f"the number of its claims (adapter_detail.{claims.FENCE}) cannot be read"
    return held_by_another(world, *claims.lease(member))


def is_claimed(world: World, member: Member) -> bool:
    """Whether this tick has claimed the member by itself. A claim of an earlier tick has an earlier number."""
    return member.id in world.fences and is_ours(world, *claims.lease(member))


def conclude(world: World, member: Member, outcome: Outcome) -> list[Step]:
    """A member after its play: ready by the controller's word, or the reason why not."""
    known = {**detail.filled(member), **outcome.detail}
    if outcome.error:
        return [fail(world, member, outcome.error, outcome)]
    snapshot = world.snapshot
    if member.component_key == CONTROLLER:
        problem = controller_problem(snapshot)
        seen = detail.of_controller(snapshot) if snapshot else {}
    else:
        hostname = known.get("worker_hostname")
        problem = worker_problem(snapshot, hostname, known)
        seen = detail.of_worker(snapshot, hostname) if snapshot else {}
    if problem:
        code, message = problem
        return [fail(world, member, AdapterError(code, message, "retryable"), Outcome(outcome.phase, known | seen))]
    return [
        SetMember(
            "the controller shows it serving",
            member,
            MemberStatus.READY,
            {**outcome.detail, **seen, **_unclaimed(), "phase": "serving", "last_adapter_error": None},
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
    tried = int(member.adapter_detail.get("attempt") or 0) + (1 if outcome else 0)
    said = {**(outcome.detail if outcome else {}), **_unclaimed()}
    said |= {"attempt": tried, "last_adapter_error": error.as_detail(world.now)}
    if outcome and outcome.phase:
        said["phase"] = outcome.phase
    if outcome and error.klass == "retryable" and tried < world.policy.max_attempts:
        due = world.now + timedelta(seconds=world.policy.retry_seconds * 2 ** (tried - 1))
        said["next_attempt_at"] = stamp(due)
        return SetMember(
            f"{error.code}: try {tried} of {world.policy.max_attempts}", member, MemberStatus.RECONCILING, said
        )
    return SetMember(f"{error.code}: {error.message}", member, MemberStatus.FAILED, said)


def _unclaimed() -> Detail:
    return {"claimed_by": None, "lease_expires_at": None, "next_attempt_at": None}


def host_problem(world: World, member: Member) -> tuple[AdapterError | None, str | None]:
    """(error, None), (None, what it waits for), or (None, None) for a host one can work on."""
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
    """Why nothing is known of the member's machine. It may be there: whoever needs it waits."""
    odd = world.unknown_allocations.get(member.allocation_id) if member.allocation_id else None
    if odd:
        return f"{odd}: nothing is done with its host until it can be read"
    return f"allocation {member.allocation_id} of {host_name(member)} is not known: nothing is done with its host"


def is_gone(allocation: Allocation | None) -> bool:
    """Whether the machine is given back, by the platform's word about this one allocation."""
    return allocation is not None and allocation.status in ("released", NOT_FOUND)


def held_by_another(world: World, by: object, until: datetime | None) -> str | None:
    """Why it is not ours: another runner's lease still runs."""
    if by and by != world.runner_id and until and until > world.now:
        return f"runner {by} holds it until {stamp(until)}"
    return None


def is_ours(world: World, by: object, until: datetime | None) -> bool:
    """Whether we hold a lease that still runs. Our name on one that ran out is a claim of an earlier tick."""
    return by == world.runner_id and until is not None and until > world.now
