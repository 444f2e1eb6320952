"""Policy: from the world as observed to the steps that bring it closer to what was asked. Pure.

No I/O and no clock but world.now. It is called again after each round of writes and after the play, so it never
assumes that an earlier step worked: it looks at what is.
"""

from runner.intent.errors import IntentError
from runner.intent.placement import Placement, read_placement
from runner.model import progress
from runner.model.names import CONTROLLER, host_name
from runner.model.neighbours import is_undeployed
from runner.model.plan import Act, AdapterError, Claim, Finish, NewMember, Plan, Play, Refuse, SetMember, Step, Wait
from runner.model.platform import Health, InstanceStatus, Member, MemberStatus, Operation
from runner.model.world import is_stale
from runner.slurm import detail
from runner.slurm.cluster_config import read_config
from runner.slurm.decide import claims, repair
from runner.slurm.decide.guards import host_keys, packages, scope
from runner.slurm.decide.instance import configure, decommission, queue, retry, rotate, upgrade
from runner.slurm.decide.instance.queue import Verb
from runner.slurm.decide.instance.restart import RESTART
from runner.slurm.decide.instance.start import START
from runner.slurm.decide.instance.stop import STOP
from runner.slurm.decide.members import UNFINISHED, conclude, fail, host_problem, try_claim
from runner.slurm.decide.status import instance_fails, look, report_instance, set_instance
from runner.slurm.decide.workers.operations import end_all, orphans, worker_operations
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.world import World

__all__ = ["decide"]

INSTANCE_FAILED = "the deploy of the instance has failed: put right what its reasons name, then ask for `op retry`"


# What can be asked of a whole instance. Each verb is a module; see instance/queue.py.
VERBS: dict[str, Verb] = {
    "stop": STOP,
    "start": START,
    "restart": RESTART,
    "decommission": decommission.VERB,
    "upgrade": Verb((InstanceStatus.RUNNING,), upgrade.upgrade, upgrade.check_upgrade, upgrade.called_off),
    "rollback": Verb((InstanceStatus.RUNNING,), upgrade.rollback, upgrade.check_rollback, upgrade.called_off),
    "rotate_credentials": rotate.VERB,
    "retry": retry.verb(lambda world: _cluster(world)),
}


def decide(world: World) -> Plan:
    """What to do next, in order; a Play, if any, comes last."""
    status = world.instance.status
    if not world.complete or status == InstanceStatus.DELETED:
        return Plan()
    if status not in set(InstanceStatus):
        return Plan((Wait(f"status {status!r} is not one we know: not ours to touch", "instance"),))
    held_back = scope.scope(world)
    if held_back is None:
        held_back = scope.incomplete(world)
    if held_back is not None:
        return host_keys.require_known_keys(world, Plan(tuple(held_back)))
    noted = [*host_keys.note_key_changes(world), *claims.unreadable(world)]
    if noted:
        return Plan(tuple(noted))
    # Policy first: a host that is to get nothing is neither claimed nor looked at.
    return host_keys.require_known_keys(
        world, claims.secured(world, packages.apply_package_policy(world, _decide(world)))
    )


def _decide(world: World) -> Plan:
    status = world.instance.status
    if status == InstanceStatus.DELETING:
        return Plan(tuple(decommission.go_on(world)))
    undo = queue.called_off(world, VERBS)
    if undo:  # before anything else begins: its note, which says what is to be undone, would be overwritten
        return Plan(tuple(undo))
    steps, operation = queue.turn(world, VERBS)
    if operation:
        return Plan((*steps, *_instance_operation(world, operation)))
    if any(isinstance(step, Claim | Refuse) for step in steps):
        return Plan(tuple(steps))
    elsewhere = queue.kept_waiting(world)
    if elsewhere:
        return Plan((*steps, *queue.members_wait(world, elsewhere)))
    if status == InstanceStatus.STOPPED:
        waits = (Wait(f"the instance is {status}", f"{op.operation} {str(op.id)[:8]}") for op in world.operations)
        return Plan((*steps, *waits))
    if status == InstanceStatus.FAILED:
        return Plan((*steps, *end_all(world, "instance_failed", INSTANCE_FAILED)))
    return Plan((*steps, *_cluster(world)))


