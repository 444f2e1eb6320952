"""Host keys: no play goes to a host whose ssh keys are unknown, and none to one that showed another key.

Other rules need not check keys: they are pinned before the first play with the member, and a host that showed another
key is noted before anything is concluded.
"""

from runner.intent import host_keys
from runner.intent.connection import read_target
from runner.intent.errors import IntentError
from runner.model import claims
from runner.model.member_notes import MemberNotes
from runner.model.names import host_name
from runner.model.plan import AdapterError, Detail, Pin, Plan, SetMember, Step, stamp
from runner.model.platform import IN_SERVICE, Member, MemberStatus
from runner.slurm.decide.members import host_problem, unreadable_note
from runner.slurm.world import World


def note_key_changes(world: World) -> list[Step]:
    """Notes about hosts that cannot be identified by their keys, or can be again."""
    steps: list[Step] = []
    for member in world.members:
        if member.status == MemberStatus.DELETED:
            continue
        error = outcome.error if (outcome := world.outcomes.get(member.id)) else None
        problem, _ = host_problem(world, member)
        problem = problem if problem and problem.code in host_keys.CODES else None
        if error and error.code == host_keys.MISMATCH and problem is None:
            steps += _changed(world, member, error)
        elif member.status in IN_SERVICE and not unreadable_note(member):
            steps += _show_problem(world, member, problem)
    return steps


def _changed(world: World, member: Member, error: AdapterError) -> list[Step]:
    allocation = world.allocation_of(member)
    try:
        target = read_target(allocation, member) if allocation else None
    except IntentError:
        return []  # it is left alone for another reason
    if target is None:
        return []
    change = host_keys.changed(target.key_body, stamp(world.now))
    return [_note(member, change | _error(world, error), "its host does not show the key on record")]


def _show_problem(world: World, member: Member, problem: AdapterError | None) -> list[Step]:
    """A member in service shows the problem with its host's key as long as there is one."""
    code = member.notes.error_code
    if code in claims.NOTE_CODES:
        return []  # the member is left alone, and last_adapter_error has the reason
    if problem and code != problem.code:
        return [_note(member, _error(world, problem), f"{problem.code}: {problem.message}")]
    if problem is None and code in host_keys.CODES:
        return [_note(member, MemberNotes(last_adapter_error=None).changes, "its host shows the key on record again")]
    return []


def _error(world: World, error: AdapterError) -> Detail:
    return MemberNotes(last_adapter_error=error.as_note(world.now)).changes


def _note(member: Member, changes: Detail, why: str) -> SetMember:
    return SetMember(why, member, member.status, changes, consumes_outcome=False)


def require_known_keys(world: World, plan: Plan) -> Plan:
    """The plan, or the steps that pin keys first: no play runs on a host whose keys are unknown."""
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
    """Keys that are pinned for another member on the same machine."""
    for other in sorted(world.members, key=host_name):
        here = other.allocation_id == member.allocation_id and other.status != MemberStatus.DELETED
        if here and host_keys.is_pinned(other):
            return {host_keys.PINNED: other.notes.host_keys_pinned}
    return None
