"""One member of a farm: who holds it, whether its host can be used, and what follows from its play. Pure."""

from datetime import datetime
from uuid import UUID

from examples.web_farm.components import BALANCER, WEB
from examples.web_farm.reports import Answers
from runner.intent import host_keys, placement_policy
from runner.intent.connection import read_address, read_target
from runner.intent.errors import IntentError
from runner.model import claims
from runner.model.member_notes import Leave, MemberNotes
from runner.model.names import host_name
from runner.model.neighbours import is_undeployed
from runner.model.plan import AdapterError, SetMember, Wait
from runner.model.platform import IN_SERVICE, NOT_FOUND, OPEN, UNFINISHED, Allocation, Member, MemberStatus, Operation
from runner.model.records import Detail
from runner.model.world import Outcome, World

UNCLAIMED = MemberNotes(claimed_by=None, lease_expires_at=None, next_attempt_at=None).changes
COMING = ("requested", "provisioning")


def balancer(world: World) -> Member | None:
    return next((one for one in alive(world) if one.component_key == BALANCER), None)


def webs(world: World, *statuses: MemberStatus) -> list[Member]:
    return [one for one in alive(world) if one.component_key == WEB and (not statuses or one.status in statuses)]


def alive(world: World) -> list[Member]:
    return [one for one in world.members if one.status != MemberStatus.DELETED]


def address(world: World, member: Member) -> str | None:
    """Where the balancer finds a member; None if its record cannot be used."""
    allocation = world.allocation_of(member)
    try:
        return read_address(allocation)[0] if allocation else None
    except IntentError:
        return None


def is_ours(world: World, operation: Operation) -> bool:
    until = operation.lease_expires_at
    return operation.claimed_by == world.runner_id and until is not None and until > world.now


def held(world: World, by: str | None, until: datetime | None) -> str | None:
    """Why it is not ours: another runner's lease still runs."""
    holder = claims.other_holder(world.runner_id, world.now, by, until)
    return f"runner {holder[0]} holds it" if holder else None


def operation_of(world: World, member: Member) -> Operation | None:
    """The open operation that works on the member."""
    operations = (*world.operations, *world.instance_operations)
    return next((one for one in operations if one.status in OPEN and claims.concerns(one, member)), None)


def before_play(world: World, member: Member, act: str) -> SetMember | Wait | None:
    """The member's step if its play cannot run now; None if it can."""
    notes, name = member.notes, host_name(member)
    if notes.problems:
        return Wait(f"adapter_detail.{notes.problems[0].message}: it is left alone until that can be read", name)
    if why := held(world, *claims.lease(member)):
        return Wait(why, name)
    allocation = world.allocation_of(member)
    if allocation is None or allocation.status in COMING:
        return Wait(f"allocation {member.allocation_id} is not there yet, or cannot be read", name)
    if member.status == MemberStatus.DELETING and allocation.status in ("released", NOT_FOUND):
        return removed(member, MemberNotes(host_cleaned=False).changes, "its allocation is released: no host to clean")
    if allocation.status != "active":
        message = f"allocation {allocation.id} is {allocation.status}, not active: choose another one"
        return failed(world, member, AdapterError("allocation_not_active", message))
    if is_undeployed(member) and (policy := _by_policy(world, member, allocation)):
        return policy
    try:
        read_target(allocation, member)
    except IntentError as problem:
        if problem.code != host_keys.MISSING or not host_keys.is_first_sight(allocation, member):
            return failed(world, member, AdapterError(problem.code, problem.message))
    if why := notes.attempts.not_due(world.now):
        return Wait(why, name)
    return Wait("the next tick continues", name) if world.did(act, member) else None


def _by_policy(world: World, member: Member, allocation: Allocation) -> SetMember | Wait | None:
    """No machine becomes part of a farm without a clear yes; one that is part of it stays when that ends."""
    if world.entitlements is None or world.entitlements.held:
        return Wait(placement_policy.held(world.entitlements) or "", host_name(member))
    try:
        placement_policy.check_entitled(world.entitlements, [world.instance.project_id], world.instance.app_slug)
        placement_policy.check_allocation(world.entitlements, world.instance.effective_policy, allocation)
    except IntentError as problem:
        return failed(world, member, AdapterError(problem.code, problem.message))
    return None


def concluded(world: World, member: Member, outcome: Outcome) -> SetMember:
    """A member after its play: by what its host and the balancer reported, and by nothing else."""
    if outcome.error:
        return failed(world, member, outcome.error, outcome)
    if member.status == MemberStatus.DELETING:
        if outcome.phase == "removed":
            return removed(member, outcome.detail | MemberNotes(host_cleaned=True).changes, "its host is clean")
        return failed(world, member, AdapterError("not_reached", "the play did not reach it", "retryable"), outcome)
    answers: Answers = world.snapshot or {}
    status = answers.get(address(world, member) or "")
    if member.component_key == WEB and status != 200:
        message = f"the balancer got {status or 'no answer'} from its host on port 8080: see nginx on both hosts"
        return failed(world, member, AdapterError("web_not_answering", message, "retryable"), outcome)
    if member.component_key == BALANCER and world.snapshot is None:
        return failed(world, member, AdapterError("not_reached", "the play did not reach it", "retryable"), outcome)
    seen = MemberNotes(phase="serving", last_adapter_error=None, attempt=0).changes
    seen |= {"answers": status} if member.component_key == WEB else {}
    return SetMember("it answers", member, MemberStatus.READY, outcome.detail | UNCLAIMED | seen)


def failed(world: World, member: Member, error: AdapterError, outcome: Outcome | None = None) -> SetMember:
    """Failed for good, or tried again later if the error's class allows it. A serving balancer keeps serving."""
    attempts = member.notes.attempts
    if outcome:
        attempts = attempts.failed(world.now, error.code, world.policy.retry_seconds)
    again = outcome is not None and error.klass == "retryable" and not attempts.is_spent(world.policy.max_attempts)
    changes: Detail = (outcome.detail if outcome else {}) | UNCLAIMED
    changes |= MemberNotes.tried(attempts if again else attempts.but(next_at=None)).changes
    changes |= MemberNotes(last_adapter_error=error.as_note(world.now)).changes
    if member.status in IN_SERVICE:
        return SetMember(f"{error.code}: {error.message}", member, member.status, changes)
    if again:
        status = MemberStatus.RECONCILING if member.status in UNFINISHED else member.status
        return SetMember(f"{error.code}: try {attempts.count}", member, status, changes)
    return SetMember(f"{error.code}: {error.message}", member, MemberStatus.FAILED, changes)


def removed(member: Member, seen: Detail, why: str) -> SetMember:
    leave = member.notes.leave
    notes = MemberNotes(phase="removed", last_adapter_error=None, leave=leave.but(result="done") if leave else None)
    released = {"allocation_released_by": "platform"}
    return SetMember(why, member, MemberStatus.DELETED, seen | UNCLAIMED | notes.changes | released)


def leaves(member: Member, whom: UUID) -> SetMember | None:
    """The step that begins a removal for this operation, or None if it has begun or has ended."""
    leave = member.notes.leave
    if member.status == MemberStatus.DELETED or (leave is not None and leave.operation_id == whom):
        return None
    notes = MemberNotes(phase="leaving", leave=Leave(operation_id=whom), attempt=0, next_attempt_at=None)
    return SetMember("its removal is requested", member, MemberStatus.DELETING, notes.changes)
