"""Policy: from the world as observed to the steps that bring it closer to what was asked. Pure.

No I/O and no clock but world.now. It is called again after each round of writes and after the play, so it never
assumes that an earlier step worked: it looks at what is.
"""

from datetime import datetime, timedelta
from uuid import UUID

from runner import detail
from runner.inventory import (
    CONTROLLER,
    WORKER,
    IntentError,
    Placement,
    read_config,
    read_placement,
    read_target,
)
from runner.plan import (
    AdapterError,
    Announce,
    Claim,
    Detail,
    Finish,
    NewMember,
    Plan,
    Play,
    Refuse,
    SetInstance,
    SetMember,
    Step,
    Wait,
    stamp,
)
from runner.platform.models import AppInstance, Health, InstanceStatus, Member, MemberStatus, Operation, OperationStatus
from runner.slurm import controller_problem, worker_problem
from runner.world import Outcome, World, is_stale

GONE = (MemberStatus.DELETED, MemberStatus.FAILED)
UNFINISHED = (MemberStatus.REQUESTED, MemberStatus.RECONCILING)
COMING = ("requested", "provisioning")


def decide(world: World) -> Plan:
    """What to do next, in order; a Play, if any, comes last."""
    status = world.instance.status
    steps: list[Step] = [
        Refuse(
            f"{operation.operation} of an instance is not something this version does",
            operation,
            "operation_not_supported",
            of_instance=True,
        )
        for operation in world.instance_operations
    ]
    if not world.complete or status == InstanceStatus.DELETED:
        return Plan(tuple(steps))
    if status not in set(InstanceStatus):
        return Plan((*steps, Wait(f"status {status!r} is not one we know: not ours to touch", "instance")))
    if status in (InstanceStatus.STOPPED, InstanceStatus.DELETING):
        waits = (Wait(f"the instance is {status}", f"{op.operation} {str(op.id)[:8]}") for op in world.operations)
        return Plan((*steps, *waits))
    if status == InstanceStatus.FAILED:
        return Plan((*steps, *_end_all(world, "instance_failed", "the instance has failed: deploy a new one")))
    return Plan((*steps, *_cluster(world)))


def _cluster(world: World) -> list[Step]:
    """An instance that is to serve, or serves: its controller, then its operations, then itself."""
    try:
        placement = read_placement(world.instance)
        read_config(world.instance)
        controller = _controller(world, placement)
    except IntentError as error:
        return _instance_fails(world, AdapterError(error.code, error.message))
    if controller.status == MemberStatus.FAILED and world.instance.status != InstanceStatus.RUNNING:
        known = controller.adapter_detail.get("last_adapter_error") or {}
        message = str(known.get("message") or "the controller failed")
        return _instance_fails(world, AdapterError(str(known.get("code") or "controller_failed"), message))

    before, bootstrap = _bootstrap(world, controller)
    during, workers = _operations(world, placement, controller)
    steps = [*before, *during, *_orphans(world)]
    if any(isinstance(step, Claim | NewMember) for step in steps):
        return steps  # settle who does what first; the next look has the members
    if world.outcomes is None:
        steps += _play(world, controller, bootstrap, workers)
    if any(isinstance(step, Play | SetMember | Finish) for step in steps):
        return steps
    return steps + _instance(world, controller)


# -- the controller ------------------------------------------------------------------------------------------


def _controller(world: World, placement: Placement) -> Member:
    found = [m for m in world.members if m.component_key == CONTROLLER and m.status != MemberStatus.DELETED]
    if not found:
        raise IntentError("controller_missing", "the instance has no controller member: the deploy did not make one")
    if len(found) > 1:
        raise IntentError("two_controllers", f"the instance has {len(found)} controllers; exactly one is supported")
    if found[0].allocation_id != placement.controller_allocation_id:
        raise IntentError(
            "placement_invalid", "the controller member is not on the allocation that placement_intent names"
        )
    return found[0]


