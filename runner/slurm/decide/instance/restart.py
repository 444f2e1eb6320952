"""Restart: slurmdbd, slurmctld and each slurmd, in one run; jobs continue, and it ends within a bound.

A daemon that started later than `after` in the note, by the controller's clock, has been restarted and is left alone,
so a killed runner's successor does only what is left. A worker that did not serve before is excused.
"""

from datetime import timedelta

from pydantic import BaseModel, ConfigDict, Field

from runner.model.instance_notes import Reason
from runner.model.member_notes import MemberNotes
from runner.model.names import host_name
from runner.model.plan import Act, AdapterError, Play, SetMember, Step, Wait, stamp
from runner.model.platform import IN_SERVICE, InstanceStatus, Member, Operation
from runner.slurm import notes
from runner.slurm.decide.instance import queue, whole_cluster
from runner.slurm.decide.instance.whole_cluster import controller_of, label, workers_of
from runner.slurm.decide.status import look
from runner.slurm.decide.workers.terms import read_as
from runner.slurm.lifecycle_notes import RestartNote, notable_partitions
from runner.slurm.readiness import controller_problem, worker_problem
from runner.slurm.snapshot import Snapshot
from runner.slurm.world import World

# status_detail is bounded, so its lists are.
NAMED, MESSAGE_CHARS = 20, 100
LISTED = 200


class Terms(BaseModel):
    """`parameters` of restart."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    patience_seconds: int = Field(300, ge=0, le=86_400)


def carry_out(world: World, operation: Operation) -> list[Step]:
    terms = read_as(Terms, operation.parameters)
    note, controller = queue.progress(world, operation, RestartNote), controller_of(world)
    if note is None or note.after is None:
        return _begin(world, operation, note, controller, terms)
    if not world.did("restart", controller):
        return [_play(world, note, controller)]
    return _judge(world, operation, note, controller, terms)


def called_off(world: World, note: RestartNote) -> list[Step]:
    """Nothing is undone. But partitions that a person had closed are closed again, and the cluster is looked at."""
    controller = controller_of(world)
    if not world.did("quiet", controller):
        acts: frozenset[Act] = frozenset({("quiet", controller.id)})
        return [Play("see what the restart left", "quiesce", (controller,), acts, {"partitions": _closed(note)})]
    return whole_cluster.end(world, None, note.but(phase="cancelled"))


def _begin(
    world: World, operation: Operation, note: RestartNote | None, controller: Member, terms: Terms
) -> list[Step]:
    """Which workers serve, what is closed, and the controller's time: noted before anything is restarted."""
    snapshot = world.snapshot
    if snapshot is None and not world.did("look", controller):
        return [look(controller, "which workers serve, and what time it is on the controller")]
    begun = note or RestartNote.begin(operation, world.now)
    if snapshot is None:
        outcome = world.outcomes.get(controller.id)
        why = outcome.error.message if outcome and outcome.error else "the controller could not be looked at"
        if note and _overdue(world, note, terms):
            error = AdapterError("restart_incomplete", f"nothing was restarted: {why}")
            return whole_cluster.end(world, operation, note.but(phase="failed"), error=error)
        steps = queue.write_note(world, begun.but(waiting=why), reasons=_reasons(why))
        return [*steps, Wait(why, label(operation))]
    excused = [one for one in _targets(world) if snapshot.nodes is not None and not _serves(snapshot, one)]
    marks = _mark_excused(world, operation, excused)
    if marks:
        return marks
    restarting = begun.but(
        phase="restarting",
        waiting=None,
        # Slurm and systemd count in whole seconds here and there: the next one begins after whatever runs now.
        after=snapshot.observed_at + timedelta(seconds=1),
        partitions=notable_partitions(snapshot.partitions or {}),
        excused=sorted(map(host_name, excused))[:NAMED],
        excused_count=len(excused),
    )
    return queue.write_note(world, restarting, reasons=_reasons("the daemons are restarting"))


def _mark_excused(world: World, operation: Operation, excused: list[Member]) -> list[Step]:
    """Write into the workers' own records who is excused: the instance's note has room for a sample only."""
    steps: list[Step] = []
    chosen = {member.id for member in excused}
    for member in _targets(world):
        mark = operation.id if member.id in chosen else None
        if member.notes.excused_by != mark:
            why = "it did not serve before the restart" if mark else "it serves before the restart"
            changes = MemberNotes(excused_by=mark).changes
            steps.append(SetMember(why, member, member.status, changes, consumes_outcome=False))
    return steps


def _is_excused(note: RestartNote, member: Member) -> bool:
    return member.notes.excused_by == note.operation_id or host_name(member) in note.excused


