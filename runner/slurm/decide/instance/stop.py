"""Stop: the cluster ends cleanly, and start brings the same one back.

No node is drained. The partitions that start jobs are closed on the controller, so that pending jobs stay pending and
nothing new starts; every tick looks at what still runs; when nothing does, one play stops the daemons in the order that
loses nothing: slurmd on the workers, then slurmctld, which saves its state and sends its last records, then slurmdbd,
MariaDB and munge.
"""

from datetime import timedelta

from runner.model import progress
from runner.model.instance_notes import Reason
from runner.model.member_notes import MemberNotes, Stopped
from runner.model.names import host_name
from runner.model.plan import Act, AdapterError, Play, SetMember, Step, Wait
from runner.model.platform import IN_SERVICE, Health, InstanceStatus, Member, MemberStatus, Operation
from runner.model.records import Attempts
from runner.slurm.components import CONTROLLER
from runner.slurm.decide.instance import queue, whole_cluster
from runner.slurm.decide.instance.whole_cluster import controller_of, label, workers_of
from runner.slurm.decide.status import look
from runner.slurm.decide.workers import evict
from runner.slurm.decide.workers.evict import JobTerms
from runner.slurm.decide.workers.terms import read_as
from runner.slurm.lifecycle_notes import StopNote, notable_partitions, noted_error
from runner.slurm.notes import ControllerNotes, WorkerNotes
from runner.slurm.readiness import running_jobs
from runner.slurm.snapshot import Job
from runner.slurm.world import World

# What the play found in the way: not an error of the attempt, but a reason to keep waiting.
NOT_QUIET = ("jobs_running",)
NAMED = 20
# What a partition is set to while the cluster is being stopped. One in DRAIN takes no new jobs but starts those that
# wait; INACTIVE does neither. DOWN and INACTIVE start nothing already.
CLOSED = {"UP": "DOWN", "DRAIN": "INACTIVE"}
SILENT = "the controller did not answer; nothing is assumed"


def carry_out(world: World, operation: Operation) -> list[Step]:
    """The next steps, by the phase of the note.

    closing: the open partitions are noted, then closed; repeated in every tick, since that play returns the look.
    waiting: for running jobs, until the deadline; then jobs are ended, or the stop is given up.
    stopping: no job runs, and the daemons are stopped; the end is `stopped`.
    reopening: the stop failed, and what it closed is opened; the end is `open`.
    """
    terms = read_as(JobTerms, operation.parameters)
    note, controller = queue.progress(world, operation, StopNote), controller_of(world)
    if note and note.phase == "stopping":
        return _stop_daemons(world, operation, note, controller)
    if note and note.phase == "reopening":
        return _reopen(world, operation, note, controller)
    if note is None or note.partitions is None:
        return _begin(world, operation, note, controller, terms)
    if not world.did("quiet", controller):
        return [_close(world, note, controller)]
    jobs = running_jobs(world.snapshot)
    if jobs is None:
        return _no_answer(world, operation, note, terms)
    if jobs:
        return _wait_for(world, operation, note, controller, terms, jobs)
    quiet = note.but(phase="stopping", waiting=None, jobs=[], jobs_left=0, attempts=Attempts())
    return queue.write_note(world, quiet, reasons=[_reason("no job is running any more")])


def called_off(world: World, note: StopNote) -> list[Step]:
    """The partitions are opened again. Daemons that are already being stopped are stopped: start brings them back."""
    controller = controller_of(world)
    if note.phase == "stopping":
        return _stop_daemons(world, None, note, controller)
    return _reopen(world, None, note, controller)


# -- closed, and waiting -------------------------------------------------------------------------------------


def _begin(
    world: World, operation: Operation, note: StopNote | None, controller: Member, terms: JobTerms
) -> list[Step]:
    """Which partitions are open is noted before one is closed: a successor must know which ones to open again."""
    found = world.snapshot.partitions if world.snapshot else None
    if found is None and not world.did("look", controller):
        return [look(controller, "which partitions are open, and what runs")]
    begun = note or StopNote.begin(operation, world.now)
    if found is None:
        return _no_answer(world, operation, begun, terms)
    why = f"requested: {terms.reason}" if terms.reason else "requested"
    closing = begun.but(phase="closing", partitions=notable_partitions(found))
    return queue.write_note(world, closing, reasons=[_reason(why)])


def _ours(note: StopNote) -> dict[str, str]:
    """The partitions that this stop closes, with their state before it. One that a person closed is left closed."""
    return {name: state for name, state in sorted((note.partitions or {}).items()) if state in CLOSED}


