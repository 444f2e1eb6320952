"""Repair of drift: a member that was in order and no longer is, by the plays that set it up, a bounded number of times.

What was tried is in the member's own note (`Repair`), written before the play, so that a runner killed in the middle
has counted too. It is dropped once the member has been in order for a while: a daemon that dies again and again is not
started without limit.

Never repaired: a drained node, since a drain is not drift (see runner/slurm/findings.py); a
member that an operation is at; anything while an operation on the instance is under way or the instance does not run; a
host that cannot be reached, which only spends time.
"""

from datetime import timedelta

from runner.model.limits import named
from runner.model.names import host_name
from runner.model.plan import Act, AdapterError, Detail, Play, SetMember, Step, Wait, stamp
from runner.model.platform import InstanceStatus, Member, MemberStatus
from runner.model.records import NotedError, pause
from runner.model.world import Outcome
from runner.slurm import detail, notes
from runner.slurm.causes import Finding
from runner.slurm.components import CONTROLLER
from runner.slurm.decide import claims
from runner.slurm.decide.members import host_problem, obstacle, unreadable_note
from runner.slurm.decide.status import look
from runner.slurm.findings import findings
from runner.slurm.notes import Repair, SlurmNotes
from runner.slurm.world import World

# After this time in order, new drift gets new attempts.
STEADY = timedelta(minutes=10)
PASSING = ("worker_not_responding",)
TRYING, MENDED, UNREACHABLE = "trying", "repaired", "host_unreachable"


def steps(world: World, controller: Member) -> list[Step]:
    """What to do about drift now, after a look at the cluster."""
    tried = [
        (one, repair)
        for one in world.members
        if world.did("repair", one) and (repair := notes.of(one).repair) and repair.outcome == TRYING
    ]
    if tried:
        return _conclude(world, controller, tried)
    if world.snapshot is None or not _may(world):
        return []
    drift: dict[str, list[Finding]] = {}
    for finding in findings(world.snapshot, world.members, world.policy):
        if finding.member and finding.is_drift:
            drift.setdefault(str(finding.member.id), []).append(finding)
    lasting = {key: found for key, found in drift.items() if any(_lasts(world, one) for one in found)}
    settled = [
        step
        for member in world.members
        if member.status == MemberStatus.READY and str(member.id) not in drift
        for step in _in_order(world, member)
    ]
    if settled or not world.policy.repair:
        return settled
    return _begin(world, controller, lasting)


def _lasts(world: World, finding: Finding) -> bool:
    """Whether it lasts. A node does not respond for a moment after slurmctld was started or it was undrained, so
    only one that an earlier look saw silent as well is repaired. The instance's reasons are only a sample."""
    if finding.code not in PASSING:
        return True
    if finding.member is None or world.snapshot is None:
        return False
    stored = notes.worker(finding.member)
    before = stored.last_runtime_observed_at
    earlier = before is not None and stamp(before) < stamp(world.snapshot.observed_at)
    return earlier and stored.slurmd_state == detail.SILENT


def _may(world: World) -> bool:
    """Whether the cluster is to run and no operation stops, changes or removes it."""
    operated = world.instance_operations or world.instance.notes.is_under_way
    return world.instance.status == InstanceStatus.RUNNING and not operated


def _begin(world: World, controller: Member, drift: dict[str, list[Finding]]) -> list[Step]:
    """The next repair: the controller first, since what it shows of workers counts only once it is in order."""
    waits: list[Step] = []
    held = claims.not_now(world, controller)
    for group in ((controller,), tuple(one for one in world.members if one.component_key != CONTROLLER)):
        due = []
        for member in group:
            if str(member.id) not in drift or world.did("repair", member):
                continue
            why_not = _why_not(world, member) or held or obstacle(world, member)
            if why_not:
                waits.append(Wait(why_not, host_name(member)))
            else:
                due.append(member)
        if due:
            return [*waits, *_try(world, controller, due, drift)]
    return waits


