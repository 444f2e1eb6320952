"""The last part of a removal: from the host and from Slurm, or from Slurm alone if the host cannot be used again."""

from datetime import datetime, timedelta

from runner.intent import host_keys
from runner.model.names import host_name
from runner.model.plan import AdapterError, Detail, SetMember, Step, Wait, stamp
from runner.model.platform import Member, MemberStatus
from runner.slurm import notes
from runner.slurm.components import WORKER
from runner.slurm.controller import controllers
from runner.slurm.decide.members import NOT_REACHED, host_problem, is_gone, obstacle
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.decide.workers.terms import LeaveTerms
from runner.slurm.node_names import node_name
from runner.slurm.notes import ControllerNotes, WorkerLeave, WorkerNotes
from runner.slurm.readiness import deletion_problem
from runner.slurm.world import World

# What the play itself found in the way: not an error of the attempt, but a reason to look again later. The codes come
# from the worker's host, so they count as that only where the controller's own answer allows it.
NOT_YET = ("not_drained", "jobs_need_node", "node_reserved", "state_unknown")

# The host cannot be used now: it does not answer, or the project that contributed it took its credential back.
UNUSABLE = {
    "host_unreachable": "its host does not answer",
    "own_credential_unavailable": "the credential of its host is not delivered",
}

Progress = tuple[list[Step], WantedPlays]


def remove_from_host(world: World, member: Member, note: WorkerLeave, terms: LeaveTerms) -> Progress:
    """The next step for a worker without jobs, or one that was never in Slurm: clean its host, delete its node."""
    held = obstacle(world, member)
    if held:
        return [Wait(held, host_name(member))], WantedPlays()
    if member.status != MemberStatus.DELETING:
        changes = WorkerNotes(phase="stopping").changes
        step = SetMember("no job is on the node", member, MemberStatus.DELETING, changes, new_fence=True)
        return [step], WantedPlays()
    allocation = world.allocation_of(member)
    if is_gone(allocation):
        return _without_host(world, member, note, "its allocation is released")
    problem, waiting = host_problem(world, member)
    if problem and problem.code in host_keys.ANOTHER:
        return _without_host(world, member, note, f"another machine answers in its place ({problem.code})")
    if problem and problem.code == host_keys.MISSING and _was_never_reached(member):
        return _without_host(world, member, note, "nothing was ever set up on it")
    if problem or waiting:
        # The machine exists; only its record cannot be used. Deleting the member would leave a worker without a record.
        return [Wait(problem.message if problem else str(waiting), host_name(member))], WantedPlays()
    if not world.did("remove", member):
        return [], WantedPlays(removes=[member], homes=[member] if terms.remove_homes else [])
    outcome = world.outcomes.get(member.id)
    if world.did("forget", member):
        return _without_host(world, member, note, _why_unusable(member))
    if outcome is None:
        return [Wait(NOT_REACHED, host_name(member))], WantedPlays()
    if outcome.error is None:
        if outcome.phase == "removed" and _is_absent(world, member):
            seen = outcome.detail | WorkerNotes(phase="removed", host_cleaned=True).changes
            why = "absent from the controller, and its host is clean"
            return [deleted(member, note, seen, why, world.now)], WantedPlays()
        return [Wait("the controller has not confirmed that it is gone", host_name(member))], WantedPlays()
    residue = WorkerNotes.read(outcome.detail).residue
    left = WorkerNotes(residue=residue).changes if residue else {}
    return _remove_failed(world, member, note, outcome.error, terms, left)


