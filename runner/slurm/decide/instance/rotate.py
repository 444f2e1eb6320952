"""rotate_credentials: every host of a running cluster gets a new munge key at one moment.

Two plays, and a note that says which of them is under way. While it says `staging` the old key is the right one and
nothing has changed; once it says `switching` there is no way back: the next play promotes the new key and the hosts
change to it, as often as it takes. What is staged and comes to nothing is taken away again (`dropping`).
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal
from uuid import UUID

from runner.intent import addresses, host_keys
from runner.intent.errors import IntentError
from runner.model import limits
from runner.model.names import CONTROLLER, WORKER, host_name
from runner.model.plan import Act, AdapterError, Detail, Play, SetMember, Step, Wait, stamp
from runner.model.platform import Health, InstanceStatus, Member, MemberStatus, Operation
from runner.model.shapes import read_time
from runner.model.world import Outcome
from runner.slurm.decide.instance import queue
from runner.slurm.decide.instance.queue import Verb
from runner.slurm.node_names import node_name
from runner.slurm.node_rules import SERVING_STATES
from runner.slurm.world import World

# Who has the cluster's key and is not about to lose it. Whoever joins later gets the new one by joining.
BEARERS = (MemberStatus.READY, MemberStatus.DRAINING)
# Nobody answers as this host, so it cannot be prepared, and by itself keeps nobody else from a new key.
ABSENT = frozenset(
    {
        "host_unreachable",
        *host_keys.CODES,
        "connection_invalid",
        addresses.FAMILY,
        "allocation_not_active",
        "allocation_not_found",
    }
)
# Told by hosts that were themselves ready: the reason stands at another one.
HELD = frozenset({"rotation_held", "controller_silent"})
# In the record of a worker that did not answer and that the switch goes without: {operation_id, code}.
LEFT_OUT = "rotation_left_out"
UNKNOWN = AdapterError("not_reached", "the play ended before it came to this host", "retryable")


def check(_world: World, operation: Operation) -> None:
    if operation.parameters:
        named = ", ".join(sorted(map(str, operation.parameters)))[:200]
        raise IntentError("parameters_invalid", f"rotate_credentials takes no parameters, and was given {named}")


def carry_out(world: World, operation: Operation) -> list[Step]:
    known = queue.noted(world, operation)
    if known.get("verdict"):
        return [_finish(operation, known)]
    return _go_on(world, operation, known)


def called_off(world: World) -> list[Step]:
    """Before the switch it is undone. After it there is nothing to go back to: it is brought to its end."""
    known = queue.note(world)
    if known.get("phase") == "staging":
        return _say(world, None, phase="dropping", verdict_then="cancelled")
    return _go_on(world, None, known)


VERB = Verb((InstanceStatus.RUNNING,), carry_out, check, called_off)


def _go_on(world: World, operation: Operation | None, known: Detail) -> list[Step]:
    phase, members = known.get("phase"), _bearers(world)
    if not members:
        error = AdapterError("no_controller", "there is no controller in service whose key could be changed")
        return _end(world, operation, "failed", error)
    if phase is None:
        return _say(world, operation, phase="staging", attempt=0)
    if phase == "dropping":
        return _drop(world, operation, known, members)
    due = read_time(known.get("next_attempt_at"))
    if due and due > world.now:
        return [Wait(f"the next try is at {stamp(due)}", "rotate_credentials")]
    return _stage(world, operation, known, members) if phase == "staging" else _switch(world, operation, known, members)


def _bearers(world: World) -> tuple[Member, ...]:
    """The controller first, then its workers; nobody if there is no controller in service."""
    first = [one for one in world.members if one.component_key == CONTROLLER and one.status == MemberStatus.READY]
    workers = [one for one in world.members if one.component_key == WORKER and one.status in BEARERS]
    return (*first, *workers) if len(first) == 1 else ()


def _stage(world: World, operation: Operation | None, known: Detail, members: Sequence[Member]) -> list[Step]:
    controller, *workers = members
    if not world.did("stage", controller):
        why = f"a new munge key is staged on {len(members)} host(s); nothing changes yet"
        return [_play(why, members, "stage", "stage")]
    problems = _problems(world, members, "staged")
    silent = {
        one.id: problems[one.id].code for one in workers if one.id in problems and problems[one.id].code in ABSENT
    }
    busy = {one.id for one in workers if one.id in silent and _has_jobs(world, one)}
    standing = [one for one in members if one.id in problems and (one.id not in silent or one.id in busy)]
    if not standing:
        return _leave_out(world, operation, known, silent, workers)
    first = next((one for one in standing if problems[one.id].code not in HELD), standing[0])
    error = problems[first.id]
    if all(problems[one.id].klass == "retryable" for one in standing):
        again = _try_again(world, operation, known, error)
        if again is not None:
            return again
    why = " and still runs jobs" if first.id in busy else ""
    told = AdapterError(
        "rotation_not_prepared",
        f"nothing was changed: {host_name(first)} cannot be prepared{why} ({error.code}: {error.message[:400]})",
    )
    return _say(world, operation, phase="dropping", verdict_then="failed", error=_told(told))


def _leave_out(
    world: World, operation: Operation | None, known: Detail, silent: Mapping[UUID, str], workers: Sequence[Member]
) -> list[Step]:
    """Note on each silent worker that the switch goes without it, then that the switch begins.

    The decision stands in the worker's own record: the instance's note has room for a sample only.
    """
    steps: list[Step] = []
    for worker in workers:
        note = {"operation_id": known.get("operation_id"), "code": silent[worker.id]} if worker.id in silent else None
        if worker.adapter_detail.get(LEFT_OUT) != note:
            steps.append(
                SetMember("the switch goes without it", worker, worker.status, {LEFT_OUT: note}, consumes_outcome=False)
            )
    if steps:
        return steps
    named = {host_name(one): silent[one.id] for one in workers if one.id in silent}
    return _say(
        world, operation, phase="switching", attempt=0, next_attempt_at=None, **limits.sampled("left_out", named)
    )


def _left_out(known: Detail, member: Member) -> str | None:
    """Why this rotation goes on without the worker.

    Releases before ledger format 2 named all such workers in the instance's note.
    """
    former = known.get("without")
    if isinstance(former, dict) and host_name(member) in former:
        return str(former[host_name(member)])
    note = member.adapter_detail.get(LEFT_OUT) or {}
    return str(note.get("code")) if note.get("operation_id") == known.get("operation_id") else None


def _switch(world: World, operation: Operation | None, known: Detail, members: Sequence[Member]) -> list[Step]:
    controller = members[0]
    missed = {host_name(one): code for one in members[1:] if (code := _left_out(known, one))}
    in_it = tuple(one for one in members if host_name(one) not in missed)
    if not world.did("rotate", controller):
        why = f"{len(in_it)} host(s) change to the new munge key at one moment"
        return [_play(why, in_it, "rotate", "switch")]
    problems = _problems(world, in_it, "rotated")
    if problems:
        first = next(one for one in in_it if one.id in problems)
        again = _try_again(world, operation, known, problems[first.id])
        if again is not None:
            return again
    missed |= {host_name(one): problems[one.id].code for one in in_it if one.id in problems}
    moments = {host_name(one): _moment(world, one) for one in in_it if one.id not in problems}
    result: Detail = {**limits.sampled("rotated", moments), **limits.sampled("missed", missed)}
    if not missed:
        return _end(world, operation, "done", result=result)
    if controller.id in problems:
        error = AdapterError(
            "rotation_unfinished",
            f"the controller did not confirm the new munge key ({problems[controller.id].code}): look at it, then run a"
            " deploy play for the instance, which brings every host the key that is right now",
        )
        return _end(world, operation, "failed", error, result)
    error = AdapterError(
        "rotation_partly",
        f"the cluster has a new munge key, but not on {limits.named([f'{name} ({missed[name]})' for name in missed])}:"
        " they take no job until a deploy play brings it to them",
    )
    return _end(world, operation, "failed", error, result)


def _drop(world: World, operation: Operation | None, known: Detail, members: Sequence[Member]) -> list[Step]:
    controller = members[0]
    if not world.did("rotate", controller):
        why = "the staged munge key is taken away again; the old one was never changed"
        return [_play(why, members, "rotate", "drop")]
    return _say(world, operation, verdict=str(known.get("verdict_then") or "failed"), next_attempt_at=None)


def _play(why: str, members: Sequence[Member], act: Literal["stage", "rotate"], step: str) -> Play:
    acts: frozenset[Act] = frozenset({(act, members[0].id)})
    return Play(why, "rotate", tuple(members), acts, terms={"rotation_step": step})


def _problems(world: World, members: Sequence[Member], phase: str) -> Mapping[UUID, AdapterError]:
    """Who did not come out of the play as it should. A host of which nothing was heard is none that is well."""
    found = {}
    for member in members:
        outcome = world.outcomes.get(member.id, Outcome())
        if outcome.error or outcome.phase != phase:
            found[member.id] = outcome.error or UNKNOWN
    return found


def _has_jobs(world: World, member: Member) -> bool:
    """Whether leaving this host out could cost a job: it is silent to us, but serves as far as Slurm knows."""
    nodes = world.snapshot.nodes if world.snapshot else None
    if nodes is None:
        return True
    node = nodes.get(node_name(member) or "")
    return node is not None and bool(node.jobs) and node.state in SERVING_STATES and "NOT_RESPONDING" not in node.flags


def _try_again(world: World, operation: Operation | None, known: Detail, error: AdapterError) -> list[Step] | None:
    """A later tick tries again, a bounded number of times; None when that is used up."""
    counted = known.get("tried_at") == stamp(world.now)
    tried = int(known.get("attempt") or 0) + (0 if counted else 1)
    if tried >= world.policy.max_attempts:
        return None
    due = world.now + timedelta(seconds=world.policy.retry_seconds * 2 ** (tried - 1))
    said = _say(
        world,
        operation,
        attempt=tried,
        tried_at=stamp(world.now),
        next_attempt_at=stamp(due),
        waits_for=f"{error.host or 'a host'}: {error.code}",
    )
    return said or [Wait(f"{error.code}: try {tried} of {world.policy.max_attempts}", "rotate_credentials")]


def _moment(world: World, member: Member) -> object:
    return world.outcomes.get(member.id, Outcome()).detail.get("switched_at")


def _told(error: AdapterError) -> Detail:
    return {"code": error.code, "message": error.message}


def _say(world: World, operation: Operation | None, **more: object) -> list[Step]:
    """The note alone: what is said of the cluster stands until its next look, for the cluster serves all the while."""
    reasons = (world.instance.status_detail or {}).get("reasons") or []
    health = next((one for one in Health if one == world.instance.health), Health.UNKNOWN)
    quiet = world.later(snapshot=None)
    return queue.say(quiet, operation, health=health, reasons=reasons, **more)  # type: ignore[arg-type]


def _end(
    world: World,
    operation: Operation | None,
    verdict: str,
    error: AdapterError | None = None,
    result: Detail | None = None,
) -> list[Step]:
    """The verdict first: whoever is killed after it finds in the note how the operation ends."""
    told = {"error": _told(error)} if error else {}
    return _say(world, operation, verdict=verdict, result=result or {}, next_attempt_at=None, **told)


def _finish(operation: Operation, known: Detail) -> Step:
    result = known.get("result") or {}
    if known.get("verdict") == "done":
        return queue.succeed(operation, "every host has the new munge key", result)
    error = known.get("error") or {}
    code, message = str(error.get("code", "rotation_failed")), str(error.get("message", "it was given up"))
    return queue.give_up(operation, AdapterError(code, message), result)
