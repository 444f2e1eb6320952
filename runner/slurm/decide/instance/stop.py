"""Stop: the cluster ends cleanly, and start brings the same one back.

No node is drained. The partitions that start jobs are closed on the controller, so that what waits goes on waiting and
nothing new starts; every tick looks at what still runs; when nothing does, the daemons are stopped in the order that
loses nothing.
To the note it adds `phase` (closing, waiting, reopening, stopping; then how it ended), `partitions` (the state of each
before us: those that were UP or DRAIN are ours to bring back), `jobs`, `did`, `not_reached`.
"""

from datetime import timedelta

from runner.model import progress
from runner.model.names import CONTROLLER, host_name
from runner.model.plan import Act, AdapterError, Detail, Play, SetMember, Step, Wait, stamp
from runner.model.platform import Health, InstanceStatus, Member, MemberStatus, Operation
from runner.model.shapes import read_time
from runner.slurm.decide.instance import queue, whole_cluster
from runner.slurm.decide.instance.whole_cluster import controller_of, label, partitions, workers_of
from runner.slurm.decide.status import look
from runner.slurm.decide.workers import evict, leave
from runner.slurm.decide.workers.evict import JobTerms
from runner.slurm.readiness import running_jobs
from runner.slurm.snapshot import Job
from runner.slurm.world import World

# What the play found in the way: not an error of the attempt, but a reason to wait on.
NOT_QUIET = ("jobs_running",)
NAMED = 20
# What a partition is set to while the cluster is being stopped. One in DRAIN takes no new jobs but starts those that
# wait; INACTIVE does neither. DOWN and INACTIVE start nothing already.
CLOSED = {"UP": "DOWN", "DRAIN": "INACTIVE"}
SILENT = "the controller could not be asked; nothing is assumed"


def carry_out(world: World, operation: Operation) -> list[Step]:
    known = queue.noted(world, operation)
    if known.get("verdict"):
        return whole_cluster.ended(operation, known, _result(known))
    terms = leave.read_as(JobTerms, operation.parameters)
    return _go_on(world, operation, known, terms)


def called_off(world: World) -> list[Step]:
    """The partitions are opened again. What is already being stopped is stopped: start brings it back."""
    known = queue.note(world)
    controller = controller_of(world)
    if known.get("phase") == "stopping":
        return _down(world, None, known, controller)
    return _reopen(world, None, known, controller)


def _go_on(world: World, operation: Operation, known: Detail, terms: JobTerms) -> list[Step]:
    controller = controller_of(world)
    phase = known.get("phase")
    if phase == "stopping":
        return _down(world, operation, known, controller)
    if phase == "reopening":
        return _reopen(world, operation, known, controller)
    if "partitions" not in known:
        return _begin(world, operation, known, controller, terms)
    if not world.did("quiet", controller):
        return [_close(world, known, controller)]
    jobs = running_jobs(world.snapshot)
    if jobs is None:
        return _silent(world, operation, known, terms)
    if jobs:
        return _wait_for(world, operation, known, controller, terms, jobs)
    told: Detail = {"waiting": None, "jobs": [], "jobs_left": 0, "attempts": 0}
    return queue.say(world, operation, phase="stopping", reasons=[_reason("nothing runs any more")], **told)


# -- closed, and waiting -------------------------------------------------------------------------------------


def _begin(world: World, operation: Operation, known: Detail, controller: Member, terms: JobTerms) -> list[Step]:
    """Which partitions are open is noted before one is closed: a successor must know which are ours to open."""
    found = world.snapshot.partitions if world.snapshot else None
    if found is None and not world.did("look", controller):
        return [look(controller, "which partitions are open, and what runs")]
    if found is None:
        return _silent(world, operation, known, terms)
    words = f"asked for: {terms.reason}" if terms.reason else "asked for"
    noted = whole_cluster.notable_partitions(found)
    return queue.say(world, operation, phase="closing", partitions=noted, reasons=[_reason(words)])


def _close(world: World, known: Detail, controller: Member) -> Play:
    closing = {name: CLOSED[state] for name, state in sorted(partitions(known).items()) if state in CLOSED}
    jobs = running_jobs(world.snapshot)
    still = f", and wait for {evict.named(jobs)}" if jobs else ""
    why = f"close {', '.join(closing) or 'nothing'}: what waits goes on waiting{still}"
    return Play(why, "quiesce", (controller,), frozenset({("quiet", controller.id)}), {"partitions": closing})


