"""Restart: slurmdbd, slurmctld and each slurmd, in one run; jobs run on, and it ends within a bound.

To the note it adds `after`, a moment by the controller's clock: a daemon that started after it has been restarted and
is left alone, so a killed runner's successor does only what is left. `left` are the workers that are not seen serving
again yet, as long as they are few enough to list. A worker that did not serve before is excused: its own record has
`excused_by`, the operation's id, and the note has a sample of them.
"""

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field

from runner.model.names import host_name
from runner.model.plan import Act, AdapterError, Detail, Play, SetMember, Step, Wait, stamp
from runner.model.platform import InstanceStatus, Member, MemberStatus, Operation
from runner.model.shapes import read_time
from runner.slurm.decide.instance import queue, whole_cluster
from runner.slurm.decide.instance.whole_cluster import controller_of, label, partitions, workers_of
from runner.slurm.decide.status import look
from runner.slurm.decide.workers import leave
from runner.slurm.readiness import controller_problem, worker_problem
from runner.slurm.snapshot import Snapshot
from runner.slurm.world import World

# status_detail is bounded, so its lists are.
NAMED, WORDS = 20, 100
LISTED = 200
SERVED = (MemberStatus.READY, MemberStatus.DRAINING)


class Terms(BaseModel):
    """`parameters` of restart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    patience_seconds: int = Field(300, ge=0, le=86_400)


def carry_out(world: World, operation: Operation) -> list[Step]:
    known = queue.noted(world, operation)
    if known.get("verdict"):
        return whole_cluster.ended(operation, known, _result(known))
    terms = leave.read_as(Terms, operation.parameters)
    controller = controller_of(world)
    if read_time(known.get("after")) is None:
        return _begin(world, operation, known, controller, terms)
    if not world.did("restart", controller):
        return [_play(world, known, controller)]
    return _judge(world, operation, known, controller, terms)


def called_off(world: World) -> list[Step]:
    """Nothing is undone: what was restarted runs. But what a person had closed is closed, and health is looked at."""
    known = queue.note(world)
    controller = controller_of(world)
    if not world.did("quiet", controller):
        acts: frozenset[Act] = frozenset({("quiet", controller.id)})
        return [Play("see what the restart left", "quiesce", (controller,), acts, {"partitions": _closed(known)})]
    return whole_cluster.end(world, None, {}, phase="called off")


def _begin(world: World, operation: Operation, known: Detail, controller: Member, terms: Terms) -> list[Step]:
    """Who serves, what is closed and what time it is there: noted before anything is restarted."""
    snapshot = world.snapshot
    if snapshot is None and not world.did("look", controller):
        return [look(controller, "who serves, and what time it is on the controller")]
    if snapshot is None:
        outcome = world.outcomes.get(controller.id)
        words = outcome.error.message if outcome and outcome.error else "the controller could not be looked at"
        if known and _overdue(world, known, terms):
            error = AdapterError("restart_incomplete", f"nothing was restarted: {words}")
            return whole_cluster.end(world, operation, {}, error=error, phase="failed")
        said = queue.say(world, operation, phase="looking", waiting=words, reasons=_why(words))
        return [*said, Wait(words, label(operation))]
    excused = [one for one in _targets(world) if snapshot.nodes is not None and not _serves(snapshot, one)]
    marks = _mark_excused(world, operation, excused)
    if marks:
        return marks
    told: Detail = {
        # Slurm and systemd count in whole seconds here and there: the next one begins after whatever runs now.
        "after": stamp(snapshot.observed_at + timedelta(seconds=1)),
        "partitions": whole_cluster.notable_partitions(snapshot.partitions or {}),
        "excused": sorted(map(host_name, excused))[:NAMED],
        "excused_count": len(excused),
    }
    return queue.say(world, operation, phase="restarting", waiting=None, reasons=_why("its daemons"), **told)


def _mark_excused(world: World, operation: Operation, excused: list[Member]) -> list[Step]:
    """Write into the workers' own records who is excused: the instance's note has room for a sample only."""
    steps: list[Step] = []
    chosen = {member.id for member in excused}
    for member in _targets(world):
        mark = str(operation.id) if member.id in chosen else None
        if member.adapter_detail.get("excused_by") != mark:
            why = "it did not serve before the restart" if mark else "it serves before the restart"
            steps.append(SetMember(why, member, member.status, {"excused_by": mark}, consumes_outcome=False))
    return steps


def _is_excused(known: Detail, member: Member) -> bool:
    """Releases before ledger format 2 named all of them in the instance's note."""
    marked = member.adapter_detail.get("excused_by")
    return (marked is not None and marked == known.get("operation_id")) or host_name(member) in _listed(known)


def _listed(known: Detail) -> list[str]:
    listed: list[str] = known.get("excused") or []
    return listed


def _targets(world: World) -> list[Member]:
    return [member for member in workers_of(world) if member.status in SERVED]


def _serves(snapshot: Snapshot | None, member: Member) -> bool:
    """As before means: with the drain it had, if it had one."""
    known = member.adapter_detail
    return worker_problem(snapshot, known.get("worker_hostname"), known, may_be_held=True) is None