def _targets(world: World) -> list[Member]:
    return [member for member in workers_of(world) if member.status in IN_SERVICE]


def _serves(snapshot: Snapshot | None, member: Member) -> bool:
    """As before means: with the drain it had, if it had one."""
    return worker_problem(snapshot, notes.worker(member), may_be_held=True) is None


def _play(world: World, note: RestartNote, controller: Member) -> Play:
    targets = [one for one in _targets(world) if _is_left(note, one)]
    members = (controller, *targets)
    acts: frozenset[Act] = frozenset(("restart", one.id) for one in members)
    after = stamp(note.after or world.now)
    why = f"restart slurmdbd, slurmctld and slurmd on {len(targets)} worker(s), unless they are newer than {after}"
    return Play(why, "restart", members, acts, {"partitions": _closed(note)}, {"restart_since": after})


def _closed(note: RestartNote) -> dict[str, str]:
    """slurmctld opens what slurm.conf has open; what a person had closed is closed again."""
    return {name: state for name, state in sorted((note.partitions or {}).items()) if state != "UP"}


def _judge(world: World, operation: Operation, note: RestartNote, controller: Member, terms: Terms) -> list[Step]:
    """Done when the controller is healthy, and every worker that served has been restarted and serves again."""
    if not world.outcomes:
        return [Wait(whole_cluster.NOT_REACHED, label(operation))]
    missing, hopeless = _missing(world, note, controller)
    if not missing:
        return _end(world, operation, note)
    why = f"waits for {', '.join(sorted(missing)[:NAMED])}; the first: {missing[min(missing)]}"
    if not hopeless and not _overdue(world, note, terms):
        # While the controller is not back nothing is known of the workers; and too many to list are all.
        unknown = host_name(controller) in missing or len(missing) > LISTED
        waiting = note.but(left=note.left if unknown else sorted(missing), waiting=why)
        return [*queue.write_note(world, waiting, reasons=_reasons(why)), Wait(why, label(operation))]
    named = {name: missing[name][:MESSAGE_CHARS] for name in sorted(missing)[:NAMED]}
    message = (
        f"{len(missing)} did not come back in {terms.patience_seconds} s: " if not hopeless else "cannot come back: "
    )
    message += "; ".join(f"{name}: {why}" for name, why in named.items())
    return _end(world, operation, note.but(missing=named), AdapterError("restart_incomplete", message[:900]))


def _end(world: World, operation: Operation, note: RestartNote, error: AdapterError | None = None) -> list[Step]:
    phase = "failed" if error else "restarted"
    ended = note.but(phase=phase, left=[], not_restarted=_not_restarted(world, note))
    return whole_cluster.end(world, operation, ended, error=error)


def _missing(world: World, note: RestartNote, controller: Member) -> tuple[dict[str, str], bool]:
    """Which members are not seen back yet, with the reason, and whether no waiting can help."""
    snapshot = world.snapshot
    outcome, after = world.outcomes.get(controller.id), note.after
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
        if _is_excused(note, member):
            continue
        outcome = world.outcomes.get(member.id)
        trouble = worker_problem(snapshot, notes.worker(member), may_be_held=True)
        if outcome and outcome.error:
            found[host_name(member)] = outcome.error.message
            final.append(outcome.error.klass in ("intervention", "repairable"))
        elif trouble:
            found[host_name(member)] = trouble[1]
            final.append(False)
        elif outcome is None and _is_left(note, member):
            found[host_name(member)] = "the play did not reach it"
            final.append(False)
    return found, bool(final) and all(final)


def _is_left(note: RestartNote, member: Member) -> bool:
    return note.left is None or host_name(member) in note.left


def _not_restarted(world: World, note: RestartNote) -> dict[str, str]:
    """Workers that did not serve before and could not be restarted either: not waited for, but reported."""
    failed = {
        host_name(one): world.outcomes[one.id].error.message[:MESSAGE_CHARS]  # type: ignore[union-attr]
        for one in _targets(world)
        if _is_excused(note, one) and one.id in world.outcomes and world.outcomes[one.id].error
    }
    return dict(sorted(failed.items())[:NAMED])


def _overdue(world: World, note: RestartNote, terms: Terms) -> bool:
    return world.now >= note.started_at + timedelta(seconds=terms.patience_seconds)


def _reasons(why: str) -> list[Reason]:
    return [Reason(code="restarting", message=f"the cluster is being restarted: {why}")]


VERB = queue.Verb((InstanceStatus.RUNNING,), carry_out, whole_cluster.takes(Terms), called_off)
