"""How a worker leaves: drained first, deleted only when the controller shows that nothing is on it.

Every tick plays the drain again, also of a node that is drained already: its command is idempotent, and its play
returns the look at the controller. Each conclusion is drawn from that look alone. Progress is in the member's own note
(`WorkerLeave`), so any runner can continue at any point; a result ends it.
"""

from datetime import timedelta
from typing import Literal
from uuid import UUID

from runner.model.names import host_name
from runner.model.plan import AdapterError, Detail, SetMember, Step, Wait
from runner.model.platform import Member, MemberStatus
from runner.slurm import detail, notes
from runner.slurm.decide.members import obstacle, unreadable_note
from runner.slurm.decide.workers import evict
from runner.slurm.decide.workers.clean_host import Progress, remove_from_host
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.decide.workers.terms import LeaveTerms
from runner.slurm.node_names import node_name
from runner.slurm.node_rules import OUR_PREFIX as PREFIX
from runner.slurm.node_rules import drain_holder
from runner.slurm.notes import GAVE_UP, WorkerLeave, WorkerNotes
from runner.slurm.readiness import deletion_problem, is_drained
from runner.slurm.snapshot import Job, Node, Snapshot
from runner.slurm.world import World

Verb = Literal["drain", "remove", "decommission"]
# The terms of a removal whose operation was cancelled: jobs are waited for without a limit.
NO_DEADLINE = LeaveTerms.model_validate({})


def of_operation(member: Member, operation_id: UUID) -> WorkerLeave | None:
    """The member's note, if it is about this operation."""
    note = notes.of(member).leave
    return note if note and note.operation_id == operation_id else None


def belongs_to(member: Member, operation_id: UUID) -> bool:
    return of_operation(member, operation_id) is not None


def result(member: Member, operation_id: UUID) -> str | None:
    """The operation's result for this member: done, failed, cancelled; None while it is under way."""
    note = of_operation(member, operation_id)
    return note.result if note else None


def leave(world: World, member: Member, operation_id: UUID, verb: Verb, terms: LeaveTerms) -> Progress:
    """The next step of a drain or a removal."""
    note = of_operation(member, operation_id)
    settled = done_or_waiting(world, member, note)
    if settled:
        return settled
    if note is None:
        return [begin(world, member, operation_id, verb)], WantedPlays()
    return _continue(world, member, note, terms)


def done_or_waiting(world: World, member: Member, note: WorkerLeave | None) -> Progress | None:
    """The answer for a member that has its result, or that has to wait; None if its next step can be decided."""
    if note and note.result:
        return [], WantedPlays()
    # What has begun continues also if another runner holds the member, but not past a note that cannot be read.
    held = unreadable_note(member) if note else obstacle(world, member)
    return ([Wait(held, host_name(member))], WantedPlays()) if held else None


def no_answer(member: Member) -> Progress:
    return [Wait("the controller did not answer; nothing is assumed", host_name(member))], WantedPlays()


def begin(world: World, member: Member, operation_id: UUID, verb: Verb, *, untouched: bool = False) -> SetMember:
    """The note is written before anything is done."""
    begun = WorkerLeave(operation_id=operation_id, verb=verb, started_at=world.now, untouched=untouched)
    in_slurm = bool(notes.worker(member).registered_in_controller) or verb == "drain"
    drains_first = in_slurm and member.status != MemberStatus.DELETING  # a member that is being deleted stays so
    status = MemberStatus.DRAINING if drains_first else MemberStatus.DELETING
    phase = "draining" if drains_first else "stopping"
    changes = without_former_error(member) | WorkerNotes(leave=begun, phase=phase).changes
    return SetMember(f"{verb} begins", member, status, changes)


def without_former_error(member: Member) -> Detail:
    """What a new request changes: the error of the one before it is over. Any other error stays."""
    former, shown = notes.of(member).leave, member.notes.last_adapter_error
    if former and former.error and shown and (former.error.code, former.error.at) == (shown.code, shown.at):
        return WorkerNotes(last_adapter_error=None).changes
    return {}


def _continue(world: World, member: Member, note: WorkerLeave, terms: LeaveTerms) -> Progress:
    hostname, only_drain = node_name(member), note.verb == "drain"
    if hostname is None:  # its host never reported a name, so the controller cannot have the node
        if only_drain:
            absent = AdapterError("node_absent", f"{host_name(member)} never joined: there is nothing to drain")
            return [_fail(world, member, note, absent)], WantedPlays()
        return remove_from_host(world, member, note, terms)
    unfinished = drain(world, member, note, terms)
    if unfinished:
        return unfinished
    snapshot = world.snapshot
    # The drain is over only by a look at the controller that shows its nodes.
    assert snapshot is not None
    assert snapshot.nodes is not None
    if hostname not in snapshot.nodes:
        if only_drain:
            absent = AdapterError("node_absent", f"the controller has no node {hostname}: there is nothing to drain")
            return [_fail(world, member, note, absent)], WantedPlays()
        return remove_from_host(world, member, note, terms)
    if only_drain:
        done = WorkerNotes(jobs=[], jobs_end_by=None, phase="drained", leave=note.ended("done")).changes
        changes = detail.of_worker(snapshot, hostname) | done
        return [SetMember("drained, and nothing on it", member, MemberStatus.DRAINING, changes)], WantedPlays()
    problem = deletion_problem(snapshot, hostname)
    if problem and problem.code == "jobs_need_node":
        return _wait_or_evict(world, member, note, snapshot, terms, snapshot.jobs_needing(hostname), problem.message)
    if problem:
        return [*_show(member, snapshot, hostname), Wait(problem.message, host_name(member))], WantedPlays()
    return remove_from_host(world, member, note, terms)


