"""The controller of a cluster that is being deployed: what it needs, and its bootstrap."""

from runner.intent.errors import IntentError
from runner.model import progress
from runner.model.names import host_name
from runner.model.neighbours import is_undeployed
from runner.model.plan import Act, AdapterError, Play, Step, Wait
from runner.model.platform import UNFINISHED, Health, InstanceStatus, Member, MemberStatus
from runner.slurm import detail
from runner.slurm.cluster_config import read_config
from runner.slurm.controller import controllers
from runner.slurm.decide.members import conclude, fail, host_problem, try_claim
from runner.slurm.decide.status import instance_fails, set_instance
from runner.slurm.decide.workers.plays import wanted_plays
from runner.slurm.placement import read_placement
from runner.slurm.world import World


def is_ready(_world: World, controller: Member) -> bool:
    return controller.status == MemberStatus.READY


def require_usable_deploy(world: World) -> list[Step] | None:
    """The deploy fails where its request cannot be used, or its controller has failed."""
    try:
        placement = read_placement(world.instance)
        if world.instance.status != InstanceStatus.RUNNING:  # a cluster that runs has its configuration already
            read_config(world.instance)
        found = controllers(world.members)
        if not found:
            message = "the instance has no controller member: the deploy did not make one"
            raise IntentError("controller_missing", message)
        if len(found) > 1:
            raise IntentError("two_controllers", f"the instance has {len(found)} controllers; exactly one is supported")
        if found[0].allocation_id != placement.controller_allocation_id:
            raise IntentError(
                "placement_invalid", "the controller member is not on the allocation that placement_intent names"
            )
    except IntentError as error:
        return instance_fails(world, AdapterError(error.code, error.message))
    if found[0].status == MemberStatus.FAILED and world.instance.status != InstanceStatus.RUNNING:
        last = found[0].notes.last_adapter_error
        message = (last.message if last else "") or "the controller failed"
        return instance_fails(world, AdapterError(last.code if last else "controller_failed", message))
    return None


def prepare(world: World, controller: Member) -> list[Step]:
    """What comes before and after the play of a controller that is not ready yet."""
    return _bootstrap(world, controller)[0]


def deploy(world: World, controller: Member) -> list[Step]:
    """The play that brings up the controller, and in the same run the workers that join."""
    if not _bootstrap(world, controller)[1]:
        return []
    plays = wanted_plays(world, controller)
    joins = plays.joins
    acts: frozenset[Act] = frozenset(("join", member.id) for member in (controller, *joins))
    why = f"controller first, then {len(joins)} worker(s) in the same run"
    return [Play(why, "deploy", (controller, *joins), acts, operations=plays.operations_of(joins))]


def _bootstrap(world: World, controller: Member) -> tuple[list[Step], bool]:
    """Steps for a controller that is not ready yet, and whether it is ours to bootstrap now."""
    if controller.status == MemberStatus.READY:
        return [], False
    if progress.is_stopped(controller):
        return [Wait("the controller is stopped", host_name(controller))], False
    if controller.status not in UNFINISHED:
        return [Wait(f"the controller is {controller.status}", host_name(controller))], False
    outcome = world.outcomes.get(controller.id)
    if outcome:
        return conclude(world, controller, outcome), False
    error, waiting = host_problem(world, controller)
    if waiting:
        return [Wait(waiting, host_name(controller))], False
    if error:
        return [fail(world, controller, error)], False
    if is_undeployed(controller) and world.neighbours:
        holder = world.neighbours.holders.get(controller.allocation_id) if controller.allocation_id else None
        if holder:
            message = f"allocation {controller.allocation_id} serves {holder}: remove it there first, or choose another"
            return [fail(world, controller, AdapterError("allocation_in_use", message))], False
        if world.neighbours.unreadable:
            why = f"{world.neighbours.unreadable} cannot be read, so it is not known whether the allocation is free"
            return [Wait(why, host_name(controller))], False
    steps, ours = try_claim(world, controller, "the deploy requests this controller")
    if ours and world.instance.status == InstanceStatus.REQUESTED:
        written = detail.of_instance(world.instance, None, world.members, [], world.now)
        steps += set_instance(world, InstanceStatus.DEPLOYING, Health.PROGRESSING, written, None)
    return steps, ours
