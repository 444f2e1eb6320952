"""How a table of rules is read: from top to bottom, until a rule has something to do."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, ParamSpec

from runner.model.plan import (
    Claim,
    Pin,
    Plan,
    Play,
    SetInstance,
    SetMember,
    SkipPlay,
    Step,
    Wait,
    for_operation,
)
from runner.model.platform import Member
from runner.slurm.world import World

P = ParamSpec("P")
# Steps that only wait or report: rules below may still have something to do. SetMember is not among them.
REPORTS_ONLY = (Wait, SetInstance)


@dataclass(frozen=True)
class Rule(Generic[P]):
    """One decision. The first rule with a step that does more than wait or report ends the plan."""

    name: str
    function: Callable[P, Sequence[Step] | None]
    when: Callable[P, bool] | None = None

    def steps(self, *args: P.args, **kwargs: P.kwargs) -> list[Step] | None:
        """Its steps, with its name; None if it does not apply."""
        if self.when and not self.when(*args, **kwargs):
            return None
        found = self.function(*args, **kwargs)
        return None if found is None else named(found, self.name)

    def ends(self, steps: Sequence[Step]) -> bool:
        return any(not isinstance(step, REPORTS_ONLY) for step in steps)


@dataclass(frozen=True)
class Guard(Rule[P]):
    """A rule that may stop everything below: it ends the plan unless its function returns None, also without a step."""

    def ends(self, steps: Sequence[Step]) -> bool:  # noqa: ARG002
        return True


@dataclass(frozen=True)
class Check:
    """What a planned play has to pass; the function returns the plan as it is, or steps that have to come first."""

    name: str
    function: Callable[[World, Plan], Plan]
    reason: str


# Rules that are about different members, and whose steps are therefore written together.
Together = tuple[Rule[P], ...]


def ask(rules: Iterable[Rule[P] | Together[P]], *args: P.args, **kwargs: P.kwargs) -> tuple[list[Step], bool]:
    """The steps of the rules down to the first that ends the plan, each with its rule's name; and whether one did."""
    steps: list[Step] = []
    for row in rules:
        ended = False
        for rule in row if isinstance(row, tuple) else (row,):
            found = rule.steps(*args, **kwargs)
            if found is not None:
                steps += found
                ended = ended or rule.ends(found)
        if ended:
            return steps, True
    return steps, False


def apply_checks(checks: Iterable[Check], world: World, plan: Plan) -> Plan:
    """The plan after all checks."""
    for check in checks:
        planned, found = plan.play, check.function(world, plan).steps
        made = [step if step.rule or planned is None else _for_play(planned, step) for step in found]
        plan = Plan(tuple(named(made, check.name)))
    return plan


def _for_play(play: Play, step: Step) -> Step:
    """A step that has to come before the play is for the operation that asks for the play."""
    match step:
        case Claim(subject=Member() as member) | SetMember(member=member):
            members: tuple[Member, ...] = (member,)
        case Pin(members=members) | SkipPlay(members=members):
            pass
        case _:
            members = play.members
    by_id = {one.id: one for member in members if (one := play.operations.get(member.id))}
    # One that is for several names none of them, as long as the play itself is not for one.
    operation = play.operation or (next(iter(by_id.values())) if len(by_id) == 1 else None)
    step = replace(step, play_rule=play.rule)
    return step if operation is None else next(iter(for_operation(operation, [step])))


def named(steps: Iterable[Step], rule: str) -> list[Step]:
    """The steps with the rule's name, where they do not have one already."""
    return [step if step.rule else replace(step, rule=rule) for step in steps]