def _bootstrap(world: World, controller: Member) -> tuple[list[Step], bool]:
    """Steps for a controller that is not ready yet, and whether it is ours to bootstrap now."""
    if controller.status == MemberStatus.READY:
        return [], False
    if controller.status not in UNFINISHED:
        return [Wait(f"the controller is {controller.status}", _name(controller))], False
    outcome = (world.outcomes or {}).get(controller.id)
    if outcome:
        return _conclude(world, controller, outcome), False
    error, waiting = _allocation_problem(world, controller.allocation_id)
    if waiting:
        return [Wait(waiting, _name(controller))], False
    if error:
        return [_fail(world, controller, error)], False
    steps, ours = _take(world, controller, "the deploy asks for this controller")
    if ours and world.instance.status == InstanceStatus.REQUESTED:
        said = detail.of_instance(world.instance, None, world.members, [], world.now)
        steps += _set_instance(world, InstanceStatus.DEPLOYING, Health.PROGRESSING, said, None)
    return steps, ours


def _take(world: World, member: Member, why: str) -> tuple[list[Step], bool]:
    """Claim a member's bootstrap unless somebody else holds it or its next try is not due."""
    known = member.adapter_detail
    held = _held(world, known.get("claimed_by"), _time(known.get("lease_expires_at")))
    if held:
        return [Wait(held, _name(member))], False
    due = _time(known.get("next_attempt_at"))
    if due and due > world.now:
        return [Wait(f"the next try is at {stamp(due)}", _name(member))], False
    if world.outcomes is not None:
        return [Wait("the next tick goes on with it", _name(member))], False
    if known.get("claimed_by") != world.runner_id:
        return [Claim(why, member)], False
    return [], True


# -- member operations ---------------------------------------------------------------------------------------


def _operations(world: World, placement: Placement, controller: Member) -> tuple[list[Step], list[Member]]:
    """Steps for each open operation, and the workers that are to be in this tick's play."""
    steps: list[Step] = []
    to_play: list[Member] = []
    taken: set[UUID] = set()
    for operation in world.operations:
        label = f"{operation.operation} {str(operation.id)[:8]}"
        if operation.status not in (OperationStatus.ACCEPTED, OperationStatus.RUNNING):
            continue
        held = None
        if operation.status == OperationStatus.RUNNING:
            held = _held(world, operation.claimed_by, operation.lease_expires_at)
        if held:
            steps.append(Wait(held, label))
            continue
        refusal = _refusal(world, placement, operation, taken)
        if refusal:
            steps.append(Refuse(refusal[1], operation, refusal[0]))
            continue
        taken.update(operation.allocation_ids)
        if operation.status == OperationStatus.ACCEPTED or operation.claimed_by != world.runner_id:
            due = _next_try(world, operation)
            if due and due > world.now:
                steps.append(Wait(f"the next try is at {stamp(due)}", label))
            elif world.outcomes is not None:
                steps.append(Wait("the next tick takes it", label))
            else:
                steps.append(Claim(f"{len(operation.allocation_ids)} worker(s) to add", operation))
            continue
        own, ready_to_play = _add(world, operation, controller)
        steps += own
        to_play += ready_to_play
    return steps, to_play


def _refusal(world: World, placement: Placement, operation: Operation, taken: set[UUID]) -> tuple[str, str] | None:
    """Why an operation is not done at all (code, sentence); it touches nothing."""
    verb, key = operation.operation, operation.component_key
    if key == CONTROLLER and verb == "add":
        return "second_controller", "a cluster has one controller, made by the deploy; a second one cannot be added"
    if key == CONTROLLER:
        return "controller_not_supported", f"{verb} is for workers: the controller's life is the instance's"
    if key != WORKER:
        return "component_unknown", f"component {key!r} is not one of this app's (controller, worker)"
    if verb not in ("add", "drain", "remove", "replace"):
        return "operation_unknown", f"{verb!r} is not an operation of this app"
    if verb != "add":
        return "operation_not_supported", f"{verb} of a worker is not something this version does"
    if not operation.allocation_ids:
        return "no_allocations", "add names no allocation_ids: say which allocations become workers"
    if len(set(operation.allocation_ids)) != len(operation.allocation_ids):
        return "allocation_twice", "add names the same allocation twice"
    for allocation in operation.allocation_ids:
        if allocation == placement.controller_allocation_id and not placement.same_node:
            return "allocation_is_controller", f"allocation {allocation} is the controller's and placement is split"
        if allocation not in world.allocations:
            return "allocation_not_found", f"allocation {allocation} is not in this project"
        serving = _serving(world, allocation, operation)
        if serving or allocation in taken:
            who = _name(serving) if serving else "another operation's worker"
            return "allocation_in_use", f"allocation {allocation} already serves as {who}: remove that one first"
    return None


