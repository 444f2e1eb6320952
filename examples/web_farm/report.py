"""What is reported of a farm as a whole: status, health with reasons, the access bundle, and the event of a change."""

from collections.abc import Iterator

from examples.web_farm.members import address, balancer, webs
from examples.web_farm.reports import Answers
from runner.model import events
from runner.model.instance_notes import Reason, StatusDetail
from runner.model.plan import AdapterError, Announce, Detail, SetInstance, Step
from runner.model.platform import UNFINISHED, Health, InstanceStatus, Member, MemberStatus
from runner.model.world import World

CONTEXT = (
    "org_id",
    "project_id",
    "app_slug",
    "app_version",
    "operating_mode",
    "control_plane_scope",
    "runtime_backend",
)

SILENT = "web_not_answering"


def report(world: World, error: AdapterError | None = None, status: InstanceStatus | None = None) -> list[Step]:
    """The write, with the event before it if the status changes; nothing if all of it is on the platform already."""
    instance, lead = world.instance, balancer(world)
    reasons = [error.as_reason()] if error else [*_reasons(world, lead)]
    status = status or (InstanceStatus.FAILED if error else _status(world, lead))
    health = _health(status, reasons)
    seen = world.now if world.snapshot is not None else instance.notes.observed_at
    unsettled = any(one.status in (*UNFINISHED, MemberStatus.DELETING) for one in world.members)
    written = StatusDetail(observed_at=seen, reasons=reasons, unsettled=unsettled).changes
    kept = {key: value for key, value in (instance.status_detail or {}).items() if key not in written}
    access = _access(world, lead) if status == InstanceStatus.RUNNING else None
    detail = kept | written
    if (instance.status, instance.health, instance.status_detail) == (status, health, detail):
        return []
    step = SetInstance(f"it is {status}, {health}", status, health, detail, access)
    return [*_event(world, status), step]


def _status(world: World, lead: Member | None) -> InstanceStatus:
    now = InstanceStatus(world.instance.status)
    if lead is None or lead.status == MemberStatus.FAILED:
        return InstanceStatus.FAILED
    if lead.status == MemberStatus.REQUESTED:
        return now
    if lead.status in UNFINISHED or (now != InstanceStatus.RUNNING and webs(world, *UNFINISHED)):
        return InstanceStatus.DEPLOYING
    return InstanceStatus.RUNNING


def _reasons(world: World, lead: Member | None) -> Iterator[Reason]:
    for one in (*([lead] if lead else []), *webs(world)):
        noted = one.notes.last_adapter_error
        if noted and one.status != MemberStatus.DELETING:
            yield Reason(code=noted.code, message=noted.message, klass=noted.klass, member_id=str(one.id))
    answers: Answers | None = world.snapshot
    if answers is None:  # nothing was seen: what was seen last still holds
        yield from (one for one in world.instance.notes.reasons or [] if one.code == SILENT)
        return
    for one in webs(world, MemberStatus.READY):
        where = address(world, one)
        if answers.get(where or "") == 200:
            continue
        message = f"{where} does not answer the balancer on port 8080: see nginx on that host"
        yield Reason(code=SILENT, message=message, klass="intervention", member_id=str(one.id))


def _health(status: InstanceStatus, reasons: list[Reason]) -> Health:
    if status == InstanceStatus.FAILED:
        return Health.UNHEALTHY
    if status != InstanceStatus.RUNNING:
        return Health.PROGRESSING if status != InstanceStatus.DELETED else Health.UNKNOWN
    return Health.DEGRADED if reasons else Health.HEALTHY


def _access(world: World, lead: Member | None) -> Detail | None:
    where = address(world, lead) if lead else None
    return {"url": f"http://{where}:8080/"} if where else None


def _event(world: World, status: InstanceStatus) -> list[Step]:
    """An event is posted before the write that ends its reason; its key makes a repetition harmless."""
    instance, kind = world.instance, events.of_status(status)
    if instance.status == status or not events.is_announced(kind, world.policy.assumed_events):
        return []
    data = {name: str(value) for name in CONTEXT if (value := getattr(instance, name)) is not None}
    return [Announce(f"it is {status}", kind, str(instance.id), data | {"app_instance_id": str(instance.id)})]
