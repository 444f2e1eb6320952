"""rotate_credentials: every host of a running cluster gets a new munge key at one moment.

Two plays, and a note that has which of them is under way. In the phase `staging` the old key is valid and nothing has
changed; from `switching` on there is no way back: the next play promotes the new key and the hosts change to it, as
often as it takes. A staged key that is not used is removed again (`dropping`).
"""

from collections.abc import Mapping, Sequence
from typing import Literal
from uuid import UUID

from runner.intent import addresses, host_keys
from runner.intent.errors import IntentError
from runner.model import limits
from runner.model.names import host_name
from runner.model.plan import Act, AdapterError, Detail, Play, SetMember, Step, Wait
from runner.model.platform import IN_SERVICE, InstanceStatus, Member, Operation
from runner.model.records import Attempts
from runner.model.world import Outcome
from runner.slurm import notes
from runner.slurm.components import CONTROLLER, WORKER
from runner.slurm.controller import ready_controllers
from runner.slurm.decide.instance import queue, whole_cluster
from runner.slurm.decide.instance.queue import Verb
from runner.slurm.decide.instance.whole_cluster import label
from runner.slurm.lifecycle_notes import RotationNote, noted_error
from runner.slurm.node_names import node_name
from runner.slurm.notes import ControllerNotes, RotationLeftOut, SlurmNotes
from runner.slurm.readiness import is_responding
from runner.slurm.world import World

# Members that have the cluster's key and are not about to lose it. A worker that joins later gets the new one.
# No machine answers as this host, so it cannot be prepared. It alone does not keep the others from a new key.
ABSENT = frozenset(
    {
        "host_unreachable",
        *host_keys.CODES,
        "connection_invalid",
        addresses.FAMILY,
        "allocation_not_active",
        "allocation_not_found",
        "own_credential_unavailable",
    }
)
# Reported by hosts that were themselves ready: the cause is at another one.
HELD = frozenset({"rotation_held", "controller_silent"})
UNKNOWN = AdapterError("not_reached", "the play ended before it came to this host", "retryable")


def check(_world: World, operation: Operation) -> None:
    if operation.parameters:
        named = ", ".join(sorted(map(str, operation.parameters)))[:200]
        raise IntentError("parameters_invalid", f"rotate_credentials takes no parameters: remove {named}")


def carry_out(world: World, operation: Operation) -> list[Step]:
    note = queue.progress(world, operation, RotationNote)
    return _continue(world, operation, note or RotationNote.begin(operation, world.now), begun=note is not None)


def called_off(world: World, note: RotationNote) -> list[Step]:
    """Before the switch it is undone. After it there is no way back: it is completed."""
    if note.phase == "staging":
        return queue.write_note_alone(world, note.but(phase="dropping", result_once_dropped="cancelled"))
    return _continue(world, None, note)


VERB = Verb((InstanceStatus.RUNNING,), carry_out, check, called_off)


def _continue(world: World, operation: Operation | None, note: RotationNote, *, begun: bool = True) -> list[Step]:
    members = _bearers(world)
    if not members:
        error = AdapterError("controller_missing", "there is no controller in service whose key could be changed")
        return _end(world, operation, note, error)
    if not begun:
        return queue.write_note_alone(world, note)
    if note.phase == "dropping":
        return _drop(world, operation, note, members)
    later = note.attempts.not_due(world.now)
    if later:
        return [Wait(later, label(operation))]
    if note.phase == "staging":
        return _stage(world, note, members)
    return _switch(world, operation, note, members)


def _bearers(world: World) -> tuple[Member, ...]:
    """The controller first, then its workers; empty if no controller is in service."""
    first = ready_controllers(world.members)
    workers = [one for one in world.members if one.component_key == WORKER and one.status in IN_SERVICE]
    return (*first, *workers) if len(first) == 1 else ()


def _stage(world: World, note: RotationNote, members: Sequence[Member]) -> list[Step]:
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
        return _leave_out(world, note, silent, workers)
    first = next((one for one in standing if problems[one.id].code not in HELD), standing[0])
    error = problems[first.id]
    if all(problems[one.id].klass == "retryable" for one in standing):
        again = _try_again(world, note, error)
        if again is not None:
            return again
    why = " and still runs jobs" if first.id in busy else ""
    failure = AdapterError(
        "rotation_not_prepared",
        f"nothing was changed: {host_name(first)} cannot be prepared{why} ({error.code}: {error.message[:400]})",
    )
    dropped = note.but(phase="dropping", result_once_dropped="failed", error=noted_error(failure))
    return queue.write_note_alone(world, dropped)


def _leave_out(world: World, note: RotationNote, silent: Mapping[UUID, str], workers: Sequence[Member]) -> list[Step]:
    """Note on each silent worker that the switch goes without it, then that the switch begins.

    What decides is in the worker's own record: the instance's note has room for a sample only.
    """
    steps: list[Step] = []
    for worker in workers:
        code = silent.get(worker.id)
        mark = RotationLeftOut(operation_id=note.operation_id, code=code) if code else None
        if notes.of(worker).rotation_left_out != mark:
            changes = SlurmNotes(rotation_left_out=mark).changes
            steps.append(
                SetMember("the switch goes without it", worker, worker.status, changes, consumes_outcome=False)
            )
    if steps:
        return steps
    named = {host_name(one): silent[one.id] for one in workers if one.id in silent}
    sample = limits.sampled("left_out", named)
    return queue.write_note_alone(world, note.but(phase="switching", attempts=Attempts(), **sample))