def _serving(world: World, allocation: UUID, operation: Operation) -> Member | None:
    return next(
        (
            member
            for member in world.members
            if member.component_key == WORKER
            and member.allocation_id == allocation
            and member.status not in GONE
            and member.adapter_detail.get("operation_id") != str(operation.id)
        ),
        None,
    )


def _add(world: World, operation: Operation, controller: Member) -> tuple[list[Step], list[Member]]:
    mine = {m.allocation_id: m for m in world.members if m.adapter_detail.get("operation_id") == str(operation.id)}
    missing = [allocation for allocation in operation.allocation_ids if allocation not in mine]
    if missing:
        return [NewMember("the operation asks for it", operation, WORKER, allocation) for allocation in missing], []
    steps: list[Step] = []
    to_play: list[Member] = []
    members = [mine[allocation] for allocation in operation.allocation_ids]
    for member in members:
        if member.status not in UNFINISHED:
            continue
        outcome = (world.outcomes or {}).get(member.id)
        error, waiting = _allocation_problem(world, member.allocation_id)
        if outcome:
            steps += _conclude(world, member, outcome)
        elif controller.status == MemberStatus.FAILED:
            steps.append(_fail(world, member, AdapterError("controller_failed", "there is no controller to join")))
        elif waiting:
            steps.append(Wait(waiting, _name(member)))
        elif error:
            steps.append(_fail(world, member, error))
        else:
            due = _time(member.adapter_detail.get("next_attempt_at"))
            if due and due > world.now:
                steps.append(Wait(f"the next try is at {stamp(due)}", _name(member)))
            else:
                to_play.append(member)
    if all(member.status not in UNFINISHED for member in members):
        steps.append(_finish(operation, members))
    return steps, to_play


def _orphans(world: World) -> list[Step]:
    """Workers half way there whose operation was cancelled: they end as what they are."""
    open_now = {str(operation.id) for operation in world.operations}
    steps: list[Step] = []
    for member in world.members:
        if member.component_key != WORKER or member.status not in UNFINISHED:
            continue
        if member.adapter_detail.get("operation_id") in open_now:
            continue
        outcome = (world.outcomes or {}).get(member.id)
        gone = AdapterError("operation_ended", "its operation was cancelled before it was ready: add it again")
        steps += _conclude(world, member, outcome) if outcome else [_fail(world, member, gone)]
    return steps


def _finish(operation: Operation, members: list[Member]) -> Finish:
    result: Detail = {"members": {}}
    failed = [member for member in members if member.status != MemberStatus.READY]
    for member in members:
        known = member.adapter_detail.get("last_adapter_error")
        result["members"][str(member.id)] = {
            "allocation_id": str(member.allocation_id),
            "status": member.status,
            "hostname": member.adapter_detail.get("worker_hostname"),
            "error": known if member in failed else None,
        }
    if not failed:
        return Finish("every worker is ready", operation, OperationStatus.SUCCEEDED, result)
    first = failed[0].adapter_detail.get("last_adapter_error") or {}
    why = f"{len(failed)} of {len(members)} workers failed; the first: {first.get('message', 'no reason known')}"
    code = str(first.get("code") or "worker_failed") if len(failed) == len(members) else "partly_failed"
    return Finish(why, operation, OperationStatus.FAILED, result, {"code": code, "message": why})


# -- what a play and its snapshot say ------------------------------------------------------------------------


