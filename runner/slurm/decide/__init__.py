"""Policy: from the world as observed to the steps that bring it closer to what is requested. Pure.

No I/O and no clock but world.now. It is called again after each round of writes and after the play, so it never
assumes that an earlier step worked: it looks at what is. The tables below are the order of all decisions: INSTANCE,
then CLUSTER unless a row of INSTANCE ended the plan, then BEFORE_A_PLAY for the play of either. At the end
runner/slurm/decide/events.py adds the events of the steps that are left.
runner/slurm/decide/rules.py says how they are read.
"""

from functools import partial

from runner.model.plan import Plan, Step
from runner.model.platform import Member
from runner.slurm.controller import find_controller
from runner.slurm.decide import attachments, claims, controller, events, looks, repair, status
from runner.slurm.decide.guards import entitlement, host_keys, instance_status, packages, scope
from runner.slurm.decide.instance import (
    configure,
    decommission,
    queue,
    restart,
    retry,
    rollback,
    rotate,
    start,
    stop,
    upgrade,
)
from runner.slurm.decide.instance.queue import Verb
from runner.slurm.decide.rules import Check, Guard, Rule, Together, apply_checks, ask
from runner.slurm.decide.workers import first, plays
from runner.slurm.world import World

__all__ = ["decide"]

# What can be requested of a whole instance. Each verb is a module; see instance/queue.py.
VERBS: dict[str, Verb] = {
    "stop": stop.VERB,
    "start": start.VERB,
    "restart": restart.VERB,
    "decommission": decommission.VERB,
    "upgrade": upgrade.VERB,
    "rollback": rollback.VERB,
    "rotate_credentials": rotate.VERB,
    # A retry deploys by the tables below, so `serve` is looked up when the verb is carried out.
    "retry": retry.verb(lambda world: serve(world)),
}

# The last rows of INSTANCE; `serve` asks them alone.
DEPLOY = (
    Guard("require a controller and a usable request", controller.require_usable_deploy),
    Guard("deploy only where policy allows", entitlement.require_allowed_deploy),
)

# A guard stops everything below it. Of the rules, the first that has something to do wins; waits and reports add up.
INSTANCE: tuple[Rule[[World]], ...] = (
    Guard("leave an instance without work alone", instance_status.require_complete_world),
    Guard("know the instance's status", instance_status.require_known_status),
    Guard("serve only our scope", scope.require_supported_scope),
    Guard("read every record", scope.require_readable_records),
    Rule("note hosts that changed their key", host_keys.note_key_changes),
    Rule("note claims that cannot be read", claims.note_unreadable),
    Guard("take the instance down", decommission.take_down),
    Guard("undo a cancelled operation", partial(queue.undo_cancelled, verbs=VERBS)),
    Rule("claim an instance operation", partial(queue.claim_next, verbs=VERBS)),
    Guard("carry out an instance operation", partial(queue.carry_out, verbs=VERBS)),
    Guard("wait for another runner's operation", queue.wait_for_another_runner),
    Rule("report projects of a cluster that does not serve", attachments.report_not_served),
    Guard("leave a stopped instance stopped", instance_status.keep_stopped),
    Guard("refuse operations on a failed instance", instance_status.refuse_on_failed),
    *DEPLOY,
)

# An instance that serves or is being deployed. The rules of the second row are asked together: they are about different
# members. They write records before and after a play; the rows below plan the play, some under the same name.
CLUSTER: tuple[Rule[[World, Member]] | Together[[World, Member]], ...] = (
    Guard("refuse workers where policy does not allow them", entitlement.refuse_workers),
    (
        Rule("bring up the controller", controller.prepare),
        Rule("apply a changed configuration", configure.settle, when=status.is_running),
        Rule("record which workers have the configuration", configure.followed, when=status.is_running),
        Rule("follow the attachments", attachments.settle, when=attachments.is_served),
        Rule("request the first workers", first.request),
        Rule("carry out worker operations", plays.settle),
        Rule("end workers of cancelled operations", plays.settle_orphans),
    ),
    Rule("bring up the controller", controller.deploy),
    Rule("apply a changed configuration", configure.play, when=status.is_running),
    Rule("follow the attachments", attachments.play, when=attachments.is_served),
    Rule("carry out worker operations", plays.play),
    Rule("make workers follow the controller", configure.follow, when=controller.is_ready),
    Rule("observe the result of a change", looks.after_change, when=controller.is_ready),
    Rule("repair what has drifted", repair.steps, when=controller.is_ready),
    Rule("refresh an old observation", looks.refresh, when=controller.is_ready),
    Rule("report the instance", attachments.report_instance),
)

# What every play has to pass, in this order.
BEFORE_A_PLAY: tuple[Check, ...] = (
    Check("obey package policy", packages.apply_package_policy, "a host that gets nothing is not claimed"),
    Check("claim what a play changes", claims.require_claims, "two runners do not change one host"),
    Check("know every host by its key", host_keys.require_known_keys, "no secret goes to an unknown machine"),
)


def decide(world: World) -> Plan:
    """What to do next, in order; a Play, if any, comes last."""
    steps, ended = ask(INSTANCE, world)
    if not ended:
        steps += _cluster(world)
    plan = apply_checks(BEFORE_A_PLAY, world, Plan(tuple(steps)))
    return Plan(tuple(events.announce(world, plan.steps)))


def serve(world: World) -> list[Step]:
    """The steps for an instance that serves or is being deployed, whatever its status is: `retry` deploys again."""
    steps, ended = ask(DEPLOY, world)
    return steps if ended else _cluster(world)


def _cluster(world: World) -> list[Step]:
    found = find_controller(world.members)
    return ask(CLUSTER, world, found)[0] if found else []
