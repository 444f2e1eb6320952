"""Which events the steps of a plan put on the instance's timeline.

Each event comes directly before the step that reports the same fact to the platform. A runner that is killed between
the two leaves the record as it was, so the next tick plans both again, under the same key; once the step is written,
the event is not planned any more. So every event is posted, and once, without a note of its own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from runner.model import events
from runner.model.plan import Announce, Detail, Finish, Refuse, SetInstance, SetMember, Step
from runner.model.platform import AppInstance, Health, InstanceStatus, Operation, OperationStatus
from runner.model.times import stamp
from runner.slurm import notes
from runner.slurm.components import CONTROLLER
from runner.slurm.decide.repair import MENDED
from runner.slurm.notes import ControllerNotes, InstanceNotes
from runner.slurm.world import World

# What an operation that succeeded has done, where the instance's status does not show it.
OF_VERB = {
    "restart": events.RUNNING,
    "upgrade": events.UPGRADED,
    "rollback": events.UPGRADED,
    "rotate_credentials": events.CHANGED,
}
# How many codes an event of a cluster that is healthy again names.
REASONS = 10
# The cause of what a deploy does: an instance is deployed once, and every retry has a note.
DEPLOY = "deploy"
CONTEXT = (
    *("org_id", "project_id", "owner_project_id", "app_slug", "app_version"),
    *("operating_mode", "control_plane_scope", "runtime_backend"),
)


def announce(world: World, steps: Iterable[Step]) -> list[Step]:
    """The steps, each with its events before it, as far as their types are announced."""
    found: list[Step] = []
    for step in steps:
        for event in _of_step(world, step):
            if events.is_announced(event.kind, world.policy.assumed_events):
                found.append(replace(event, rule=step.rule, operation=step.operation))
        found.append(step)
        if isinstance(step, SetInstance):
            world = world.after(step)
    return found


def _of_step(world: World, step: Step) -> Iterator[Announce]:
    match step:
        case SetInstance():
            yield from _of_report(world, step)
        case SetMember():
            yield from _of_configuration(world, step)
        case Finish(operation=operation, status=OperationStatus.SUCCEEDED) if operation.operation in OF_VERB:
            more = {key: str(step.result[key]) for key in ("from", "to") if step.result.get(key)}
            yield _event(world, step, OF_VERB[operation.operation], str(operation.id), more)
        case Finish(operation=operation, status=OperationStatus.FAILED, error=error):
            yield _failed(world, step, operation, str((error or {}).get("code")))
        case Refuse(operation=operation, code=code):
            yield _failed(world, step, operation, code)


def _of_report(world: World, step: SetInstance) -> Iterator[Announce]:
    """The instance's status has changed, or its health is good again."""
    instance, written = world.instance, InstanceNotes.read(step.detail)
    if instance.status != step.status:
        more: Detail = {"health": str(step.health)}
        if step.status == InstanceStatus.FAILED and written.reasons:
            more["error_code"] = written.reasons[0].code
        yield _event(world, step, events.of_status(step.status), _cause(instance, step.operation), more)
    if step.status == InstanceStatus.RUNNING and step.health == Health.HEALTHY and (healed := _healed(world)):
        since, codes = healed
        more = {"since": stamp(since), "reason_codes": codes[:REASONS]}
        yield _event(world, step, events.HEALED, f"healed/{stamp(since)}", more)


def _healed(world: World) -> tuple[datetime, list[str]] | None:
    """Since when a cluster was not healthy that is now, and what was wrong; also if one tick saw and repaired it."""
    reported = notes.instance(world.instance)
    if reported.not_healthy_since:
        return reported.not_healthy_since, [one.code for one in reported.reasons or []]
    repairs = [one for member in world.members if (one := notes.of(member).repair) and one.outcome == MENDED]
    new = [one for one in repairs if one.last_at and reported.observed_at and one.last_at > reported.observed_at]
    if not new:
        return None
    codes = sorted({str(one.last_error) for one in new})
    return max(one.last_at for one in new if one.last_at), codes


def _of_configuration(world: World, step: SetMember) -> Iterator[Announce]:
    """The cluster serves with another configuration than before."""
    if step.member.component_key != CONTROLLER:
        return
    before, after = notes.controller(step.member), ControllerNotes.read(step.detail).applied_config
    if before.applied_config is None or after in (None, before.applied_config):
        return
    # The same configuration may come again: when its trial began, or the operation, tells the two apart.
    begun = before.change.begun_at if before.change else None
    which = stamp(begun) if begun else step.operation.id if step.operation else ""
    cause = f"{before.applied_config}/{after}/{which}"
    yield _event(world, step, events.CHANGED, cause, {"config_from": before.applied_config, "config_to": after})


def _failed(world: World, step: Step, operation: Operation, code: str) -> Announce:
    asked = replace(step, operation=operation)
    return _event(world, asked, events.OPERATION_FAILED, str(operation.id), {"error_code": code})


def _event(world: World, step: Step, kind: str, cause: str, more: Detail) -> Announce:
    data = _context(world.instance) | _request(step.operation) | _versions(world, step) | more
    return Announce(f"{kind.removeprefix(events.PREFIX)}: {step.why}", kind, cause, data)


def _cause(instance: AppInstance, operation: Operation | None) -> str:
    """What tells an event from the last one of its type: a status may be reached again, by another request."""
    if operation:
        return str(operation.id)
    # A start that was cancelled is completed without its operation, and a deploy goes on after its retry ended.
    note = instance.notes.operation
    return str(note.operation_id) if note else DEPLOY


def _context(instance: AppInstance) -> Detail:
    fields = {name: str(value) for name in CONTEXT if (value := getattr(instance, name)) is not None}
    return {"app_instance_id": str(instance.id)} | fields


def _request(operation: Operation | None) -> Detail:
    return {"operation_id": str(operation.id), "verb": operation.operation} if operation else {}


def _versions(world: World, step: Step) -> Detail:
    """The versions as the step reports them, or as they were reported last."""
    reported = InstanceNotes.read(step.detail).versions if isinstance(step, SetInstance) else None
    versions = reported or notes.instance(world.instance).versions
    return {"versions": versions.stored()} if versions else {}
