"""Simulates a tick: applies the decided steps to the world in memory, up to the first play."""

from runner.model.app import App
from runner.model.plan import MAX_ROUNDS, Plan, Step
from runner.model.world import World


def dry_run(world: World, app: App) -> list[Step]:
    """The steps of a tick that can be predicted without connecting to a host."""
    steps: list[Step] = []
    for _ in range(MAX_ROUNDS):
        plan: Plan = app.decide(world)
        steps += [step for step in plan.steps if step not in steps]
        if plan.idle or plan.play:
            return steps
        for step in plan.before_play:
            world = world.after(step)
    raise AssertionError("the plan does not settle: this is a bug in decide")