def _play(world: World, known: Detail, controller: Member) -> Play:
    left = known.get("left")
    targets = [one for one in _targets(world) if left is None or host_name(one) in left]
    members = (controller, *targets)
    acts: frozenset[Act] = frozenset(("restart", one.id) for one in members)
    after = stamp(read_time(known.get("after")) or world.now)
    why = f"restart slurmdbd, slurmctld and slurmd on {len(targets)} worker(s), unless they are newer than {after}"
    return Play(why, "restart", members, acts, {"partitions": _closed(known)}, {"restart_since": after})


def _closed(known: Detail) -> dict[str, str]:
    """slurmctld opens what slurm.conf has open; what a person had closed is closed again."""
    return {name: state for name, state in sorted(partitions(known).items()) if state != "UP"}


def _judge(world: World, operation: Operation, known: Detail, controller: Member, terms: Terms) -> list[Step]:
    """Done when the controller is healthy and whoever served serves again, and has been restarted."""
    if not world.outcomes:
        return [Wait(whole_cluster.NOT_REACHED, label(operation))]
    missing, hopeless = _missing(world, known, controller)
    if not missing:
        others = _others(world, known)
        result = _result(known | others)
        return whole_cluster.end(world, operation, result, left=[], excused=[], phase="restarted", **others)
    words = f"waits for {', '.join(sorted(missing)[:NAMED])}; the first: {missing[min(missing)]}"
    # While the controller is not back nothing is known of the workers; and too many to list are all.
    everybody = host_name(controller) in missing or len(missing) > LISTED
    told: Detail = {"left": known.get("left") if everybody else sorted(missing), "waiting": words}
    if not hopeless and not _overdue(world, known, terms):
        return [*queue.say(world, operation, reasons=_why(words), **told), Wait(words, label(operation))]
    named = {name: missing[name][:WORDS] for name in sorted(missing)[:NAMED]}
    message = (
        f"{len(missing)} did not come back in {terms.patience_seconds} s: " if not hopeless else "cannot come back: "
    )
    message += "; ".join(f"{name}: {why}" for name, why in named.items())
    error = AdapterError("restart_incomplete", message[:900])
    lost: Detail = {"missing": named, **_others(world, known)}
    result = _result(known | lost)
    return whole_cluster.end(world, operation, result, error=error, left=[], excused=[], phase="failed", **lost)


def _missing(world: World, known: Detail, controller: Member) -> tuple[dict[str, str], bool]:
    """Whose return is not seen yet, with the reason, and whether no waiting can help."""
    snapshot = world.snapshot
    outcome, after = world.outcomes.get(controller.id), read_time(known.get("after"))
    problem = controller_problem(snapshot)
    started = snapshot.controller.started_at if snapshot else None
    name = host_name(controller)
    if outcome and outcome.error:
        return {name: outcome.error.message}, outcome.error.klass == "intervention"
    if problem:
        return {name: problem[1]}, False
    if started is None or after is None or started < after:
        return {name: "slurmctld has not been restarted yet"}, False
    found: dict[str, str] = {}
    final: list[bool] = []
    for member in _targets(world):
        if _is_excused(known, member):
            continue
        outcome = world.outcomes.get(member.id)
        trouble = worker_problem(
            snapshot, member.adapter_detail.get("worker_hostname"), member.adapter_detail, may_be_held=True
        )
        if outcome and outcome.error:
            found[host_name(member)] = outcome.error.message
            final.append(outcome.error.klass in ("intervention", "repairable"))
        elif trouble:
            found[host_name(member)] = trouble[1]
            final.append(False)
        elif outcome is None and _is_left(known, member):
            found[host_name(member)] = "the play did not get to it"
            final.append(False)
    return found, bool(final) and all(final)


def _is_left(known: Detail, member: Member) -> bool:
    left = known.get("left")
    return left is None or host_name(member) in left


def _others(world: World, known: Detail) -> Detail:
    """Workers that did not serve before and could not be restarted either: nobody waits for them, but it is said."""
    failed = {
        host_name(one): world.outcomes[one.id].error.message[:WORDS]  # type: ignore[union-attr]
        for one in _targets(world)
        if _is_excused(known, one) and one.id in world.outcomes and world.outcomes[one.id].error
    }
    return {"not_restarted": dict(sorted(failed.items())[:NAMED])} if failed else {}


def _overdue(world: World, known: Detail, terms: Terms) -> bool:
    since = read_time(known.get("since")) or world.now
    return world.now >= since + timedelta(seconds=terms.patience_seconds)


def _result(known: Detail) -> Detail:
    said = ("after", "excused", "excused_count", "missing", "not_restarted")
    return {key: known[key] for key in said if known.get(key)}


def _why(words: str) -> list[Detail]:
    return [{"code": "restarting", "message": f"the cluster is being restarted: {words}"}]


RESTART = queue.Verb((InstanceStatus.RUNNING,), carry_out, whole_cluster.takes(Terms), called_off)