def drain(world: World, member: Member, note: WorkerLeave, terms: LeaveTerms) -> Progress | None:
    """The next step of the drain; None once the controller shows the worker without jobs, or does not have its node."""
    hostname, snapshot = node_name(member), world.snapshot
    if hostname is None:
        return None
    if not world.did("drain", member):  # in every tick: see the top of this module
        reason = terms.reason or f"{note.verb} requested"
        return [], WantedPlays(drains={f"{PREFIX}{note.operation_id}: {reason}": [member]})
    if snapshot is None or snapshot.nodes is None or snapshot.jobs is None:
        return no_answer(member)
    node = snapshot.nodes.get(hostname)
    if node is None or is_drained(node):
        return None
    jobs = [job for job in snapshot.jobs_of(hostname) if job.state != "PENDING"]
    return _wait_or_evict(world, member, note, snapshot, terms, jobs, _in_the_way(snapshot, hostname, node))


# -- while it drains -----------------------------------------------------------------------------------------


def _wait_or_evict(
    world: World,
    member: Member,
    note: WorkerLeave,
    snapshot: Snapshot,
    terms: LeaveTerms,
    jobs: list[Job],
    in_the_way: str,
) -> Progress:
    """Wait for the jobs in the way; after the deadline do with them what the operation requests."""
    steps = _show(member, snapshot, str(node_name(member)))
    wait: Progress = ([*steps, Wait(in_the_way, host_name(member))], WantedPlays())
    if terms.deadline_seconds is None or world.now < note.started_at + timedelta(seconds=terms.deadline_seconds):
        return wait
    if terms.deadline_action == "give_up":
        if member.status == MemberStatus.DELETING:
            return wait  # its host is partly cleaned: it cannot return to service
        if not world.did("resume", member):
            return steps, WantedPlays(resumes={f"{PREFIX}{note.operation_id}": [member]})
        late = (
            f"the {note.verb} of {host_name(member)} did not complete within {terms.deadline_seconds} s, and the worker"
            " was returned to service. Request it again with a longer deadline or another on_deadline. In the way:"
            f" {in_the_way}"
        )
        return [_fail(world, member, note, AdapterError(GAVE_UP, late))], WantedPlays()
    jobs = [job for job in jobs if evict.is_open(job)]
    if not jobs or world.did("evict", member):
        return wait
    announced = evict.announcement(terms.deadline_action, jobs)
    if not evict.is_announced(note.announced_eviction, announced):
        # Written before it is done: a runner killed in between must not leave jobs ended without a record.
        all_announced = note.but(announced_eviction=evict.add_announcement(note.announced_eviction, announced))
        why = f"the deadline has passed: {announced}"
        return [SetMember(why, member, member.status, WorkerNotes(leave=all_announced).changes)], WantedPlays()
    return steps, WantedPlays.evicting(terms.deadline_action, jobs, member)


def _show(member: Member, snapshot: Snapshot, hostname: str) -> list[Step]:
    """Bring the record of a draining worker up to date: which jobs are left, and until when at the latest."""
    jobs = snapshot.jobs_of(hostname)
    waiting = [job for job in snapshot.jobs_needing(hostname) if job.state == "PENDING"]
    ends = [job.end_time for job in jobs if job.end_time]
    node = (snapshot.nodes or {})[hostname]
    seen: Detail = detail.of_worker(snapshot, hostname)
    seen |= WorkerNotes(
        jobs=evict.addresses(jobs),
        jobs_end_by=max(ends) if ends else None,
        drain_held_by=drain_holder(node.flags, node.reason, node.reason_by),
    ).changes
    # Absent as long as no job names the node.
    named = evict.addresses(waiting) or None
    if named or notes.worker(member).jobs_naming_node:
        seen |= WorkerNotes(jobs_naming_node=named).changes
    return [SetMember("as the controller shows it", member, member.status, seen)] if member.differs(seen) else []


def _in_the_way(snapshot: Snapshot, hostname: str, node: Node) -> str:
    jobs, waiting = snapshot.jobs_of(hostname), snapshot.jobs_needing(hostname)
    if jobs:
        return f"{hostname} is {node.summary} with {evict.named(jobs)} on it"
    return f"{hostname} is {node.summary}" + (f", and {evict.named(waiting)} waits for it by name" if waiting else "")


# -- ends ----------------------------------------------------------------------------------------------------


def cancelled(world: World, member: Member, note: WorkerLeave) -> Progress:
    """The operation was cancelled before its end: the worker returns to service, or its removal is completed."""
    if member.status == MemberStatus.DELETING:
        return _continue(world, member, note, NO_DEADLINE)
    hostname = node_name(member)
    if hostname and not world.did("resume", member):
        return [], WantedPlays(resumes={f"{PREFIX}{note.operation_id}": [member]})
    if hostname and (world.snapshot is None or world.snapshot.nodes is None):
        return no_answer(member)
    changes = WorkerNotes(leave=note.ended("cancelled")).changes
    return [SetMember("its operation was cancelled", member, member.status, changes)], WantedPlays()


def _fail(world: World, member: Member, note: WorkerLeave, error: AdapterError) -> SetMember:
    """The operation fails for this member. The member keeps its status: it may still be in service."""
    noted = error.as_note(world.now)
    changes = WorkerNotes(leave=note.ended("failed", noted), last_adapter_error=noted).changes
    return SetMember(f"{error.code}: {error.message}", member, member.status, changes)