def _silent(world: World, operation: Operation, known: Detail, terms: JobTerms) -> list[Step]:
    if known and _overdue(world, known, terms):
        return _give_up(world, operation, terms, SILENT)
    phase = known.get("phase") or "closing"
    reason = [_reason(SILENT, "controller_unknown")]
    said = queue.say(world, operation, phase=phase, waiting=SILENT, reasons=reason)
    return [*said, Wait(SILENT, label(operation))]


def _wait_for(
    world: World, operation: Operation, known: Detail, controller: Member, terms: JobTerms, jobs: list[Job]
) -> list[Step]:
    words = f"waits for {evict.named(jobs)}"
    ends = [job.end_time for job in jobs if job.end_time]
    told: Detail = {
        "phase": "waiting",
        "waiting": words,
        "jobs": evict.addresses(jobs),
        "jobs_left": len(jobs),
        "jobs_end_by": stamp(max(ends)) if ends else None,
    }
    if not _overdue(world, known, terms):
        return [*queue.say(world, operation, reasons=[_reason(words)], **told), Wait(words, label(operation))]
    if terms.at_deadline == "give_up":
        return _give_up(world, operation, terms, words)
    ending = [job for job in jobs if evict.is_open(job)]
    did = evict.announcement(terms.at_deadline, ending)
    if ending and not world.did("evict", controller):
        if known.get("did") != did:
            # Said before it is done: a kill in between must not leave jobs ended by nobody.
            return queue.say(world, operation, reasons=[_reason(f"the deadline has passed: {did}")], did=did, **told)
        work = {"partitions": {}, terms.at_deadline: sorted(job.address for job in ending)}
        return [Play(did, "quiesce", (controller,), frozenset({("evict", controller.id)}), work)]
    return [*queue.say(world, operation, reasons=[_reason(words)], **told), Wait(words, label(operation))]


def _overdue(world: World, known: Detail, terms: JobTerms) -> bool:
    since = read_time(known.get("since")) or world.now
    return terms.deadline_seconds is not None and world.now >= since + timedelta(seconds=terms.deadline_seconds)


# -- open again ----------------------------------------------------------------------------------------------


def _give_up(world: World, operation: Operation, terms: JobTerms, words: str) -> list[Step]:
    message = f"not quiet in {terms.deadline_seconds} s, so given up and opened again: {words}"
    return _fails(world, operation, AdapterError("stop_deadline", message))


def _fails(world: World, operation: Operation, error: AdapterError) -> list[Step]:
    """Nothing is stopped, so what was closed for it is opened before the operation ends."""
    failure = {"code": error.code, "message": error.message}
    told: Detail = {"phase": "reopening", "failure": failure, "attempts": 0, "next_attempt_at": None}
    return queue.say(world, operation, reasons=[failure], **told)


def _reopen(world: World, operation: Operation | None, known: Detail, controller: Member) -> list[Step]:
    """Open what we closed, and see it open; a partition that a person had closed stays closed."""
    ours = {name: state for name, state in sorted(partitions(known).items()) if state in CLOSED}
    if not world.did("resume", controller):
        later = whole_cluster.not_due(world, known)
        if later:
            return [Wait(later, label(operation))]
        why = (
            f"{', '.join(f'{name} {state}' for name, state in ours.items())} again"
            if ours
            else "nothing was closed by us"
        )
        acts: frozenset[Act] = frozenset({("resume", controller.id)})
        return [Play(why, "quiesce", (controller,), acts, {"partitions": ours})]
    seen = world.snapshot.partitions if world.snapshot else None
    failure = known.get("failure") or {}
    error = AdapterError(str(failure.get("code")), str(failure.get("message"))) if failure else None
    if seen is not None and all(seen.get(name, state) == state for name, state in ours.items()):
        return whole_cluster.end(world, operation, _result(known), error=error, phase="open")
    outcome = world.outcomes.get(controller.id)
    if outcome is None:
        return [Wait(whole_cluster.NOT_REACHED, label(operation))]
    problem = outcome.error or AdapterError("slurm_silent", SILENT, "retryable")
    again = whole_cluster.try_again(
        world, operation, known, controller, problem, [_reason(problem.message, problem.code)]
    )
    if again:
        return again
    if problem.klass == "retryable" and ours:
        # What we closed stays ours to open: a controller that is silent for long does not end that.
        return [Wait(f"{problem.code}: {problem.message}", label(operation))]
    states = ", ".join(f"{name} (was {state})" for name, state in ours.items())
    message = f"{states} may still be closed: bring each back with `scontrol update PartitionName=... State=...`"
    error = AdapterError(
        error.code if error else "not_reopened", f"{error.message if error else problem.message}. {message}"
    )
    return whole_cluster.end(world, operation, _result(known), error=error, phase="open")


# -- stopped -------------------------------------------------------------------------------------------------