def _conclude(world: World, member: Member, outcome: Outcome) -> list[Step]:
    """A member after its play: ready by the controller's word, or the reason why not."""
    known = {**detail.filled(member), **outcome.detail}
    if outcome.error:
        return [_fail(world, member, outcome.error, outcome)]
    snapshot = world.snapshot
    if member.component_key == CONTROLLER:
        problem = controller_problem(snapshot)
        seen = detail.of_controller(snapshot) if snapshot else {}
    else:
        hostname = known.get("worker_hostname")
        problem = worker_problem(snapshot, hostname, known)
        seen = detail.of_worker(snapshot, hostname) if snapshot else {}
    if problem:
        code, message = problem
        return [_fail(world, member, AdapterError(code, message, "retryable"), Outcome(outcome.phase, known | seen))]
    return [
        SetMember(
            "the controller shows it serving",
            member,
            MemberStatus.READY,
            {**outcome.detail, **seen, **_unclaimed(), "phase": "serving", "last_adapter_error": None},
        )
    ]


def _fail(world: World, member: Member, error: AdapterError, outcome: Outcome | None = None) -> SetMember:
    """Failed for good, or to be tried again later if the error's class allows it."""
    tried = int(member.adapter_detail.get("attempt") or 0) + (1 if outcome else 0)
    said = {**(outcome.detail if outcome else {}), **_unclaimed()}
    said |= {"attempt": tried, "last_adapter_error": error.as_detail(world.now)}
    if outcome and outcome.phase:
        said["phase"] = outcome.phase
    if outcome and error.klass == "retryable" and tried < world.policy.max_attempts:
        due = world.now + timedelta(seconds=world.policy.retry_seconds * 2 ** (tried - 1))
        said["next_attempt_at"] = stamp(due)
        return SetMember(
            f"{error.code}: try {tried} of {world.policy.max_attempts}", member, MemberStatus.RECONCILING, said
        )
    return SetMember(f"{error.code}: {error.message}", member, MemberStatus.FAILED, said)


def _unclaimed() -> Detail:
    return {"claimed_by": None, "lease_expires_at": None, "next_attempt_at": None}


def _allocation_problem(world: World, allocation_id: UUID | None) -> tuple[AdapterError | None, str | None]:
    """(error, None), (None, what it waits for), or (None, None) for an allocation one can work on."""
    allocation = world.allocations.get(allocation_id) if allocation_id else None
    if allocation is None:
        return AdapterError("allocation_not_found", f"allocation {allocation_id} is not in this project"), None
    if allocation.status in COMING:
        return None, f"allocation {allocation.id} is {allocation.status}"
    if allocation.status != "active":
        message = f"allocation {allocation.id} is {allocation.status}, not active: choose another one"
        return AdapterError("allocation_not_active", message), None
    try:
        read_target(allocation)
    except IntentError as problem:
        return AdapterError(problem.code, problem.message), None
    return None, None


# -- play and instance ---------------------------------------------------------------------------------------


def _play(world: World, controller: Member, bootstrap: bool, workers: list[Member]) -> list[Step]:
    if bootstrap:
        return [
            Play(f"controller first, then {len(workers)} worker(s) in the same run", "deploy", (controller, *workers))
        ]
    if controller.status != MemberStatus.READY:
        return [Wait("the controller is not ready", _name(member)) for member in workers]
    if workers:
        return [Play(f"{len(workers)} worker(s) join in one run", "add_worker", (controller, *workers))]
    if not world.operations and is_stale(world.instance, world.now, world.policy):
        return [Play("what is known of the cluster is old", "observe", (controller,))]
    return []


