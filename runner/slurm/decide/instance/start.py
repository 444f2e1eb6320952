"""Start: the deploy play on the controller and on every member that was stopped with it; each has its own result.

A member that is to come back has the `stopped` note until it has, so any runner can continue at any point. A worker
that was drained before comes back drained.
"""

from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from runner.model import progress
from runner.model.instance_notes import Reason
from runner.model.member_notes import MemberNotes
from runner.model.plan import Act, AdapterError, Detail, Play, SetMember, Step, Wait
from runner.model.platform import Health, InstanceStatus, Member, MemberStatus, Operation
from runner.model.world import Outcome
from runner.slurm import detail
from runner.slurm.decide.instance import queue, whole_cluster
from runner.slurm.decide.instance.whole_cluster import controller_of, label, workers_of
from runner.slurm.decide.members import before_play, controller_error, fail, host_problem
from runner.slurm.decide.status import look
from runner.slurm.decide.workers.results import joined_results, message_of
from runner.slurm.lifecycle_notes import StartNote, StopNote
from runner.slurm.notes import WorkerNotes
from runner.slurm.readiness import worker_problem
from runner.slurm.world import World


class Terms(BaseModel):
    """`parameters` of start: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def carry_out(world: World, operation: Operation) -> list[Step]:
    note = queue.progress(world, operation, StartNote)
    if note:
        return bring_up(world, note, operation)
    before = queue.note(world)  # of the stop, or of a start that failed
    partitions = before.partitions if isinstance(before, StopNote | StartNote) else None
    begun = StartNote.begin(operation, world.now, partitions=partitions or {})
    reason = _reason("the cluster is being started")
    return queue.write_note(world, begun, status=InstanceStatus.DEPLOYING, reasons=[reason])


def bring_up(world: World, note: StartNote, operation: Operation | None = None) -> list[Step]:
    """Bring up what was stopped. A start that was cancelled is finished too, but nothing is tried twice."""
    controller = controller_of(world)
    steps: list[Step] = []
    if progress.is_stopped(controller):
        outcome = world.outcomes.get(controller.id)
        if outcome:
            problem = controller_error(world, outcome)
            if problem:
                return _controller_failed(world, operation, note, controller, problem)
            steps.append(_back(operation, controller, outcome, detail.of_controller(world.snapshot)))  # type: ignore[arg-type]
        else:
            blocked = _controller_blocked(world, operation, note, controller)
            if blocked:
                return blocked
    waits, coming = _workers(world, operation)
    steps += [step for step in waits if not isinstance(step, Wait)]
    if steps:
        return steps
    if progress.is_stopped(controller) or coming:
        members = (controller, *coming)
        acts: frozenset[Act] = frozenset(("start", one.id) for one in members)
        why = f"bring back the controller and {len(coming)} worker(s) in one run"
        work = {"partitions": note.partitions or {}}
        return [*waits, Play(why, "deploy", members, acts, work, {"keep_drains": True})]
    if waits:
        return [*_note_waiting(world, note, waits), *waits]
    return _end(world, operation, note, controller)


# -- the controller ------------------------------------------------------------------------------------------


def _controller_blocked(
    world: World, operation: Operation | None, note: StartNote, controller: Member
) -> list[Step] | None:
    error, waiting = host_problem(world, controller)
    if error:
        return _controller_failed(world, operation, note, controller, error)
    waiting = waiting or note.attempts.not_due(world.now)
    if world.did("start", controller):
        waiting = whole_cluster.NOT_REACHED
    return [Wait(waiting, label(operation))] if waiting else None


def _controller_failed(
    world: World, operation: Operation | None, note: StartNote, controller: Member, error: AdapterError
) -> list[Step]:
    """Tried again if that may help; otherwise the instance is stopped as before, and a start can be requested again.

    A start that was cancelled had begun: an earlier play may have brought the controller up. So without an operation
    nothing is concluded while the controller does not answer.
    """
    again = whole_cluster.try_again(world, operation, note, controller, error, _reason(error.message, error.code))
    if again:
        return again
    if operation is None and error.klass == "retryable":
        return [Wait(f"{error.code}: {error.message}", label(operation))]
    stopped = MemberNotes(phase="stopped").changes
    changes = stopped | MemberNotes(last_adapter_error=error.as_note(world.now)).changes
    steps = [SetMember("it did not come up", controller, MemberStatus.REQUESTED, changes)]
    steps += [
        SetMember("its controller did not come up", member, MemberStatus.REQUESTED, stopped)
        for member in workers_of(world)
        if progress.is_stopped(member)
    ]
    message = f"the controller did not come up, so the cluster is still stopped: {error.message}"
    ending = whole_cluster.end(
        world.after_all(steps),
        operation,
        note.but(phase="stopped"),
        error=AdapterError(error.code, message),
        status=InstanceStatus.STOPPED,
        health=Health.UNKNOWN,
        reasons=[_reason(f"{message}. Correct that, then request `gpuaas-slurm op start` again", "stopped")],
        result={},
    )
    return [*steps, *ending]


# -- the workers ---------------------------------------------------------------------------------------------


def _workers(world: World, operation: Operation | None) -> tuple[list[Step], list[Member]]:
    """Steps for workers that were stopped, and those to be played now."""
    steps: list[Step] = []
    coming: list[Member] = []
    for member in filter(progress.is_stopped, workers_of(world)):
        outcome = world.outcomes.get(member.id)
        if outcome:
            steps.append(_worker_back(world, operation, member, outcome))
        elif step := before_play(world, member, "start"):
            steps.append(_lost(operation, step) if isinstance(step, SetMember) else step)
        else:
            coming.append(member)
    return steps, coming


def _worker_back(world: World, operation: Operation | None, member: Member, outcome: Outcome) -> SetMember:
    snapshot = world.snapshot
    reported = WorkerNotes.read({**detail.filled(member), **outcome.detail})
    problem = worker_problem(snapshot, reported, may_be_held=True)
    error = outcome.error or (AdapterError(problem[0], problem[1], "retryable") if problem else None)
    seen = detail.of_worker(snapshot, reported.worker_hostname) if snapshot else {}
    if error is None:
        return _back(operation, member, outcome, seen)
    if operation is None:
        error = replace(error, klass="repairable")  # no operation is left that could wait for another attempt
    return _lost(operation, fail(world, member, error, Outcome(outcome.phase, outcome.detail | seen)))


def _back(operation: Operation | None, member: Member, outcome: Outcome, seen: Detail) -> SetMember:
    """As it was before the stop: serving, or draining."""
    before = member.notes.stopped
    draining = before is not None and before.was == MemberStatus.DRAINING
    phase = before.phase if before and draining else "serving"
    ended = MemberNotes(phase=phase, last_adapter_error=None, attempt=0).changes
    changes = {**outcome.detail, **seen, **_over(operation), **ended}
    status = MemberStatus.DRAINING if draining else MemberStatus.READY
    return SetMember("the controller shows it as it was before the stop", member, status, changes)


def _lost(operation: Operation | None, failed: SetMember) -> SetMember:
    if failed.status != MemberStatus.FAILED:
        return failed  # to be tried again, so it is still to come back
    return replace(failed, detail=failed.detail | _over(operation))


def _over(operation: Operation | None) -> Detail:
    return MemberNotes(stopped=None, started_by=operation.id if operation else None, next_attempt_at=None).changes


# -- the end -------------------------------------------------------------------------------------------------


def _note_waiting(world: World, note: StartNote, waits: list[Step]) -> list[Step]:
    why = f"waits for {len(waits)} worker(s); the first: {waits[0].why}"
    return queue.write_note(world, note.but(waiting=why), reasons=[_reason(f"the cluster is being started: {why}")])


def _end(world: World, operation: Operation | None, note: StartNote, controller: Member) -> list[Step]:
    if world.snapshot is None and not world.did("look", controller):
        return [look(controller, "every member is back, and the cluster is not reported yet")]
    lost = [member for member in _started(world, operation) if member.status == MemberStatus.FAILED]
    error = None
    if lost:
        first = message_of(lost[0].notes.last_adapter_error)
        error = AdapterError("partly_failed", f"{len(lost)} worker(s) did not come back; the first: {first}")
    result, ended = _result(world, operation) if operation else {}, note.but(phase="running")
    return whole_cluster.end(world, operation, ended, error=error, status=InstanceStatus.RUNNING, result=result)


def _started(world: World, operation: Operation | None) -> list[Member]:
    """The workers this start has brought back, or failed to."""
    return [one for one in workers_of(world) if operation and one.notes.started_by == operation.id]


def _result(world: World, operation: Operation) -> Detail:
    return joined_results(_started(world, operation))


def _reason(message: str, code: str = "starting") -> Reason:
    return Reason(code=code, message=message)


VERB = queue.Verb((InstanceStatus.STOPPED,), carry_out, whole_cluster.takes(Terms), bring_up, result=_result)