def _down(world: World, operation: Operation | None, known: Detail, controller: Member) -> list[Step]:
    if not world.did("stop", controller):
        later = whole_cluster.not_due(world, known)
        if later:
            return [Wait(later, label(operation))]
        members = (controller, *workers_of(world))
        why = f"nothing runs: stop slurmd on {len(members) - 1} worker(s), then the controller's services"
        acts: frozenset[Act] = frozenset(("stop", one.id) for one in members)
        return [Play(why, "stop", members, acts)]
    outcome = world.outcomes.get(controller.id)
    if outcome is None:
        return [Wait(whole_cluster.NOT_REACHED, label(operation))]
    if outcome.error:
        return _not_stopped(world, operation, known, controller, outcome.error)
    if outcome.phase != "stopped":
        return [Wait("the controller has not said that it stopped; the next tick goes on", label(operation))]
    return _stopped(world, operation, known, controller)


def _not_stopped(
    world: World, operation: Operation | None, known: Detail, controller: Member, error: AdapterError
) -> list[Step]:
    if error.code in NOT_QUIET:
        # Something was started after all: back to waiting for it, by the same terms.
        return queue.say(world, operation, phase="waiting", reasons=[_reason(error.message)])
    again = whole_cluster.try_again(world, operation, known, controller, error, [_reason(error.message, error.code)])
    if again:
        return again
    message = f"the controller could not be stopped: {error.message} Ask for stop again, or for restart to have it back"
    problem = AdapterError("stop_failed", message)
    if operation:
        return _fails(world, operation, problem)
    return whole_cluster.end(world, None, _result(known), error=problem, phase="failed")


def _stopped(world: World, operation: Operation | None, known: Detail, controller: Member) -> list[Step]:
    """Every member that served says so, then the instance does, and the operation ends."""
    missed = {}
    for member in workers_of(world):
        outcome = world.outcomes.get(member.id)
        if outcome is None or outcome.error or outcome.phase != "stopped":
            missed[member.id] = outcome.error.message if outcome and outcome.error else "the play did not get to it"
    served = (MemberStatus.READY, MemberStatus.DRAINING)
    members = [one for one in (controller, *workers_of(world)) if one.status in served or progress.is_stopped(one)]
    steps = [_rests(world, member, missed.get(member.id)) for member in members]
    names = {host_name(member): missed[member.id][:200] for member in workers_of(world) if member.id in missed}
    told: Detail = {"not_reached": dict(sorted(names.items())[:NAMED]), "not_reached_count": len(names)}
    hint = f" ({len(names)} worker host(s) did not answer and were left as they are)" if names else ""
    message = f"the cluster was stopped{hint}: `gpuaas-slurm op start` brings it back with its jobs and its history"
    said = whole_cluster.end(
        whole_cluster.once_written(world, steps),
        operation,
        _result(known | told),
        status=InstanceStatus.STOPPED,
        health=Health.UNKNOWN,
        reasons=[{"code": "stopped", "message": message}],
        phase="stopped",
        **told,
    )
    return [*steps, *said]


def _rests(world: World, member: Member, missed: str | None) -> SetMember:
    before = member.adapter_detail.get("stopped") if progress.is_stopped(member) else None
    said: Detail = {
        "phase": "stopped",
        "stopped": before or {"was": member.status, "phase": member.adapter_detail.get("phase")},
        "attempt": 0,
        "next_attempt_at": None,
        "last_adapter_error": None,
    }
    if missed:
        error = AdapterError("not_stopped", f"its slurmd was not stopped: {missed}", "retryable", host_name(member))
        said["last_adapter_error"] = error.as_detail(world.now)
    if member.component_key == CONTROLLER:
        outcome = world.outcomes.get(member.id)
        left = outcome.detail.get("services_left") if outcome else None
        said |= {"slurmctld_state": "inactive", "slurmdbd_state": "inactive", "services_left": left or []}
    else:
        state = "unknown" if missed else "inactive"
        said |= {"slurmd_state": state, "node_state": None, "jobs_remaining": 0, "jobs": []}
    return SetMember("stopped with its cluster", member, MemberStatus.REQUESTED, said)


# -- small things --------------------------------------------------------------------------------------------


def _result(known: Detail) -> Detail:
    said = {key: known.get(key) for key in ("did", "not_reached", "not_reached_count") if known.get(key)}
    return {"partitions": partitions(known), **said}


def _reason(words: str, code: str = "stopping") -> Detail:
    return {"code": code, "message": f"the cluster is being stopped: {words}" if code == "stopping" else words}


STOP = queue.Verb((InstanceStatus.RUNNING,), carry_out, whole_cluster.takes(JobTerms), called_off)