def _close(world: World, note: StopNote, controller: Member) -> Play:
    closing = {name: CLOSED[state] for name, state in _ours(note).items()}
    jobs = running_jobs(world.snapshot)
    still = f", and wait for {evict.named(jobs)}" if jobs else ""
    why = f"close {', '.join(closing) or 'nothing'}: pending jobs stay pending{still}"
    return Play(why, "quiesce", (controller,), frozenset({("quiet", controller.id)}), {"partitions": closing})


def _no_answer(world: World, operation: Operation, note: StopNote, terms: JobTerms) -> list[Step]:
    """Without an answer no job is ended and nothing is stopped; so at the deadline the stop is given up."""
    if _overdue(world, note, terms):
        cause = f"the controller did not answer, and the {terms.deadline_seconds} s of the deadline have passed"
        return _give_up(world, note, cause)
    steps = queue.write_note(world, note.but(waiting=SILENT), reasons=[_reason(SILENT, "controller_unknown")])
    return [*steps, Wait(SILENT, label(operation))]


def _wait_for(
    world: World, operation: Operation, note: StopNote, controller: Member, terms: JobTerms, jobs: list[Job]
) -> list[Step]:
    why = f"waits for {evict.named(jobs)}"
    ends = [job.end_time for job in jobs if job.end_time]
    waiting = note.but(
        phase="waiting",
        waiting=why,
        jobs=evict.addresses(jobs),
        jobs_left=len(jobs),
        jobs_end_by=max(ends) if ends else None,
    )
    still: list[Step] = [*queue.write_note(world, waiting, reasons=[_reason(why)]), Wait(why, label(operation))]
    if not _overdue(world, note, terms):
        return still
    if terms.deadline_action == "give_up":
        return _give_up(world, note, f"jobs did not end in {terms.deadline_seconds} s ({evict.named(jobs)})")
    ending = [job for job in jobs if evict.is_open(job)]
    if not ending or world.did("evict", controller):
        return still
    announcement = evict.announcement(terms.deadline_action, ending)
    if note.announced_eviction != announcement:
        announced = waiting.but(announced_eviction=announcement)
        return queue.write_note(world, announced, reasons=[_reason(f"the deadline has passed: {announcement}")])
    work = {"partitions": {}, terms.deadline_action: sorted(job.address for job in ending)}
    return [Play(announcement, "quiesce", (controller,), frozenset({("evict", controller.id)}), work)]


def _overdue(world: World, note: StopNote, terms: JobTerms) -> bool:
    seconds = terms.deadline_seconds
    return seconds is not None and world.now >= note.started_at + timedelta(seconds=seconds)


# -- open again ----------------------------------------------------------------------------------------------


def _give_up(world: World, note: StopNote, cause: str) -> list[Step]:
    after = "the partitions that it closed are opened again" if _ours(note) else "it had closed no partition"
    return _fails(world, note, AdapterError("stop_deadline", f"{cause}, so the stop was given up; {after}"))


def _fails(world: World, note: StopNote, error: AdapterError) -> list[Step]:
    """Nothing is stopped, so what was closed for it is opened before the operation ends."""
    failed = note.but(phase="reopening", failure=noted_error(error), attempts=Attempts())
    return queue.write_note(world, failed, reasons=[error.as_reason()])


def _reopen(world: World, operation: Operation | None, note: StopNote, controller: Member) -> list[Step]:
    """Open what this stop closed, and see it open."""
    ours = _ours(note)
    if not world.did("resume", controller):
        later = note.attempts.not_due(world.now)
        if later:
            return [Wait(later, label(operation))]
        opening = ", ".join(f"{name} {state}" for name, state in ours.items())
        why = f"open again: {opening}" if ours else "no partition was closed by this stop"
        acts: frozenset[Act] = frozenset({("resume", controller.id)})
        return [Play(why, "quiesce", (controller,), acts, {"partitions": ours})]
    seen = world.snapshot.partitions if world.snapshot else None
    error = AdapterError(note.failure.code, note.failure.message) if note.failure else None
    opened = note.but(phase="open")
    if seen is not None and all(seen.get(name, state) == state for name, state in ours.items()):
        return whole_cluster.end(world, operation, opened, error=error)
    outcome = world.outcomes.get(controller.id)
    if outcome is None:
        return [Wait(whole_cluster.NOT_REACHED, label(operation))]
    problem = outcome.error or AdapterError("slurm_silent", SILENT, "retryable")
    reason = _reason(problem.message, problem.code)
    again = whole_cluster.try_again(world, operation, note, controller, problem, reason)
    if again:
        return again
    if problem.klass == "retryable" and ours:
        # What this stop closed is opened however long the controller is silent.
        return [Wait(f"{problem.code}: {problem.message}", label(operation))]
    if not ours:
        return whole_cluster.end(world, operation, opened, error=error)
    states = ", ".join(f"{name} (was {state})" for name, state in ours.items())
    message = f"{states} may still be closed: bring each back with `scontrol update PartitionName=... State=...`"
    first = error or AdapterError("not_reopened", problem.message)
    return whole_cluster.end(world, operation, opened, error=AdapterError(first.code, f"{first.message}. {message}"))