def _left_out(note: RotationNote, member: Member) -> str | None:
    """Why this rotation continues without the worker."""
    mark = notes.of(member).rotation_left_out
    marked = mark.code if mark and mark.operation_id == note.operation_id else None
    return note.left_out.get(host_name(member)) or marked


def _switch(world: World, operation: Operation | None, note: RotationNote, members: Sequence[Member]) -> list[Step]:
    controller = members[0]
    missed = {host_name(one): code for one in members[1:] if (code := _left_out(note, one))}
    taking_part = tuple(one for one in members if host_name(one) not in missed)
    if not world.did("rotate", controller):
        why = f"{len(taking_part)} host(s) change to the new munge key at one moment"
        return [_play(why, taking_part, "rotate", "switch")]
    problems = _problems(world, taking_part, "rotated")
    if problems:
        first = next(one for one in taking_part if one.id in problems)
        again = _try_again(world, note, problems[first.id])
        if again is not None:
            return again
    missed |= {host_name(one): problems[one.id].code for one in taking_part if one.id in problems}
    moments = {host_name(one): _moment(world, one) for one in taking_part if one.id not in problems}
    summary: Detail = {**limits.sampled("rotated", moments), **limits.sampled("missed", missed)}
    error = None
    if controller.id in problems:
        error = AdapterError(
            "rotation_unfinished",
            f"the controller did not confirm the new munge key ({problems[controller.id].code}): look at it, then run a"
            " deploy play for the instance, which gives every host the current key",
        )
    elif missed:
        error = AdapterError(
            "rotation_partly",
            "the cluster has a new munge key, but not on"
            f" {limits.named([f'{name} ({missed[name]})' for name in missed])}:"
            " these hosts take no job until a deploy play brings it to them",
        )
    changed = _changed(world, [one for one in taking_part if one.id not in problems])
    return _end(world, operation, note.but(summary=summary), error, changed)


def _drop(world: World, operation: Operation | None, note: RotationNote, members: Sequence[Member]) -> list[Step]:
    if not world.did("rotate", members[0]):
        why = "the staged munge key is removed again; the old one was never changed"
        return [_play(why, members, "rotate", "drop")]
    dropped = note.but(result=note.result_once_dropped, attempts=note.attempts.but(next_at=None))
    steps = queue.write_note_alone(world, dropped)
    return [*steps, *([queue.finish(operation, dropped, {})] if operation else [])]


def _play(why: str, members: Sequence[Member], act: Literal["stage", "rotate"], step: str) -> Play:
    acts: frozenset[Act] = frozenset({(act, members[0].id)})
    return Play(why, "rotate", tuple(members), acts, terms={"rotation_step": step})


def _problems(world: World, members: Sequence[Member], phase: str) -> Mapping[UUID, AdapterError]:
    """Members whose part of the play did not succeed. One without an outcome did not succeed either."""
    found = {}
    for member in members:
        outcome = world.outcomes.get(member.id, Outcome())
        if outcome.error or outcome.phase != phase:
            found[member.id] = outcome.error or UNKNOWN
    return found


def _has_jobs(world: World, member: Member) -> bool:
    """Whether leaving this host out could cost a job: it does not answer us, but Slurm shows it serving."""
    nodes = world.snapshot.nodes if world.snapshot else None
    if nodes is None:
        return True
    node = nodes.get(node_name(member) or "")
    return node is not None and bool(node.jobs) and is_responding(node)


def _try_again(world: World, note: RotationNote, error: AdapterError) -> list[Step] | None:
    """A later tick tries again, a bounded number of times; None if no further attempt is made."""
    failed = whole_cluster.after_failure(world, note, error)
    if failed is None:
        return None
    failed = failed.but(waiting=f"{error.host or 'a host'}: {error.code}")
    wait = Wait(f"{error.code}: attempt {failed.attempts.count} of {world.policy.max_attempts}", note.verb)
    return queue.write_note_alone(world, failed) or [wait]


def _moment(world: World, member: Member) -> object:
    return world.outcomes.get(member.id, Outcome()).detail.get("switched_at")


def _changed(world: World, members: Sequence[Member]) -> list[Step]:
    """Written before the rotation ends: when the key was changed, and which munge each host has now."""
    steps: list[Step] = []
    for member in members:
        reported = world.outcomes.get(member.id, Outcome()).detail
        changes: Detail = {key: reported[key] for key in ("munge_version", "munge_vulnerable") if key in reported}
        if member.component_key == CONTROLLER:
            # A key that left the cluster before is worth nothing now.
            changes |= ControllerNotes(munge_key_changed_at=world.now).changes
        if member.differs(changes):
            why = "it has the new munge key"
            steps.append(SetMember(why, member, member.status, changes, consumes_outcome=False))
    return steps


def _end(
    world: World,
    operation: Operation | None,
    note: RotationNote,
    error: AdapterError | None,
    changed: Sequence[Step] = (),
) -> list[Step]:
    """A rotation that was cancelled after its switch ends as it came out."""
    ended = whole_cluster.ended_note(note, error)
    steps = [*changed, *queue.write_note_alone(world, ended)]
    return [*steps, *([queue.finish(operation, ended, ended.operation_result())] if operation else [])]
