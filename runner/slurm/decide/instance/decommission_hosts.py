"""A member and its host in a decommission: cleaned, or reported as out of reach. The controller is not asked here."""

from collections.abc import Iterable

from runner.intent import host_keys
from runner.model.instance_notes import Reason
from runner.model.names import host_name
from runner.model.plan import AdapterError, Detail, SetMember, Step, Wait, stamp
from runner.model.platform import Member, MemberStatus
from runner.model.records import Attempts
from runner.slurm import notes
from runner.slurm.causes import UNREADABLE
from runner.slurm.components import CONTROLLER, WORKER
from runner.slurm.decide.instance.decommission_terms import AgreedTerms
from runner.slurm.decide.members import host_problem, is_gone
from runner.slurm.decide.workers import leave
from runner.slurm.decide.workers.clean_host import deleted, host_left
from runner.slurm.decide.workers.results import leave_error
from runner.slurm.notes import SlurmNotes, WorkerLeave
from runner.slurm.world import World

# The machine does not answer, or is not the one on record: nothing can be done on it.
SILENT = ("host_unreachable", "own_credential_unavailable", *sorted(host_keys.CODES))
# Phases before the first change of a host.
UNTOUCHED = (None, "requested", "preflight")


def begin(world: World, member: Member, agreed: AgreedTerms) -> SetMember:
    stored = notes.of(member)
    untouched = stored.phase in UNTOUCHED and not stored.host_touched and not stored.leave
    return leave.begin(world, member, agreed.id, "decommission", untouched=untouched)


def has_failed(member: Member) -> bool:
    note = notes.of(member).leave
    return member.status == MemberStatus.FAILED and note is not None and note.result == "failed"


def is_silent(member: Member) -> bool:
    note = notes.of(member).leave
    return member.status == MemberStatus.DELETING and note is not None and note.unreachable_since is not None


def is_at_work(member: Member) -> bool:
    """Whether the member is waited for because of jobs: it is not drained yet, or its host reported one."""
    error = leave_error(member)
    return member.status == MemberStatus.DRAINING or (error is not None and error.code == "jobs_on_host")


def is_out_of_the_way(member: Member) -> bool:
    """Whether the others need not wait for it: it is gone, has failed, or is out of reach."""
    return member.status == MemberStatus.DELETED or has_failed(member) or is_silent(member)


def clean_host(
    world: World, member: Member, agreed: AgreedTerms, *, seen_free: bool = False
) -> tuple[list[Step], bool]:
    """Steps, and whether its host is to be cleaned now. `seen_free`: this tick's controller showed no job."""
    note = leave.of_operation(member, agreed.id)
    if note is None:
        return [begin(world, member, agreed)], False
    if has_failed(member) and agreed.requested_by in (None, note.tried_for):
        return [], False  # an operator has to correct the cause, then request it again
    if member.status != MemberStatus.DELETING:
        again = note.but(result=None, error=None, attempts=Attempts())
        changes = SlurmNotes(phase="stopping", leave=again).changes
        return [SetMember("no job is on its host", member, MemberStatus.DELETING, changes, new_fence=True)], False
    if member.component_key not in (CONTROLLER, WORKER):
        return [_without_host(member, note, f"{member.component_key!r} is not a component of this app")], False
    allocation = world.allocation_of(member)
    if is_gone(allocation):
        return [_without_host(member, note, "its allocation is released")], False
    problem, waiting = host_problem(world, member)
    if problem or waiting:
        code = "allocation_not_active" if allocation else UNREADABLE
        return _silent(world, member, note, agreed, problem or AdapterError(code, str(waiting))), False
    if not world.did("clean", member):
        return [], True
    outcome = world.outcomes.get(member.id)
    if outcome is None:
        return [Wait("the next tick continues", host_name(member))], False
    if outcome.error:
        return _not_clean(world, member, note, agreed, outcome.error, outcome.detail, seen_free), False
    if outcome.phase != "removed":
        return [Wait("the play ended before its last step; the next tick continues", host_name(member))], False
    seen = outcome.detail | SlurmNotes(phase="removed", host_cleaned=True).changes
    return [deleted(member, note, seen, "its host is clean")], False


def _not_clean(
    world: World,
    member: Member,
    note: WorkerLeave,
    agreed: AgreedTerms,
    error: AdapterError,
    reported: Detail,
    seen_free: bool,
) -> list[Step]:
    if error.code in SILENT:
        return _silent(world, member, note, agreed, error)
    if note.untouched and error.klass == "intervention" and error.host is None:
        reason = "nothing was ever set up on it, and it cannot be reached"
        return [_without_host(member, note, reason)]  # no key, no address
    noted = error.as_note(world.now)
    note = note.but(unreachable_since=None, error=noted)
    # An error before the host was reached does not count as an attempt. Jobs that the host reports are waited for
    # without a limit only while the controller does not contradict it.
    counts = error.host is not None and (error.code != "jobs_on_host" or seen_free)
    tried = note.attempts.failed(world.now, error.code) if counts else note.attempts
    again = error.klass == "retryable" and not tried.is_spent(world.policy.max_attempts)
    note = note.but(attempts=tried) if again else note.but(result="failed", tried_for=agreed.requested_by)
    status = member.status if again else MemberStatus.FAILED
    changes = reported | SlurmNotes(leave=note, last_adapter_error=noted).changes
    return [SetMember(f"{error.code}: {error.message}", member, status, changes)]


def _silent(world: World, member: Member, note: WorkerLeave, agreed: AgreedTerms, error: AdapterError) -> list[Step]:
    """The others continue without it. Its own removal ends when it answers, when its allocation is released, or when
    it is abandoned as requested."""
    if note.untouched and error.code != UNREADABLE:
        return [_without_host(member, note, f"nothing was ever set up on it ({error.code})")]
    since = note.unreachable_since or world.now
    if agreed.abandons and world.now >= since + agreed.patience:
        return [_without_host(member, note, f"abandoned as requested: {error.code} since {stamp(since)}")]
    if note.unreachable_since and note.error and note.error.code == error.code:
        return [Wait(error.message, host_name(member))]
    noted = error.as_note(world.now)
    changes = SlurmNotes(leave=note.but(unreachable_since=since, error=noted), last_adapter_error=noted).changes
    return [SetMember(f"{error.code}: the others continue without it", member, member.status, changes)]


def _without_host(member: Member, note: WorkerLeave, reason: str) -> SetMember:
    return host_left(member, note, reason, "its host was not cleaned")


def reasons(members: Iterable[Member]) -> list[Reason]:
    """What is in the way, by name."""
    found: list[Reason] = []
    for member in sorted(members, key=host_name):
        if member.status == MemberStatus.DELETED:
            continue
        worker, note = notes.worker(member), notes.of(member).leave
        name = notes.of(member).hostname or host_name(member)
        error = note.error if note else None
        code = error.code if error else "jobs_running"
        if error and note and note.unreachable_since and is_silent(member):
            text = f"{name} is out of reach since {stamp(note.unreachable_since)} and not cleaned: {error.message}"
        elif error:
            text = f"{name}: {error.message}"
        elif member.status == MemberStatus.DRAINING and worker.jobs:
            text = f"{name} is {worker.node_state} with job {', '.join(map(str, worker.jobs))} on it"
        else:
            continue
        found.append(Reason(member_id=str(member.id), code=code, message=text[:400]))
    return found
