"""A member and its host in a teardown: clean, or out of reach with the truth told. No controller is asked here."""

from collections.abc import Iterable

from runner.intent import host_keys
from runner.model.names import CONTROLLER, WORKER, host_name
from runner.model.plan import AdapterError, Detail, SetMember, Step, Wait, stamp
from runner.model.platform import Member, MemberStatus
from runner.model.shapes import read_time
from runner.slurm.decide.instance.decommission_terms import NAME, AgreedTerms
from runner.slurm.decide.members import host_problem, is_gone
from runner.slurm.decide.workers import leave
from runner.slurm.health import UNREADABLE
from runner.slurm.node_names import node_name
from runner.slurm.world import World

# The machine is not there, or is not the one we know: nothing on it can be done, and nothing is known of it.
SILENT = ("host_unreachable", *sorted(host_keys.CODES))
# Phases before the first change of a host.
UNTOUCHED = (None, "requested", "preflight")


def begin(world: World, member: Member, agreed: AgreedTerms) -> SetMember:
    known = member.adapter_detail
    untouched = known.get("phase") in UNTOUCHED and not known.get("host_touched") and not known.get("leave")
    return leave.begin(world, member, agreed.id, NAME, untouched=untouched)


def has_failed(member: Member) -> bool:
    return member.status == MemberStatus.FAILED and leave.note(member).get("verdict") == "failed"


def is_silent(member: Member) -> bool:
    return member.status == MemberStatus.DELETING and bool(leave.note(member).get("unreachable_since"))


def is_at_work(member: Member) -> bool:
    """Whether jobs are what it is waited for: not drained yet, or one was found on its host."""
    code = (leave.note(member).get("error") or {}).get("code")
    return member.status == MemberStatus.DRAINING or code == "jobs_on_host"


def is_out_of_the_way(member: Member) -> bool:
    """Nothing is waited for before the rest goes on: gone, given up on, or out of reach."""
    return member.status == MemberStatus.DELETED or has_failed(member) or is_silent(member)


def clean_host(
    world: World, member: Member, agreed: AgreedTerms, *, seen_free: bool = False
) -> tuple[list[Step], bool]:
    """Steps, and whether its host is to be cleaned now. `seen_free`: this tick's controller showed no job."""
    note = leave.note(member)
    if not leave.belongs_to(member, agreed.id):
        return [begin(world, member, agreed)], False
    if has_failed(member) and agreed.asked_by in (None, note.get("tried_for")):
        return [], False  # a person has to put something right, and then asks again
    if member.status != MemberStatus.DELETING:
        said = {"phase": "stopping", "leave": note | {"verdict": None, "error": None, "attempts": 0}}
        return [SetMember("nothing is on it any more", member, MemberStatus.DELETING, said, numbers=True)], False
    if member.component_key not in (CONTROLLER, WORKER):
        return [_without_host(member, f"{member.component_key!r} is no component of this app")], False
    allocation = world.allocation_of(member)
    if is_gone(allocation):
        return [_without_host(member, "its allocation is released")], False
    problem, waiting = host_problem(world, member)
    if problem or waiting:
        code = "allocation_not_active" if allocation else UNREADABLE
        return _silent(world, member, agreed, problem or AdapterError(code, str(waiting))), False
    if not world.did("clean", member):
        return [], True
    outcome = world.outcomes.get(member.id)
    if outcome is None:
        return [Wait("the next tick goes on with it", host_name(member))], False
    if outcome.error:
        return _not_clean(world, member, agreed, outcome.error, outcome.detail, seen_free), False
    if outcome.phase != "removed":
        return [Wait("the play did not get to its end; the next tick goes on", host_name(member))], False
    return [
        leave.gone(member, {**outcome.detail, "phase": "removed", "host_cleaned": True}, "its host is clean")
    ], False


def _not_clean(
    world: World, member: Member, agreed: AgreedTerms, error: AdapterError, said: Detail, seen_free: bool
) -> list[Step]:
    if error.code in SILENT:
        return _silent(world, member, agreed, error)
    note = leave.note(member)
    if note.get("untouched") and error.klass == "intervention" and error.host is None:
        return [_without_host(member, "nothing was ever set up on it, and it cannot be reached")]  # no key, no address
    told = {**said, "last_adapter_error": error.as_detail(world.now)}
    note = note | {"unreachable_since": None, "error": error.as_detail(world.now)}
    # What did not even get to the host is no attempt on it. Jobs that the host reports are waited for without a limit
    # only while the controller does not contradict it.
    counts = error.host is not None and (error.code != "jobs_on_host" or seen_free)
    tried = int(note.get("attempts") or 0) + (1 if counts else 0)
    if error.klass == "retryable" and tried < world.policy.max_attempts:
        told["leave"] = note | {"attempts": tried}
        return [SetMember(f"{error.code}: {error.message}", member, member.status, told)]
    told["leave"] = note | {"verdict": "failed", "tried_for": agreed.asked_by}
    return [SetMember(f"{error.code}: {error.message}", member, MemberStatus.FAILED, told)]


def _silent(world: World, member: Member, agreed: AgreedTerms, error: AdapterError) -> list[Step]:
    """Nobody is held up by it. It ends when it answers again, when its allocation is released, or as asked for."""
    note = leave.note(member)
    if note.get("untouched") and error.code != UNREADABLE:
        return [_without_host(member, f"nothing was ever set up on it ({error.code})")]
    since = read_time(note.get("unreachable_since")) or world.now
    if agreed.abandons and world.now >= since + agreed.patience:
        return [_without_host(member, f"abandoned as asked for: {error.code} since {stamp(since)}")]
    if note.get("unreachable_since") and (note.get("error") or {}).get("code") == error.code:
        return [Wait(error.message, host_name(member))]
    told = error.as_detail(world.now)
    said = {"leave": note | {"unreachable_since": stamp(since), "error": told}, "last_adapter_error": told}
    return [SetMember(f"{error.code}: the rest goes on without it", member, member.status, said)]


def _without_host(member: Member, because: str) -> SetMember:
    said = {"phase": "removed", "host_cleaned": False, "host_left": because}
    return leave.gone(member, said, f"its host was not cleaned: {because}")


def reasons(members: Iterable[Member]) -> list[Detail]:
    """What is in the way, by name."""
    found: list[Detail] = []
    for member in sorted(members, key=host_name):
        note, known = leave.note(member), member.adapter_detail
        if member.status == MemberStatus.DELETED:
            continue
        name = node_name(member) or known.get("controller_hostname") or host_name(member)
        error = note.get("error") or {}
        if is_silent(member):
            text = f"{name} is out of reach since {note['unreachable_since']} and not cleaned: {error.get('message')}"
        elif error:
            text = f"{name}: {error.get('message')}"
        elif member.status == MemberStatus.DRAINING and known.get("jobs"):
            error = {"code": "jobs_running"}
            text = f"{name} is {known.get('node_state')} with job {', '.join(map(str, known['jobs']))} on it"
        else:
            continue
        found.append({"member_id": str(member.id), "code": str(error.get("code")), "message": text[:400]})
    return found
