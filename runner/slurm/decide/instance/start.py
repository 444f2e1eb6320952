"""Start: the deploy play on the controller and on every member that was stopped with it, and each ends by itself.

Whoever is to come back has the `stopped` note in its detail until it has; so any runner goes on at any point. A worker
that was drained before comes back drained, by whomever.
"""

from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from runner.model import progress
from runner.model.names import host_name
from runner.model.plan import Act, AdapterError, Detail, Play, SetMember, Step, Wait, stamp
from runner.model.platform import Health, InstanceStatus, Member, MemberStatus, Operation
from runner.model.shapes import read_time
from runner.model.world import Outcome
from runner.slurm import detail
from runner.slurm.decide.instance import queue, whole_cluster
from runner.slurm.decide.instance.whole_cluster import controller_of, label, partitions, workers_of
from runner.slurm.decide.members import controller_error, fail, host_problem
from runner.slurm.decide.status import look
from runner.slurm.decide.workers.operations import joined_results
from runner.slurm.readiness import worker_problem
from runner.slurm.world import World


class Terms(BaseModel):
    """`parameters` of start: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def carry_out(world: World, operation: Operation) -> list[Step]:
    known = queue.noted(world, operation)
    if known.get("verdict"):
        return whole_cluster.ended(operation, known, _result(world, operation))
    if not known:
        before = partitions(queue.note(world))  # as the stop found them
        begun = "the cluster is being started"
        return queue.say(
            world, operation, status=InstanceStatus.DEPLOYING, phase="starting", partitions=before, reasons=_why(begun)
        )
    return _bring_up(world, operation, known)


def called_off(world: World) -> list[Step]:
    """A start that has begun is finished, for half a cluster is no use; but nothing is tried twice."""
    return _bring_up(world, None, queue.note(world))


def _bring_up(world: World, operation: Operation | None, known: Detail) -> list[Step]:
    controller = controller_of(world)
    steps: list[Step] = []
    if progress.is_stopped(controller):
        outcome = world.outcomes.get(controller.id)
        if outcome:
            problem = controller_error(world, outcome)
            if problem:
                return _controller_failed(world, operation, known, controller, problem)
            steps.append(_back(operation, controller, outcome, detail.of_controller(world.snapshot)))  # type: ignore[arg-type]
        else:
            blocked = _controller_blocked(world, operation, known, controller)
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
        work = {"partitions": partitions(known)}
        return [*waits, Play(why, "deploy", members, acts, work, {"keep_drains": True})]
    if waits:
        return [*_say_waiting(world, operation, waits), *waits]
    return _end(world, operation, controller)


# -- the controller ------------------------------------------------------------------------------------------


def _controller_blocked(
    world: World, operation: Operation | None, known: Detail, controller: Member
) -> list[Step] | None:
    error, waiting = host_problem(world, controller)
    if error:
        return _controller_failed(world, operation, known, controller, error)
    waiting = waiting or whole_cluster.not_due(world, known)
    if world.did("start", controller):
        waiting = whole_cluster.NOT_REACHED
    return [Wait(waiting, label(operation))] if waiting else None


def _controller_failed(
    world: World, operation: Operation | None, known: Detail, controller: Member, error: AdapterError
) -> list[Step]:
    """Tried again if that may help; else the instance is what it was, stopped, and can be asked to start again.

    A start that was called off had begun: an earlier play may have brought the controller up. So without an operation
    nothing is concluded while the controller does not answer.
    """
    again = whole_cluster.try_again(world, operation, known, controller, error, _why(error.message, error.code))
    if again:
        return again
    if operation is None and error.klass == "retryable":
        return [Wait(f"{error.code}: {error.message}", label(operation))]
    told: Detail = {"phase": "stopped", "last_adapter_error": error.as_detail(world.now)}
    steps = [SetMember("it did not come up", controller, MemberStatus.REQUESTED, told)]
    steps += [
        SetMember("its controller did not come up", member, MemberStatus.REQUESTED, {"phase": "stopped"})
        for member in workers_of(world)
        if progress.is_stopped(member)
    ]
    message = f"the controller did not come up, so the cluster is stopped still: {error.message}"
    ending = whole_cluster.end(
        whole_cluster.once_written(world, steps),
        operation,
        {},
        error=AdapterError(error.code, message),
        status=InstanceStatus.STOPPED,
        health=Health.UNKNOWN,
        reasons=[
            {"code": "stopped", "message": f"{message}. Put that right and ask for `gpuaas-slurm op start` again"}
        ],
        phase="stopped",
    )
    return [*steps, *ending]


# -- the workers ---------------------------------------------------------------------------------------------


def _workers(world: World, operation: Operation | None) -> tuple[list[Step], list[Member]]:
    """Steps for workers that were stopped, and those to be played now."""
    steps: list[Step] = []
    coming: list[Member] = []
    for member in filter(progress.is_stopped, workers_of(world)):
        outcome = world.outcomes.get(member.id)
        error, waiting = host_problem(world, member)
        due = read_time(member.adapter_detail.get("next_attempt_at"))
        if outcome:
            steps.append(_worker_back(world, operation, member, outcome))
        elif error:
            steps.append(_lost(operation, fail(world, member, error)))
        elif waiting:
            steps.append(Wait(waiting, host_name(member)))
        elif due and due > world.now:
            steps.append(Wait(f"the next try is at {stamp(due)}", host_name(member)))
        elif world.did("start", member):
            steps.append(Wait("the play did not get to it; the next tick goes on", host_name(member)))
        else:
            coming.append(member)
    return steps, coming


def _worker_back(world: World, operation: Operation | None, member: Member, outcome: Outcome) -> SetMember:
    snapshot = world.snapshot
    known = {**detail.filled(member), **outcome.detail}
    hostname = known.get("worker_hostname")
    problem = worker_problem(snapshot, hostname, known, may_be_held=True)
    error = outcome.error or (AdapterError(problem[0], problem[1], "retryable") if problem else None)
    seen = detail.of_worker(snapshot, hostname) if snapshot else {}
    if error is None:
        return _back(operation, member, outcome, seen)
    if operation is None:
        error = replace(error, klass="repairable")  # nobody is there to wait for another try
    return _lost(operation, fail(world, member, error, Outcome(outcome.phase, outcome.detail | seen)))


def _back(operation: Operation | None, member: Member, outcome: Outcome, seen: Detail) -> SetMember:
    """As it was before the stop: serving, or on the way out that was agreed then."""
    before = member.adapter_detail.get("stopped") or {}
    draining = before.get("was") == MemberStatus.DRAINING
    phase = before.get("phase") if draining else "serving"
    said = {**outcome.detail, **seen, **_over(operation), "phase": phase, "last_adapter_error": None, "attempt": 0}
    status = MemberStatus.DRAINING if draining else MemberStatus.READY
    return SetMember("the controller shows it as it was before the stop", member, status, said)


def _lost(operation: Operation | None, failed: SetMember) -> SetMember:
    if failed.status != MemberStatus.FAILED:
        return failed  # to be tried again, so it is still to come back
    return replace(failed, detail=failed.detail | _over(operation))


def _over(operation: Operation | None) -> Detail:
    return {"stopped": None, "started_by": str(operation.id) if operation else None, "next_attempt_at": None}


# -- the end -------------------------------------------------------------------------------------------------


def _say_waiting(world: World, operation: Operation | None, waits: list[Step]) -> list[Step]:
    words = f"waits for {len(waits)} worker(s); the first: {waits[0].why}"
    return queue.say(world, operation, waiting=words, reasons=_why(f"the cluster is being started: {words}"))


def _end(world: World, operation: Operation | None, controller: Member) -> list[Step]:
    if world.snapshot is None and not world.did("look", controller):
        return [look(controller, "everybody is back but nobody has said so yet")]
    lost = [member for member in _mine(world, operation) if member.status == MemberStatus.FAILED]
    error = None
    if lost:
        first = lost[0].adapter_detail.get("last_adapter_error") or {}
        message = f"{len(lost)} worker(s) did not come back; the first: {first.get('message', 'no reason known')}"
        error = AdapterError("partly_failed", message)
    result = _result(world, operation) if operation else {}
    return whole_cluster.end(world, operation, result, error=error, status=InstanceStatus.RUNNING, phase="running")


def _mine(world: World, operation: Operation | None) -> list[Member]:
    """The workers this start has brought back, or failed to."""
    return [one for one in workers_of(world) if operation and one.adapter_detail.get("started_by") == str(operation.id)]


def _result(world: World, operation: Operation) -> Detail:
    return joined_results(_mine(world, operation))


def _why(words: str, code: str = "starting") -> list[Detail]:
    return [{"code": code, "message": words}]


START = queue.Verb((InstanceStatus.STOPPED,), carry_out, whole_cluster.takes(Terms), called_off)