def _instance_operation(world: World, operation: Operation) -> list[Step]:
    """While one is under way, operations on members wait for it."""
    try:
        steps = VERBS[operation.operation].carry_out(world, operation)
    except IntentError as error:
        # What it asks for could be used when it was begun and cannot now: it ends, and what was begun is undone.
        return [Refuse(error.message, operation, error.code)]
    return [*queue.members_wait(world, operation), *steps]


def _cluster(world: World) -> list[Step]:
    """An instance that is to serve, or serves: its controller, then its operations, then itself."""
    try:
        placement = read_placement(world.instance)
        if world.instance.status != InstanceStatus.RUNNING:  # a cluster that runs has its configuration already
            read_config(world.instance)
        controller = _controller(world, placement)
    except IntentError as error:
        return instance_fails(world, AdapterError(error.code, error.message))
    if controller.status == MemberStatus.FAILED and world.instance.status != InstanceStatus.RUNNING:
        known = controller.adapter_detail.get("last_adapter_error") or {}
        message = str(known.get("message") or "the controller failed")
        return instance_fails(world, AdapterError(str(known.get("code") or "controller_failed"), message))

    before, bootstrap = _bootstrap(world, controller)
    if not bootstrap and world.instance.status == InstanceStatus.RUNNING:
        before = [*before, *configure.settle(world, controller), *configure.followed(world)]
    during, wants = worker_operations(world, placement, controller)
    after, also = orphans(world)
    wants.add(also)
    steps = [*before, *during, *after]
    if any(isinstance(step, Claim | NewMember | SetMember) for step in steps):
        return steps  # settle who does what first; the next look has the members
    steps += _play(world, controller, bootstrap, wants)
    if any(isinstance(step, Play | SetMember | Finish) for step in steps):
        return steps
    return steps + report_instance(world, controller)


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
    steps, ours = try_claim(world, controller, "the deploy asks for this controller")
    if ours and world.instance.status == InstanceStatus.REQUESTED:
        said = detail.of_instance(world.instance, None, world.members, [], world.now)
        steps += set_instance(world, InstanceStatus.DEPLOYING, Health.PROGRESSING, said, None)
    return steps, ours


def _play(world: World, controller: Member, bootstrap: bool, wants: WantedPlays) -> list[Step]:
    """The next Ansible run: one for all members that need the same, and nothing twice in a tick."""
    joining = (controller, *wants.joins)
    acts: frozenset[Act] = frozenset(("join", member.id) for member in joining)
    if bootstrap:
        why = f"controller first, then {len(wants.joins)} worker(s) in the same run"
        return [Play(why, "deploy", joining, acts)]
    if controller.status != MemberStatus.READY:
        return [Wait("the controller is not ready", host_name(member)) for member in wants.joins]
    change = configure.play(world, controller) if world.instance.status == InstanceStatus.RUNNING else []
    if change and isinstance(change[-1], Play):
        return change
    held = claims.not_now(world, controller)
    if held and wants.members:
        waits = [Wait(f"the controller: {held}", host_name(member)) for member in wants.members]
        return [*waits, *_unasked(world, controller, change)]
    if wants.joins:
        return [Play(f"{len(wants.joins)} worker(s) join in one run", "add_worker", joining, acts)]
    play = wants.drain_play(world, controller) or wants.remove_play(controller)
    return [play] if play else _unasked(world, controller, change)


def _unasked(world: World, controller: Member, change: list[Step]) -> list[Step]:
    """What no open operation asks for: workers follow, drift is put right, the cluster is looked at."""
    waits = [*change, *configure.follow(world, controller)]
    if waits and isinstance(waits[-1], Play):
        return waits
    if configure.needs_look(world, controller):
        return [*waits, look(controller, "what became of a change is not seen yet")]
    mending = repair.steps(world, controller)
    if mending or world.played:
        return [*waits, *mending]
    if any(detail.was_given_back(member) for member in world.members):
        return [*waits, look(controller, "a worker that was given back is not seen serving yet")]
    if is_stale(world.instance, world.now, world.policy):
        return [*waits, look(controller, "what is known of the cluster is old")]
    return waits