def _remove_failed(
    world: World, member: Member, note: WorkerLeave, error: AdapterError, terms: LeaveTerms, left: Detail
) -> Progress:
    noted, label = error.as_note(world.now), host_name(member)

    def changed(leave: WorkerLeave) -> Detail:
        return left | WorkerNotes(leave=leave, last_adapter_error=noted).changes

    if error.code in UNUSABLE:
        first = note.unreachable_since or world.now
        until = first + timedelta(seconds=terms.host_patience_seconds)
        if world.now >= until:
            return [], WantedPlays(forgets=[member])
        why = f"{UNUSABLE[error.code]}; at {stamp(until)} it is removed without its host"
        changes = changed(note.but(unreachable_since=first))
        return [SetMember(why, member, member.status, changes), Wait(why, label)], WantedPlays()
    note = note.but(unreachable_since=None)  # it answered, so the time starts again
    if error.code in NOT_YET and _may_be_in_use(world, member):
        waits = Wait(error.message, label)
        return [SetMember(error.code, member, member.status, changed(note)), waits], WantedPlays()
    tried = note.attempts.failed(world.now, error.code)  # the next tick tries again
    if error.klass == "retryable" and not tried.is_spent(world.policy.max_attempts):
        why = f"{error.code}: try {tried.count} of {world.policy.max_attempts}"
        again = Wait(f"the next tick tries again after {why}", label)
        return [SetMember(why, member, member.status, changed(note.but(attempts=tried))), again], WantedPlays()
    changes = changed(note.ended("failed", noted))
    return [SetMember(f"{error.code}: {error.message}", member, MemberStatus.FAILED, changes)], WantedPlays()


def _why_unusable(member: Member) -> str:
    undelivered = member.notes.error_code == "own_credential_unavailable"
    return "its credential was not delivered" if undelivered else "the host did not answer"


def _may_be_in_use(world: World, member: Member) -> bool:
    """Whether the controller shows something in the way of the node, or did not answer."""
    failed = any((outcome := world.outcomes.get(one.id)) and outcome.error for one in controllers(world.members))
    if failed or world.snapshot is None:
        return True
    return deletion_problem(world.snapshot, str(node_name(member))) is not None


def _without_host(world: World, member: Member, note: WorkerLeave, reason: str) -> Progress:
    """The host cannot be used again: delete the node in Slurm, and record that the host was not cleaned."""
    if _is_absent(world, member):
        return [host_left(member, note, reason, "gone from Slurm; the host was not cleaned", world.now)], WantedPlays()
    if not world.did("forget", member):
        return [], WantedPlays(forgets=[member])
    return [Wait("the controller has not confirmed that it is gone", host_name(member))], WantedPlays()


def host_left(member: Member, note: WorkerLeave, reason: str, why: str, now: datetime | None = None) -> SetMember:
    """The member is deleted, and its record has the reason why its host was not cleaned."""
    seen = WorkerNotes(phase="removed", host_cleaned=False, host_left=reason).changes
    return deleted(member, note, seen, f"{why}: {reason}", now)


def deleted(member: Member, note: WorkerLeave, seen: Detail, why: str, now: datetime | None = None) -> SetMember:
    """`now` of a cluster that goes on: a decommission ends its key."""
    changes = WorkerNotes(allocation_released_by="platform", last_adapter_error=None, leave=note.ended("done")).changes
    if member.notes.claimed_by:
        changes |= WorkerNotes(claimed_by=None, lease_expires_at=None).changes
    if now and member.source_project_id and notes.of(member).host_touched:
        # Its project had root on the machine: health shows it until the key is another one.
        changes |= WorkerNotes(munge_key_left_at=now).changes
    if member.component_key == WORKER:
        changes |= WorkerNotes(
            registered_in_controller=False, node_state="ABSENT", slurmd_state="removed", jobs_remaining=0
        ).changes
    else:
        changes |= ControllerNotes(slurmctld_state="removed", slurmdbd_state="removed").changes
    return SetMember(why, member, MemberStatus.DELETED, seen | changes)


def _was_never_reached(member: Member) -> bool:
    """Whether no play ever got to its host: without its keys none could have."""
    stored = notes.worker(member)
    return stored.worker_hostname is None and not stored.host_touched and not host_keys.is_pinned(member)


def _is_absent(world: World, member: Member) -> bool:
    hostname, nodes = node_name(member), world.snapshot.nodes if world.snapshot else None
    return hostname is None or (nodes is not None and hostname not in nodes)
