"""Drift: what was in order and no longer is, put right by the same plays that made it, a bounded number of times.

What was tried stands in the member's own `repair` note, `{why, attempts, last_at, next_at, outcome}`, and is written
before the play, so that a runner killed in the middle has counted too. It is dropped once the member has been in order
for a while: a daemon that dies again and again is not started for ever.

Never repaired: a node that is drained, by whomever, since that is no drift (see runner/slurm/health.py); a member that
an operation is at; anything while an operation on the instance is under way or the instance does not run; a host that
cannot be reached, which only spends time.
"""

from datetime import timedelta

from runner.model import progress
from runner.model.limits import named
from runner.model.names import CONTROLLER, host_name
from runner.model.plan import Act, AdapterError, Detail, Play, SetMember, Step, Wait, stamp
from runner.model.platform import InstanceStatus, Member, MemberStatus
from runner.model.shapes import read_time
from runner.model.world import Outcome
from runner.slurm import detail
from runner.slurm.decide import claims
from runner.slurm.decide.members import host_problem, obstacle
from runner.slurm.decide.status import LOOKED_AT, look
from runner.slurm.health import Finding, findings
from runner.slurm.world import World

# In order for so long: the next trouble is a new one, with tries of its own.
STEADY = timedelta(minutes=10)
PASSING = ("worker_not_responding",)
TRYING, MENDED, UNREACHABLE = "trying", "mended", "host_unreachable"


def note(member: Member) -> Detail:
    known = member.adapter_detail.get("repair")
    return dict(known) if isinstance(known, dict) else {}


def steps(world: World, controller: Member) -> list[Step]:
    """What to do about drift now, after a look at the cluster."""
    tried = [one for one in world.members if world.did("repair", one) and note(one).get("outcome") == TRYING]
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
    """Whether it is more than a moment. A node is silent for one after slurmctld was started or it was undrained, so
    only one that an earlier look saw silent as well is repaired. The instance's reasons are only a sample."""
    if finding.code not in PASSING:
        return True
    known = finding.member.adapter_detail if finding.member else {}
    before, snapshot = read_time(known.get(LOOKED_AT)), world.snapshot
    earlier = before is not None and snapshot is not None and stamp(before) < stamp(snapshot.observed_at)
    return earlier and known.get("slurmd_state") == detail.SILENT


def _may(world: World) -> bool:
    """A cluster that is to run, and that nobody is about to stop, change or take down."""
    under_way = progress.is_under_way((world.instance.status_detail or {}).get("lifecycle"))
    return world.instance.status == InstanceStatus.RUNNING and not world.instance_operations and not under_way


def _begin(world: World, controller: Member, drift: dict[str, list[Finding]]) -> list[Step]:
    """The next repair: the controller first, since what it says of workers counts only once it is in order."""
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
    known = note(member)
    if known.get("attempts", 0) >= world.policy.max_attempts:
        return f"{known['attempts']} repairs did not help: a person has to look at it"
    due = read_time(known.get("next_at"))
    if due and due > world.now:
        return f"the next repair is due at {stamp(due)}"
    if detail.is_unsettled(member) or any(member.id in operation.member_ids for operation in world.operations):
        return "something else is being done with it"
    # A wish that cannot be fulfilled is no hindrance: the host has the configuration that last served.
    error, waiting = host_problem(world, member)
    return error.message if error else waiting


def _try(world: World, controller: Member, due: list[Member], drift: dict[str, list[Finding]]) -> list[Step]:
    written: list[Step] = []
    for member in due:
        codes = ", ".join(dict.fromkeys(one.code for one in drift[str(member.id)]))
        attempts = int(note(member).get("attempts", 0)) + 1
        said = {
            "why": codes,
            "attempts": attempts,
            "last_at": stamp(world.now),
            "next_at": stamp(world.now + _pause(world, attempts)),
            "outcome": TRYING,
        }
        why = f"{codes}: repair {attempts} of at most {world.policy.max_attempts}"
        written.append(SetMember(why, member, member.status, {"repair": said}))
    about = named([f"{host_name(member)}: {drift[str(member.id)][0].code}" for member in due], "; ")
    acts: frozenset[Act] = frozenset(("repair", member.id) for member in due)
    if due == [controller]:
        play = Play(f"put right what drifted, {about}", "deploy", (controller,), acts)
    else:
        play = Play(f"put right what drifted, {about}", "add_worker", (controller, *due), acts)
    return [*written, play]


def _pause(world: World, attempts: int) -> timedelta:
    return timedelta(seconds=world.policy.retry_seconds * 2 ** max(0, attempts - 1))


def _conclude(world: World, controller: Member, tried: list[Member]) -> list[Step]:
    """What a repair came to, by what the controller shows after it."""
    left = findings(world.snapshot, world.members, world.policy) if world.snapshot else []
    told: list[Step] = []
    for member in tried:
        still = next((one for one in left if one.member and one.member.id == member.id and one.is_drift), None)
        outcome = world.outcomes.get(member.id)
        told.append(_told(world, member, outcome, still))
    if world.snapshot is None:
        # A play that broke off says nothing of the cluster, and what was seen before it is old.
        told.append(look(controller, "a repair ended before it could say what came of it"))
    return told


def _told(world: World, member: Member, outcome: Outcome | None, still: Finding | None) -> SetMember:
    known = note(member)
    error = outcome.error if outcome else None
    seen = dict(outcome.detail) if outcome and not error else {}
    if error is None and still:
        error = AdapterError(still.code, still.message, "drift", host_name(member))
    if error is None and outcome and world.snapshot:
        said = {**known, "outcome": MENDED}
        return SetMember(
            f"{known.get('why')}: put right",
            member,
            member.status,
            {**seen, "repair": said, "last_adapter_error": None},
        )
    if error is None:
        return SetMember("it is not known", member, member.status, {"repair": {**known, "outcome": "unknown"}})
    said = {**known, "outcome": error.code}
    if error.code == UNREACHABLE or (outcome and outcome.error and outcome.phase is None):
        # Nobody was touched, so no try was spent; but who does not answer is not dialled at every tick either.
        longest = _pause(world, world.policy.max_attempts)
        said |= {"attempts": max(0, int(known.get("attempts", 1)) - 1), "next_at": stamp(world.now + longest)}
    return SetMember(
        f"{error.code}: {error.message}",
        member,
        member.status,
        {**seen, "repair": said, "last_adapter_error": error.as_detail(world.now)},
    )


def _in_order(world: World, member: Member) -> list[Step]:
    """A member without drift: its note is closed, and dropped after a while."""
    known = note(member)
    if not known:
        return []
    last = read_time(known.get("last_at"))
    if last is None or world.now - last >= STEADY or not known.get("attempts"):
        why = "it has been in order for a while"
        return [SetMember(why, member, member.status, {"repair": None, "last_adapter_error": None})]
    if known.get("outcome") == MENDED:
        return []
    said = {**known, "outcome": MENDED}
    return [SetMember("it is in order again", member, member.status, {"repair": said, "last_adapter_error": None})]