# -- stopped -------------------------------------------------------------------------------------------------


def _stop_daemons(world: World, operation: Operation | None, note: StopNote, controller: Member) -> list[Step]:
    if not world.did("stop", controller):
        later = note.attempts.not_due(world.now)
        if later:
            return [Wait(later, label(operation))]
        members = (controller, *workers_of(world))
        why = f"no job is running: stop slurmd on {len(members) - 1} worker(s), then the controller's services"
        acts: frozenset[Act] = frozenset(("stop", one.id) for one in members)
        return [Play(why, "stop", members, acts)]
    outcome = world.outcomes.get(controller.id)
    if outcome is None:
        return [Wait(whole_cluster.NOT_REACHED, label(operation))]
    if outcome.error:
        return _not_stopped(world, operation, note, controller, outcome.error)
    if outcome.phase != "stopped":
        return [Wait("the controller has not reported that it stopped; the next tick continues", label(operation))]
    return _stopped(world, operation, note, controller)


def _not_stopped(
    world: World, operation: Operation | None, note: StopNote, controller: Member, error: AdapterError
) -> list[Step]:
    if error.code in NOT_QUIET:
        # A job was started after all: wait for it, by the same terms.
        return queue.write_note(world, note.but(phase="waiting"), reasons=[_reason(error.message)])
    reason = _reason(error.message, error.code)
    again = whole_cluster.try_again(world, operation, note, controller, error, reason)
    if again:
        return again
    message = f"the controller did not stop: {error.message} Request the stop again, or a restart to return to service"
    problem = AdapterError("stop_failed", message)
    if operation:
        return _fails(world, note, problem)
    return whole_cluster.end(world, None, note.but(phase="failed"), error=problem)


def _stopped(world: World, operation: Operation | None, note: StopNote, controller: Member) -> list[Step]:
    """Every member that served is reported as stopped, then the instance, and the operation ends."""
    missed = {}
    for member in workers_of(world):
        outcome = world.outcomes.get(member.id)
        if outcome is None or outcome.error or outcome.phase != "stopped":
            missed[member.id] = outcome.error.message if outcome and outcome.error else "the play did not reach it"
    members = [one for one in (controller, *workers_of(world)) if one.status in IN_SERVICE or progress.is_stopped(one)]
    steps = [_rests(world, member, missed.get(member.id)) for member in members]
    names = {host_name(member): missed[member.id][:200] for member in workers_of(world) if member.id in missed}
    ended = note.but(phase="stopped", not_reached=dict(sorted(names.items())[:NAMED]), not_reached_count=len(names))
    hint = f" ({len(names)} worker host(s) did not answer and were left as they are)" if names else ""
    message = f"the cluster was stopped{hint}: `gpuaas-slurm op start` brings it back with its jobs and its history"
    ending = whole_cluster.end(
        world.after_all(steps),
        operation,
        ended,
        status=InstanceStatus.STOPPED,
        health=Health.UNKNOWN,
        reasons=[Reason(code="stopped", message=message)],
    )
    return [*steps, *ending]


def _rests(world: World, member: Member, missed: str | None) -> SetMember:
    before = member.notes.stopped if progress.is_stopped(member) else None
    error = AdapterError("not_stopped", f"its slurmd was not stopped: {missed}", "retryable", host_name(member))
    changes = MemberNotes(
        phase="stopped",
        stopped=before or Stopped(was=member.status, phase=member.notes.phase),
        attempt=0,
        next_attempt_at=None,
        last_adapter_error=error.as_note(world.now) if missed else None,
    ).changes
    if member.component_key == CONTROLLER:
        outcome = world.outcomes.get(member.id)
        left = ControllerNotes.read(outcome.detail).services_left if outcome else None
        changes |= ControllerNotes(
            slurmctld_state="inactive", slurmdbd_state="inactive", services_left=left or []
        ).changes
    else:
        state = "unknown" if missed else "inactive"
        changes |= WorkerNotes(slurmd_state=state, node_state=None, jobs_remaining=0, jobs=[]).changes
    return SetMember("stopped with its cluster", member, MemberStatus.REQUESTED, changes)


def _reason(why: str, code: str = "stopping") -> Reason:
    return Reason(code=code, message=f"the cluster is being stopped: {why}" if code == "stopping" else why)


VERB = queue.Verb((InstanceStatus.RUNNING,), carry_out, whole_cluster.takes(JobTerms), called_off)
