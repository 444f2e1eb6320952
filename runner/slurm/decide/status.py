"""The instance's own status, reported once nothing more is to be done for its members now."""

from datetime import timedelta

from runner.intent import host_keys
from runner.model import claims
from runner.model.member_notes import MemberNotes
from runner.model.plan import AdapterError, Detail, Play, SetInstance, SetMember, Step, Wait
from runner.model.platform import UNFINISHED, Health, InstanceStatus, Member, MemberStatus
from runner.model.world import Outcome
from runner.slurm import access_bundle, detail, information, notes
from runner.slurm.controller import controllers
from runner.slurm.decide.members import fail, unreadable_note
from runner.slurm.decide.workers.operations import end_all
from runner.slurm.health import health
from runner.slurm.notes import InstanceNotes, SlurmNotes
from runner.slurm.readiness import controller_problem, worker_problem
from runner.slurm.world import World

LOOKED_AT = "last_runtime_observed_at"
# What the controller's health does not take back.
STANDING = (*host_keys.CODES, *claims.NOTE_CODES)
NEWS = timedelta(minutes=5)
NOT_HEALTHY = (Health.DEGRADED, Health.UNHEALTHY)


def is_running(world: World, _controller: Member) -> bool:
    return world.instance.status == InstanceStatus.RUNNING


def report_instance(world: World, controller: Member, more: Detail | None = None) -> list[Step]:
    """The instance's own status, when nothing more is to be done for its members now; `more` goes into the detail."""
    instance, snapshot = world.instance, world.snapshot
    refreshed = _refresh(world, controller) if world.played else []
    if refreshed:
        return refreshed
    unfinished = controller.status != MemberStatus.READY or world.operations
    if instance.status != InstanceStatus.RUNNING and unfinished:
        written = detail.of_instance(instance, snapshot, world.members, [], world.now)
        return set_instance(world, InstanceStatus.DEPLOYING, Health.PROGRESSING, written, None)
    if snapshot is None and instance.status == InstanceStatus.RUNNING and not _was_tried(world, controller):
        return []  # the controller was not looked at: the last report stays
    unread = (*world.unknown_allocations.values(), *world.unreadable_attachments)
    level, reasons = health(snapshot, world.members, world.policy, unread, information.findings(world))
    written = detail.of_instance(instance, snapshot, world.members, reasons, world.now) | (more or {})
    bundle = (
        access_bundle.bundle(instance, snapshot, controller, world.members, world.allocations) if snapshot else None
    )
    if instance.status == InstanceStatus.RUNNING or snapshot:
        renewed = access_bundle.renewed(instance.access, bundle)
        return set_instance(world, InstanceStatus.RUNNING, level, written, renewed)
    # An earlier tick finished everything and died before its report: look at the cluster, then report it.
    return [] if world.played else [look(controller, "the deploy is done but not yet reported")]


def look(controller: Member, why: str) -> Play:
    return Play(why, "observe", (controller,), frozenset({("look", controller.id)}))


def _was_tried(world: World, controller: Member) -> bool:
    """Whether this tick's play reached the controller. A play whose workers all fail at once ends before that."""
    failed_before = controller.notes.last_adapter_error is not None
    return controller.id in world.outcomes or (bool(world.played) and failed_before)


def _refresh(world: World, controller: Member) -> list[Step]:
    """After a look at the cluster: bring the members' records up to date."""
    snapshot, steps = world.snapshot, list[Step]()
    error = world.outcomes.get(controller.id, Outcome()).error
    if error and controller.status == MemberStatus.READY:
        code = controller.notes.error_code
        if code != error.code and code not in claims.NOTE_CODES:
            changes = MemberNotes(last_adapter_error=error.as_note(world.now)).changes
            steps.append(SetMember("it could not be looked at", controller, controller.status, changes))
    if snapshot is None:
        return steps
    for member in world.members:
        stored, status = notes.worker(member), member.status
        if status == MemberStatus.DRAINING and stored.leave and stored.leave.result:
            # Drained, or undrained by the adapter: if it takes jobs again, it serves.
            serves = worker_problem(snapshot, stored) is None
            status = MemberStatus.READY if serves else status
        elif status != MemberStatus.READY:
            continue
        is_controller = member is controller
        seen = detail.of_controller(snapshot) if is_controller else detail.of_worker(snapshot, stored.worker_hostname)
        if is_controller and not controller_problem(snapshot) and stored.error_code not in STANDING:
            seen |= MemberNotes(last_adapter_error=None).changes
        if status != member.status:
            seen |= detail.back_in_service(member)
        if status != member.status or _differs(member, seen):
            steps.append(SetMember("as the controller shows it", member, status, seen))
    return steps


def _differs(member: Member, seen: Detail) -> bool:
    """Whether there is something new to write. The time of the look alone is written only now and then: the instance
    has it too, and otherwise most writes would be for that."""
    if member.differs({key: value for key, value in seen.items() if key != LOOKED_AT}):
        return True
    before, now = notes.of(member).last_runtime_observed_at, SlurmNotes.read(seen).last_runtime_observed_at
    return bool(now and (before is None or now - before >= NEWS))


def set_instance(
    world: World, status: InstanceStatus, health: Health, written: Detail, bundle: Detail | None
) -> list[Step]:
    instance = world.instance
    written = _with_since(world, status, health, written)
    same = instance.status == status and instance.health == health
    if same and (instance.status_detail or {}) == written and bundle is None:
        return []
    return [SetInstance(f"it is {status}, {health}", status, health, written, bundle)]


def _with_since(world: World, status: InstanceStatus, health: Health, written: Detail) -> Detail:
    """The report with the time since when the cluster is not healthy; a health that is not known ends nothing."""
    since = None
    if status == InstanceStatus.RUNNING and health != Health.HEALTHY:
        since = notes.instance(world.instance).not_healthy_since
        since = since or (world.now if health in NOT_HEALTHY else None)
    rest = {name: value for name, value in written.items() if name not in InstanceNotes(not_healthy_since=None).changes}
    return rest | (InstanceNotes(not_healthy_since=since).changes if since else {})


def instance_fails(world: World, error: AdapterError) -> list[Step]:
    """The deploy cannot succeed: report it in every record that asks for it, and leave nothing claimed."""
    if world.instance.status == InstanceStatus.RUNNING:
        # What runs continues, but nothing more can be done for it: open operations end with the error.
        return [Wait(f"{error.code}: {error.message}", "instance"), *end_all(world, error.code, error.message)]
    steps: list[Step] = [
        fail(world, member, error)
        for member in controllers(world.members)
        if member.status in UNFINISHED and not unreadable_note(member)
    ]
    steps += end_all(world, error.code, f"the deploy failed: {error.message}")
    failed = detail.of_failed_instance(world.instance, [error.as_reason()])
    return [*steps, *set_instance(world, InstanceStatus.FAILED, Health.UNHEALTHY, failed, None)]
