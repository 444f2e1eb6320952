"""The instance: what is said of it once nothing more is to be done for its members now."""

from datetime import timedelta

from runner.intent import host_keys
from runner.model import claims
from runner.model.names import CONTROLLER
from runner.model.plan import AdapterError, Announce, Detail, Play, SetInstance, SetMember, Step, Wait
from runner.model.platform import AppInstance, Health, InstanceStatus, Member, MemberStatus
from runner.model.shapes import read_time
from runner.model.world import Outcome
from runner.slurm import access_bundle, detail
from runner.slurm.decide.members import UNFINISHED, fail
from runner.slurm.decide.workers import leave
from runner.slurm.decide.workers.operations import end_all
from runner.slurm.health import health
from runner.slurm.readiness import controller_problem, worker_problem
from runner.slurm.world import World

LOOKED_AT = "last_runtime_observed_at"
# What the controller's health does not take back.
STANDING = (*host_keys.CODES, claims.UNREADABLE)
NEWS = timedelta(minutes=5)
ANNOUNCED = (InstanceStatus.RUNNING, InstanceStatus.FAILED, InstanceStatus.DELETING, InstanceStatus.DELETED)


def report_instance(world: World, controller: Member) -> list[Step]:
    """The instance's own status, when nothing more is to be done for its members now."""
    instance, snapshot = world.instance, world.snapshot
    refreshed = _refresh(world, controller) if world.played else []
    if refreshed:
        return refreshed
    unfinished = controller.status != MemberStatus.READY or world.operations
    if instance.status != InstanceStatus.RUNNING and unfinished:
        said = detail.of_instance(instance, snapshot, world.members, [], world.now)
        return set_instance(world, InstanceStatus.DEPLOYING, Health.PROGRESSING, said, None)
    if snapshot is None and instance.status == InstanceStatus.RUNNING and not _was_tried(world, controller):
        return []  # nobody looked at the controller: what was said of the instance stands
    word, reasons = health(snapshot, world.members, world.policy, world.unknown_allocations.values())
    said = detail.of_instance(instance, snapshot, world.members, reasons, world.now)
    bundle = (
        access_bundle.bundle(instance, snapshot, controller, world.members, world.allocations) if snapshot else None
    )
    if instance.status == InstanceStatus.RUNNING or snapshot:
        return set_instance(world, InstanceStatus.RUNNING, word, said, access_bundle.renewed(instance.access, bundle))
    # Everything ended in an earlier tick that died before saying so: look at the cluster, then say it.
    return [] if world.played else [look(controller, "the deploy is done but not yet reported")]


def look(controller: Member, why: str) -> Play:
    return Play(why, "observe", (controller,), frozenset({("look", controller.id)}))


def _was_tried(world: World, controller: Member) -> bool:
    """Whether this tick's play got to the controller. One whose workers all fell out at once ends before it does."""
    failed_before = bool(controller.adapter_detail.get("last_adapter_error"))
    return controller.id in world.outcomes or (bool(world.played) and failed_before)


def _refresh(world: World, controller: Member) -> list[Step]:
    """After a look at the cluster: bring what members say of themselves up to date."""
    snapshot, steps = world.snapshot, list[Step]()
    error = world.outcomes.get(controller.id, Outcome()).error
    if error and controller.status == MemberStatus.READY:
        known = (controller.adapter_detail.get("last_adapter_error") or {}).get("code")
        if known != error.code:
            steps.append(
                SetMember(
                    "it could not be looked at",
                    controller,
                    controller.status,
                    {"last_adapter_error": error.as_detail(world.now)},
                )
            )
    if snapshot is None:
        return steps
    for member in world.members:
        hostname = member.adapter_detail.get("worker_hostname")
        status = member.status
        if status == MemberStatus.DRAINING and leave.note(member).get("verdict"):
            # Drained, or given back: if it takes jobs again, whoever undrained it, then it serves.
            serves = worker_problem(snapshot, hostname, member.adapter_detail) is None
            status = MemberStatus.READY if serves else status
        elif status != MemberStatus.READY:
            continue
        seen = detail.of_controller(snapshot) if member is controller else detail.of_worker(snapshot, hostname)
        told = (member.adapter_detail.get("last_adapter_error") or {}).get("code")
        if member is controller and not controller_problem(snapshot) and told not in STANDING:
            seen["last_adapter_error"] = None
        if status != member.status:
            seen |= detail.back_in_service(member)
        if status != member.status or _differs(member, seen):
            steps.append(SetMember("as the controller shows it", member, status, seen))
    return steps


def _differs(member: Member, seen: Detail) -> bool:
    """Whether there is something new to write. That it was looked at again is news only now and then: the instance
    says when it was, and a write for each member at each look would be most of what we do."""
    known = member.adapter_detail
    if any(known.get(key) != value for key, value in seen.items() if key != LOOKED_AT):
        return True
    before, now = read_time(known.get(LOOKED_AT)), read_time(seen.get(LOOKED_AT))
    return bool(now and (before is None or now - before >= NEWS))


def set_instance(
    world: World, status: InstanceStatus, health: Health, said: Detail, bundle: Detail | None
) -> list[Step]:
    instance = world.instance
    same = instance.status == status and instance.health == health
    if same and (instance.status_detail or {}) == said and bundle is None:
        return []
    steps: list[Step] = []
    if instance.status != status and status in ANNOUNCED:
        steps.append(Announce(f"the instance is {status}", f"apps.instance.{status}", "deploy", _context(instance)))
    return [*steps, SetInstance(f"it is {status}, {health}", status, health, said, bundle)]


def instance_fails(world: World, error: AdapterError) -> list[Step]:
    """The deploy cannot succeed: say so everywhere it is asked about, and leave nothing claimed."""
    if world.instance.status == InstanceStatus.RUNNING:
        # What runs goes on running, but nothing more can be done for it: who asks is told so.
        return [Wait(f"{error.code}: {error.message}", "instance"), *end_all(world, error.code, error.message)]
    steps: list[Step] = [
        fail(world, member, error)
        for member in world.members
        if member.component_key == CONTROLLER and member.status in UNFINISHED
    ]
    steps += end_all(world, error.code, f"the deploy failed: {error.message}")
    said = detail.unknown(world.instance) | {"reasons": [{"code": error.code, "message": error.message}]}
    return [*steps, *set_instance(world, InstanceStatus.FAILED, Health.UNHEALTHY, said, None)]


def _context(instance: AppInstance) -> Detail:
    fields = (
        "org_id",
        "project_id",
        "app_slug",
        "app_version",
        "operating_mode",
        "control_plane_scope",
        "runtime_backend",
    )
    return {"app_instance_id": str(instance.id)} | {
        name: str(value) for name in fields if (value := getattr(instance, name)) is not None
    }
