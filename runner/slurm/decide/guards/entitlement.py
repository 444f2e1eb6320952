"""No machine becomes part of a cluster where entitlement or placement policy does not allow it.

Each machine is judged until its bootstrap has begun. A cluster that runs continues when an entitlement ends; its health
says that it gets no new machines. runner/intent/placement_policy.py has the rules.
"""

from uuid import UUID

from runner.intent import placement_policy
from runner.intent.errors import IntentError
from runner.model.names import host_name
from runner.model.neighbours import is_undeployed, unjoined
from runner.model.plan import AdapterError, Refuse, Step, Warn, for_operation
from runner.model.platform import OPEN, InstanceStatus, Member, Operation, OperationStatus
from runner.slurm.components import COMPONENTS, WORKER
from runner.slurm.controller import controllers
from runner.slurm.decide.members import fail, held_by_another, obstacle
from runner.slurm.decide.status import instance_fails
from runner.slurm.world import World


def require_allowed_deploy(world: World) -> list[Step] | None:
    """The deploy fails where its controller may not be."""
    undeployed = [one for one in controllers(world.members) if is_undeployed(one)]
    if not undeployed or world.instance.status == InstanceStatus.RUNNING:
        return None
    held = placement_policy.held(world.entitlements)
    if held:
        return [Warn(f"{held}: nothing begins", host_name(undeployed[0]))]
    problem = _problem(world, undeployed[0].allocation_id)
    return instance_fails(world, problem) if problem else None


def refuse_workers(world: World, _controller: Member) -> list[Step] | None:
    """Operations that name a machine that the cluster may not get end; none of their machines is touched."""
    if placement_policy.held(world.entitlements):
        return None  # the rules below let nothing begin
    steps: list[Step] = []
    others = set()
    for operation in world.operations:
        if operation.status == OperationStatus.RUNNING and held_by_another(
            world, operation.claimed_by, operation.lease_expires_at
        ):
            others.add(operation.id)
        elif operation.status in OPEN and operation.component_key == WORKER:
            steps += for_operation(operation, _refused(world, operation))
    steps += [step for one in world.members if one.notes.operation_id not in others for step in _failed(world, one)]
    return steps or None


def _refused(world: World, operation: Operation) -> list[Step]:
    for allocation_id in unjoined(operation, world.members, COMPONENTS):
        if problem := _problem(world, allocation_id, operation.source_project_id):
            return [Refuse(problem.message, operation, problem.code)]
    return []


def _failed(world: World, member: Member) -> list[Step]:
    """A worker that an operation has made and whose bootstrap has not begun: a tick ended in between."""
    if member.component_key != WORKER or not is_undeployed(member) or obstacle(world, member):
        return []
    problem = _problem(world, member.allocation_id, member.source_project_id)
    operation = next((one for one in world.operations if one.id == member.notes.operation_id), None)
    failed: list[Step] = [fail(world, member, problem)] if problem else []
    return for_operation(operation, failed) if operation else failed


def _problem(world: World, allocation_id: UUID | None, source_project: UUID | None = None) -> AdapterError | None:
    """Why the cluster may not get the machine. One that a project contributes needs that project's entitlement too."""
    instance, found = world.instance, world.allocations.get(allocation_id) if allocation_id else None
    if world.entitlements is None or found is None or world.is_not_found(found.id):
        return None  # nothing begins with it, or it is refused for that
    projects = [instance.project_id or instance.owner_project_id, *([source_project] if source_project else [])]
    try:
        placement_policy.check_entitled(world.entitlements, projects, instance.app_slug)
        placement_policy.check_allocation(world.entitlements, instance.effective_policy, found)
    except IntentError as problem:
        return AdapterError(problem.code, problem.message)
    return None