def _why_not(world: World, member: Member) -> str | None:
    repair = notes.of(member).repair
    if repair and repair.is_spent(world.policy.max_attempts):
        return f"{repair.count} repairs did not help: a person has to look at it"
    if repair and (later := repair.not_due(world.now)):
        return later
    half_way = detail.is_unsettled(member) and not detail.was_given_back(member)
    if half_way or any(member.id in operation.member_ids for operation in world.operations):
        return "something else is being done with it"
    # A refused configuration does not prevent a repair: the host has the configuration that last served.
    error, waiting = host_problem(world, member)
    return error.message if error else waiting


def _try(world: World, controller: Member, due: list[Member], drift: dict[str, list[Finding]]) -> list[Step]:
    written: list[Step] = []
    for member in due:
        codes = ", ".join(dict.fromkeys(one.code for one in drift[str(member.id)]))
        repair = notes.of(member).repair or Repair()
        begun = repair.failed(world.now, codes, world.policy.retry_seconds).but(outcome=TRYING)
        why = f"{codes}: repair {begun.count} of at most {world.policy.max_attempts}"
        written.append(SetMember(why, member, member.status, SlurmNotes(repair=begun).changes))
    about = named([f"{host_name(member)}: {drift[str(member.id)][0].code}" for member in due], "; ")
    acts: frozenset[Act] = frozenset(("repair", member.id) for member in due)
    if due == [controller]:
        play = Play(f"repair drift, {about}", "deploy", (controller,), acts)
    else:
        play = Play(f"repair drift, {about}", "add_worker", (controller, *due), acts)
    return [*written, play]


def _conclude(world: World, controller: Member, tried: list[tuple[Member, Repair]]) -> list[Step]:
    """The result of a repair, by what the controller shows after it."""
    left = findings(world.snapshot, world.members, world.policy) if world.snapshot else []
    steps: list[Step] = []
    for member, repair in tried:
        still = next((one for one in left if one.member and one.member.id == member.id and one.is_drift), None)
        steps.append(_result(world, member, repair, world.outcomes.get(member.id), still))
    if world.snapshot is None:
        # A play that broke off brings no snapshot, and what was seen before it is old.
        steps.append(look(controller, "a repair ended before it could report its result"))
    return steps


def _result(world: World, member: Member, repair: Repair, outcome: Outcome | None, still: Finding | None) -> SetMember:
    error = outcome.error if outcome else None
    seen = dict(outcome.detail) if outcome and not error else {}
    if error is None and still:
        error = AdapterError(still.code, still.message, "drift", host_name(member))
    if error is None and outcome and world.snapshot:
        return _set(f"{repair.last_error}: repaired", member, repair.but(outcome=MENDED), None, seen)
    if error is None:
        changes = SlurmNotes(repair=repair.but(outcome="unknown")).changes
        return SetMember("the result of the repair is not known", member, member.status, changes)
    repair = repair.but(outcome=error.code)
    if error.code == UNREACHABLE or (outcome and outcome.error and outcome.phase is None):
        # No host was touched, so no attempt was spent; but one that does not answer is not tried at every tick either.
        longest = pause(world.policy.retry_seconds, world.policy.max_attempts)
        repair = repair.but(count=max(0, repair.count - 1), next_at=world.now + longest)
    return _set(f"{error.code}: {error.message}", member, repair, error.as_note(world.now), seen)


def _set(
    why: str, member: Member, repair: Repair | None, error: NotedError | None, seen: Detail | None = None
) -> SetMember:
    changes = SlurmNotes(repair=repair, last_adapter_error=error).changes
    return SetMember(why, member, member.status, {**(seen or {}), **changes})


def _in_order(world: World, member: Member) -> list[Step]:
    """A member without drift: its note is closed, and dropped after a while."""
    repair = notes.of(member).repair
    if repair is None or unreadable_note(member):
        return []
    if repair.last_at is None or world.now - repair.last_at >= STEADY or not repair.count:
        return [_set("it has been in order for a while", member, None, None)]
    if repair.outcome == MENDED:
        return []
    return [_set("it is in order again", member, repair.but(outcome=MENDED), None)]
