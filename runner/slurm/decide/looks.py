"""Looks at the controller that no operation requested."""

from runner.model.plan import Step
from runner.model.platform import Member
from runner.model.world import is_stale
from runner.slurm import detail
from runner.slurm.decide.instance import configure
from runner.slurm.decide.status import look
from runner.slurm.world import World


def after_change(world: World, controller: Member) -> list[Step]:
    if configure.needs_look(world, controller):
        return [look(controller, "the result of a change was not observed yet")]
    return []


def refresh(world: World, controller: Member) -> list[Step]:
    if world.played:
        return []
    if any(detail.was_given_back(member) for member in world.members):
        return [look(controller, "a resumed worker was not observed in service yet")]
    if is_stale(world.instance, world.now, world.policy):
        return [look(controller, "what is known of the cluster is old")]
    return []
