"""What a tick would do, without doing it: the decided steps, imagined as carried out, up to the first play."""

from runner.model.app import App
from runner.model.plan import Plan, Step
from runner.model.world import World

MAX_ROUNDS = 200


def dry_run(world: World, app: App) -> list[Step]:
    """All steps of a tick that can be told without touching a host."""
    steps: list[Step] = []
    for _ in range(MAX_ROUNDS):
        plan: Plan = app.decide(world)
        steps += [step for step in plan.steps if step not in steps]
        if plan.idle or plan.play:
            return steps
        for step in plan.writes:
            world = world.after(step)
    raise AssertionError("the plan does not settle: this is a bug in decide")