def _instance(world: World, controller: Member) -> list[Step]:
    """The instance's own status, when nothing more is to be done for its members now."""
    instance, snapshot = world.instance, world.snapshot
    refreshed = _refresh(world, controller) if world.outcomes is not None else []
    if refreshed:
        return refreshed
    unfinished = controller.status != MemberStatus.READY or world.operations
    if instance.status != InstanceStatus.RUNNING and unfinished:
        said = detail.of_instance(instance, snapshot, world.members, [], world.now)
        return _set_instance(world, InstanceStatus.DEPLOYING, Health.PROGRESSING, said, None)
    if snapshot is None and instance.status == InstanceStatus.RUNNING and world.outcomes is None:
        return []
    health, reasons = detail.health(snapshot, world.members)
    said = detail.of_instance(instance, snapshot, world.members, reasons, world.now)
    allocation = world.allocations[controller.allocation_id] if controller.allocation_id else None
    access = detail.access_notes(snapshot, read_target(allocation)) if snapshot and allocation else None
    if instance.status == InstanceStatus.RUNNING or snapshot:
        return _set_instance(world, InstanceStatus.RUNNING, health, said, access)
    # Everything ended in an earlier tick that died before saying so: look at the cluster, then say it.
    return [Play("the deploy is done but not yet reported", "observe", (controller,))] if world.outcomes is None else []


def _refresh(world: World, controller: Member) -> list[Step]:
    """After a look at the cluster: bring what members say of themselves up to date."""
    snapshot, steps = world.snapshot, list[Step]()
    error = (world.outcomes or {}).get(controller.id, Outcome()).error
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
        if member.status != MemberStatus.READY:
            continue
        name = member.adapter_detail.get("worker_hostname")
        seen = detail.of_controller(snapshot) if member is controller else detail.of_worker(snapshot, name)
        if any(member.adapter_detail.get(key) != value for key, value in seen.items()):
            steps.append(SetMember("as the controller shows it", member, member.status, seen))
    return steps


def _set_instance(
    world: World, status: InstanceStatus, health: Health, said: Detail, access: Detail | None
) -> list[Step]:
    instance = world.instance
    same = instance.status == status and instance.health == health
    if same and (instance.status_detail or {}) == said and (access is None or access == instance.access):
        return []
    steps: list[Step] = []
    if instance.status != status and status in (InstanceStatus.RUNNING, InstanceStatus.FAILED):
        steps.append(Announce(f"the instance is {status}", f"apps.instance.{status}", "deploy", _context(instance)))
    return [*steps, SetInstance(f"it is {status}, {health}", status, health, said, access)]


def _instance_fails(world: World, error: AdapterError) -> list[Step]:
    """The deploy cannot succeed: say so everywhere it is asked about, and leave nothing claimed."""
    if world.instance.status == InstanceStatus.RUNNING:
        return [Wait(f"{error.code}: {error.message}", "instance")]
    steps: list[Step] = [
        _fail(world, member, error)
        for member in world.members
        if member.component_key == CONTROLLER and member.status in UNFINISHED
    ]
    steps += _end_all(world, error.code, f"the deploy failed: {error.message}")
    said = {"reasons": [{"code": error.code, "message": error.message}]}
    return [*steps, *_set_instance(world, InstanceStatus.FAILED, Health.UNHEALTHY, said, None)]


def _end_all(world: World, code: str, message: str) -> list[Step]:
    steps: list[Step] = []
    for operation in world.operations:
        steps += [
            _fail(world, member, AdapterError(code, message))
            for member in world.members
            if member.adapter_detail.get("operation_id") == str(operation.id) and member.status in UNFINISHED
        ]
        steps.append(Refuse(message, operation, code))
    return steps


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


# -- small things --------------------------------------------------------------------------------------------


def _held(world: World, by: object, until: datetime | None) -> str | None:
    """Why it is not ours: another runner's lease still runs."""
    if by and by != world.runner_id and until and until > world.now:
        return f"runner {by} holds it until {stamp(until)}"
    return None


def _next_try(world: World, operation: Operation) -> datetime | None:
    """When the earliest unfinished member of an operation may be tried again; None: now."""
    due = [
        _time(member.adapter_detail.get("next_attempt_at"))
        for member in world.members
        if member.adapter_detail.get("operation_id") == str(operation.id) and member.status in UNFINISHED
    ]
    times = [time for time in due if time]
    return min(times) if times and len(times) == len(due) else None


def _time(value: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time and time.tzinfo else None


def _name(member: Member) -> str:
    return f"{member.component_key}-{member.id.hex[:8]}"
