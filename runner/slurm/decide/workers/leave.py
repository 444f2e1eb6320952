"""How a worker leaves: drained first, deleted only when the controller shows that nothing is on it.

The look at the controller comes first in every tick, and each conclusion is drawn from that look alone. Progress is in
the member's own note (`WorkerLeave`), so any runner can continue at any point; a result ends it.
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
from runner.slurm.decide.workers.clean_host import Progress, from_host
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.decide.workers.terms import LeaveTerms, read_as
from runner.slurm.node_names import node_name
from runner.slurm.node_rules import OUR_PREFIX as PREFIX
from runner.slurm.node_rules import drain_holder
from runner.slurm.notes import WorkerLeave, WorkerNotes
from runner.slurm.readiness import deletion_problem, is_drained
from runner.slurm.snapshot import Job, Node, Snapshot
from runner.slurm.world import World

Verb = Literal["drain", "remove", "decommission"]


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
    """The next step of a worker on its way out."""
    note = of_operation(member, operation_id)
    if note and note.result:
        return [], WantedPlays()
    # A leave that has begun continues also if another runner holds the member, but not past a note that cannot be read.
    held = unreadable_note(member) if note else obstacle(world, member)
    if held:
        return [Wait(held, host_name(member))], WantedPlays()
    if note is None:
        return [begin(world, member, operation_id, verb)], WantedPlays()
    return _on_its_way(world, member, note, terms)


def begin(world: World, member: Member, operation_id: UUID, verb: Verb, *, untouched: bool = False) -> SetMember:
    """The note is written before anything is done."""
    begun = WorkerLeave(operation_id=operation_id, verb=verb, started_at=world.now, untouched=untouched)
    in_slurm = bool(notes.worker(member).registered_in_controller) or verb == "drain"
    drains = in_slurm and member.status != MemberStatus.DELETING  # a member that is being deleted stays so
    status = MemberStatus.DRAINING if drains else MemberStatus.DELETING
    phase = "draining" if drains else "stopping"
    return SetMember(f"{verb} begins", member, status, WorkerNotes(leave=begun, phase=phase).changes)


def _on_its_way(world: World, member: Member, note: WorkerLeave, terms: LeaveTerms) -> Progress:
    hostname, snapshot = node_name(member), world.snapshot
    drains = note.verb == "drain"
    if hostname is None and drains:  # its host never reported a name, so the controller cannot have the node
        absent = AdapterError("node_absent", "it never joined: there is nothing to drain")
        return [_end(world, member, note, absent)], WantedPlays()
    held = at_work(world, member, note, terms)
    if held:
        return held
    if hostname is None or snapshot is None or hostname not in (snapshot.nodes or {}):
        if drains:
            absent = AdapterError("node_absent", f"the controller has no node {hostname}: there is nothing to drain")
            return [_end(world, member, note, absent)], WantedPlays()
        return from_host(world, member, note, terms)
    if drains:
        done = WorkerNotes(jobs=[], jobs_end_by=None, phase="drained", leave=note.ended("done")).changes
        changes = detail.of_worker(snapshot, hostname) | done
        return [SetMember("drained, and nothing on it", member, MemberStatus.DRAINING, changes)], WantedPlays()
    problem = deletion_problem(snapshot, hostname)
    if problem and problem.code == "jobs_need_node":
        return _until_deadline(world, member, note, snapshot, terms, snapshot.jobs_naming(hostname), problem.message)
    if problem:
        return [*_show(member, snapshot, hostname), Wait(problem.message, host_name(member))], WantedPlays()
    return from_host(world, member, note, terms)


def at_work(world: World, member: Member, note: WorkerLeave, terms: LeaveTerms) -> Progress | None:
    """Steps until the controller shows that nothing is on the worker; None once it does, or if it has no node."""
    hostname, snapshot = node_name(member), world.snapshot
    if hostname is None:
        return None
    if not world.did("drain", member):
        reason = terms.reason or f"{note.verb} asked for"
        return [], WantedPlays(drains={f"{PREFIX}{note.operation_id}: {reason}": [member]})
    if snapshot is None or snapshot.nodes is None or snapshot.jobs is None:
        return [Wait("the controller could not be asked; nothing is assumed", host_name(member))], WantedPlays()
    node = snapshot.nodes.get(hostname)
    if node is None or is_drained(node):
        return None
    jobs = [job for job in snapshot.jobs_of(hostname) if job.state != "PENDING"]
    return _until_deadline(world, member, note, snapshot, terms, jobs, _what_is_left(snapshot, hostname, node))


# -- while it drains -----------------------------------------------------------------------------------------


def _until_deadline(
    world: World,
    member: Member,
    note: WorkerLeave,
    snapshot: Snapshot,
    terms: LeaveTerms,
    jobs: list[Job],
    left: str,
) -> Progress:
    """Wait for the jobs in the way; past the deadline do with them what the operation requests."""
    steps = _show(member, snapshot, str(node_name(member)))
    wait: Progress = ([*steps, Wait(left, host_name(member))], WantedPlays())
    if terms.deadline_seconds is None or world.now < note.started_at + timedelta(seconds=terms.deadline_seconds):
        return wait
    if terms.at_deadline == "give_up":
        if member.status == MemberStatus.DELETING:
            return wait  # partly off its host already: it cannot be given back
        if not world.did("resume", member):
            return steps, WantedPlays(resumes={f"{PREFIX}{note.operation_id}": [member]})
        over = AdapterError("drain_deadline", f"not free in {terms.deadline_seconds} s, so given up: {left}")
        return [_end(world, member, note.but(announced_eviction="gave up"), over)], WantedPlays()
    jobs = [job for job in jobs if evict.is_open(job)]
    if not jobs or world.did("evict", member):
        return wait
    announced = evict.announcement(terms.at_deadline, jobs)
    if not evict.is_announced(note.announced_eviction, announced):
        # Written before it is done: a kill in between must not leave jobs ended without a trace.
        all_announced = note.but(announced_eviction=evict.announced_too(note.announced_eviction, announced))
        why = f"the deadline has passed: {announced}"
        return [SetMember(why, member, member.status, WorkerNotes(leave=all_announced).changes)], WantedPlays()
    return steps, WantedPlays.evicting(terms.at_deadline, jobs, member)


def _show(member: Member, snapshot: Snapshot, hostname: str) -> list[Step]:
    """Bring the record of a draining worker up to date: which jobs are left, and until when at the latest."""
    jobs = snapshot.jobs_of(hostname)
    waiting = [job for job in snapshot.jobs_naming(hostname) if job.state == "PENDING"]
    ends = [job.end_time for job in jobs if job.end_time]
    node = (snapshot.nodes or {}).get(hostname)
    seen: Detail = detail.of_worker(snapshot, hostname)
    seen |= WorkerNotes(
        jobs=evict.addresses(jobs),
        jobs_end_by=max(ends) if ends else None,
        drain_held_by=drain_holder(node.flags, node.reason, node.reason_by) if node else None,
    ).changes
    # Absent as long as no job names the node.
    named = evict.addresses(waiting) or None
    if named or notes.worker(member).jobs_naming_node:
        seen["jobs_naming_node"] = named
    return [SetMember("as the controller shows it", member, member.status, seen)] if member.differs(seen) else []


def _what_is_left(snapshot: Snapshot, hostname: str, node: Node) -> str:
    jobs, naming = snapshot.jobs_of(hostname), snapshot.jobs_naming(hostname)
    if jobs:
        return f"{hostname} is {node.summary} with {evict.named(jobs)} on it"
    return f"{hostname} is {node.summary}" + (f", and {evict.named(naming)} waits for it by name" if naming else "")


# -- ends ----------------------------------------------------------------------------------------------------


def cancelled(world: World, member: Member, note: WorkerLeave) -> Progress:
    """Its operation is over but it is half way: back to service if it still can, else the removal is completed."""
    if member.status == MemberStatus.DELETING:
        return _on_its_way(world, member, note, read_as(LeaveTerms, {}))
    hostname = node_name(member)
    if hostname and not world.did("resume", member):
        return [], WantedPlays(resumes={f"{PREFIX}{note.operation_id}": [member]})
    if hostname and (world.snapshot is None or world.snapshot.nodes is None):
        return [Wait("the controller could not be asked; nothing is assumed", host_name(member))], WantedPlays()
    changes = WorkerNotes(leave=note.ended("cancelled")).changes
    return [SetMember("its operation was cancelled", member, member.status, changes)], WantedPlays()


def _end(world: World, member: Member, note: WorkerLeave, error: AdapterError) -> SetMember:
    """The operation ends here for this member, which is not broken itself: its status is what the controller shows."""
    noted = error.as_note(world.now)
    changes = WorkerNotes(leave=note.ended("failed", noted), last_adapter_error=noted).changes
    return SetMember(f"{error.code}: {error.message}", member, member.status, changes)
