"""Who answers: no play goes to a host whose ssh keys are not known, and none to one that showed another key.

It stands before and behind the rest of the policy, which need not think of it: keys are pinned before the first play
that has the member in it, and a host that turns out to be another one is noted before anything is concluded.
"""

from runner.intent import host_keys
from runner.intent.connection import read_target
from runner.intent.errors import IntentError
from runner.model.names import host_name
from runner.model.plan import AdapterError, Detail, Pin, Plan, SetMember, Step, stamp
from runner.model.platform import Member, MemberStatus
from runner.slurm.decide.members import host_problem
from runner.slurm.world import World

SERVING = (MemberStatus.READY, MemberStatus.DRAINING)


def note_key_changes(world: World) -> list[Step]:
    """What is to be noted of hosts that are not, or no longer, known by their keys."""
    steps: list[Step] = []
    for member in world.members:
        if member.status == MemberStatus.DELETED:
            continue
        error = outcome.error if (outcome := world.outcomes.get(member.id)) else None
        problem, _ = host_problem(world, member)
        problem = problem if problem and problem.code in host_keys.CODES else None
        if error and error.code == host_keys.MISMATCH and problem is None:
            steps += _changed(world, member, error)
        elif member.status in SERVING:
            steps += _told(world, member, problem)
    return steps


def _changed(world: World, member: Member, error: AdapterError) -> list[Step]:
    allocation = world.allocation_of(member)
    try:
        target = read_target(allocation, member) if allocation else None
    except IntentError:
        return []  # it is left alone for another reason
    if target is None:
        return []
    noted = host_keys.changed(target.key_body, stamp(world.now))
    return [_note(member, noted | _error(world, error), "its host does not show the key it is known by")]


def _told(world: World, member: Member, problem: AdapterError | None) -> list[Step]:
    """A member in service tells of its host's key as long as something is wrong with it, and no longer."""
    known = (member.adapter_detail.get("last_adapter_error") or {}).get("code")
    if problem and known != problem.code:
        return [_note(member, _error(world, problem), f"{problem.code}: {problem.message}")]
    if problem is None and known in host_keys.CODES:
        return [_note(member, {"last_adapter_error": None}, "its host is known again")]
    return []


def _error(world: World, error: AdapterError) -> Detail:
    return {"last_adapter_error": error.as_detail(world.now)}


def _note(member: Member, said: Detail, why: str) -> SetMember:
    return SetMember(why, member, member.status, said, consumes_outcome=False)


def require_known_keys(world: World, plan: Plan) -> Plan:
    """The plan, or what comes before it: no host is played whose keys nobody has seen."""
    if plan.play is None:
        return plan
    unknown = [one for one in plan.play.members if _is_first_sight(world, one) and one.id not in world.key_scan_errors]
    if not unknown:
        return plan
    steps: list[Step] = []
    left: tuple[Member, ...] = ()
    for member in unknown:
        shared = _shared_pin(world, member)
        if shared:
            steps.append(_note(member, shared, "the keys pinned for the other member on its host"))
        else:
            left = (*left, member)
    if left:
        why = "the platform gives no host keys: what the hosts show now is what they must show from now on"
        steps.append(Pin(why, left))
    return Plan(tuple(steps))


def _is_first_sight(world: World, member: Member) -> bool:
    allocation = world.allocation_of(member)
    usable = host_problem(world, member) == (None, None)
    return usable and allocation is not None and host_keys.is_first_sight(allocation, member)


def _shared_pin(world: World, member: Member) -> Detail | None:
    """One machine has one set of keys, whatever serves on it."""
    for other in sorted(world.members, key=host_name):
        note = other.adapter_detail.get(host_keys.PINNED)
        if note is not None and other.allocation_id == member.allocation_id and other.status != MemberStatus.DELETED:
            return {host_keys.PINNED: note}
    return None
