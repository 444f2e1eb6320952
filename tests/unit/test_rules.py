"""The tables of decide: how they are read, in which order their guards stand, and the rule that each step names."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest

from runner.loop.dry_run import dry_run
from runner.model.plan import Claim, Play, SetInstance, SetMember, Step, Wait, operations_of, shown, stamp
from runner.model.platform import Operation, Resolution, Unreadable
from runner.model.world import World
from runner.slurm.app import SLURM
from runner.slurm.decide import BEFORE_A_PLAY, CLUSTER, INSTANCE, decide
from runner.slurm.decide.rules import Guard, Rule, ask
from tests.unit.lifecycle import serving
from tests.unit.worlds import NOW, add, allocation, controller, instance, keyless, settle, world

WAIT, OTHER = Wait("later", "x"), Wait("later still", "y")
WRITE = SetMember("it is so", controller(), "ready")
REPORT = SetInstance("it runs", "running", "healthy", {})


def rule_names() -> list[str]:
    cluster = [rule.name for row in CLUSTER for rule in (row if isinstance(row, tuple) else (row,))]
    return [*(rule.name for rule in INSTANCE), *cluster, *(check.name for check in BEFORE_A_PLAY)]


# Rules that act only for an open operation, and rules that act for none. The others act for both.
FOR_OPERATIONS = (
    "claim an instance operation",
    "carry out an instance operation",
    "wait for another runner's operation",
    "leave a stopped instance stopped",
    "carry out worker operations",
)
FOR_NONE = (
    "know the instance's status",
    "note hosts that changed their key",
    "note claims that cannot be read",
    "undo a cancelled operation",
    "end workers of cancelled operations",
    "make workers follow the controller",
    "observe the result of a change",
    "repair what has drifted",
    "refresh an old observation",
    "report the instance",
)


def assert_operations_are_named(start: World, steps: Iterable[Step]) -> None:
    """What an open operation asks for names it, and what none asks for names none."""
    requested = {one.id: one for one in (*start.operations, *start.instance_operations)}
    retried = any(one.operation == "retry" for one in start.instance_operations)
    for step in steps:
        named = operations_of(step)
        assert all(requested[one.id].correlation_id == one.correlation_id for one in named), step
        assert all(requested[one.id].operation == one.operation for one in named), "a stand-in must not be named"
        # A retry asks for whatever the deploy still needs, and a play of a cancelled drain is for no open operation.
        undoes = isinstance(step, Play) and step.playbook == "drain_worker"
        if step.rule in FOR_OPERATIONS and not undoes:
            assert named, step
        if step.rule in FOR_NONE and not retried:
            assert named == [], step
        match step:
            case Claim(subject=Operation(id=asked)):
                assert [one.id for one in named] == [asked]
            case Play(playbook="add_worker" | "deploy", rule="carry out worker operations" | "bring up the controller"):
                joining = {one.id for one in step.members if one.component_key == "worker"}
                assert joining <= set(step.operations), step


def rule(*steps: Step, name: str = "rule", **more: Any) -> Rule[[]]:
    return Rule(name, lambda: steps, **more)


def never() -> list[Step]:
    raise AssertionError("a rule below the last one was asked")


BELOW: Rule[[]] = Rule("below", never)


def test_the_first_rule_with_something_to_do_ends_the_plan() -> None:
    assert ask((rule(), rule(WRITE), BELOW)) == ([WRITE], True)


@pytest.mark.parametrize("step", [WAIT, REPORT])
def test_steps_that_only_report_add_up(step: Step) -> None:
    assert ask((rule(step), rule(OTHER), rule(WRITE), BELOW)) == ([step, OTHER, WRITE], True)
    assert ask((rule(step), rule(OTHER))) == ([step, OTHER], False)


@pytest.mark.parametrize("steps", [[], [WAIT]])
def test_a_guard_that_applies_stops_everything_below_even_without_a_step(steps: list[Step]) -> None:
    assert ask((Guard("guard", lambda: steps), BELOW)) == (steps, True)


def test_a_guard_that_does_not_apply_lets_the_rules_below_be_asked() -> None:
    assert ask((Guard("guard", lambda: None), rule(WRITE))) == ([WRITE], True)


def test_rules_in_brackets_are_all_asked_before_the_plan_ends() -> None:
    assert ask(((rule(WRITE), rule(WAIT)), BELOW)) == ([WRITE, WAIT], True)


def test_a_rule_is_asked_only_under_its_condition() -> None:
    assert ask((Rule("below", never, when=lambda: False), rule(WRITE, when=lambda: True))) == ([WRITE], True)


def test_a_step_keeps_the_name_of_the_first_rule_that_made_it() -> None:
    inner, _ = ask((rule(WRITE, name="inner"),))
    steps, _ = ask((rule(WAIT, name="first"), rule(*inner, name="outer")))
    assert [step.rule for step in steps] == ["first", "inner"]


def rules_of(**changes: Any) -> list[tuple[str, str]]:
    return [(type(step).__name__, step.rule) for step in decide(world(**changes)).steps]


def test_guards_come_before_everything_else() -> None:
    unread = (Unreadable("member", str(allocation(9).id), "no status"),)
    served = {"members": (controller(status="ready"), serving(2)), "operations": (add(3),)}
    odd = instance(status="transcended", operating_mode="quantum")
    foreign = instance(status="running", operating_mode="quantum")
    assert rules_of(instance=odd, unreadable=unread, complete=False, **served) == []
    assert rules_of(instance=odd, unreadable=unread, **served) == [("Wait", "know the instance's status")]
    assert rules_of(instance=foreign, unreadable=unread, **served) == [("Warn", "serve only our scope")]
    fresh = instance(status="running", health="healthy", status_detail={"observed_at": stamp(NOW)})
    assert {name for _, name in rules_of(instance=fresh, unreadable=unread, **served)} == {"read every record"}


def test_a_play_passes_policy_then_claims_then_host_keys() -> None:
    """Each check puts a step of its own in the place of the play until it is content."""
    start = world(allocations={allocation(1).id: keyless(1)}, packages=None)
    names = [check.name for check in BEFORE_A_PLAY]
    assert names == ["obey package policy", "claim what a play changes", "know every host by its key"]
    steps = [(shown(step)["step"], step.rule) for step in dry_run(start, SLURM)]
    assert ("ask policy for a package source", names[0]) in steps
    assert ("pin host keys", names[2]) in steps
    assert steps.index(("ask policy for a package source", names[0])) < steps.index(("pin host keys", names[2]))


def test_a_numbered_play_keeps_the_rule_that_planned_it() -> None:
    steps = dry_run(world(operations=(add(2),), packages=Resolution(decision="allow")), SLURM)
    assert isinstance(steps[-1], Play) and steps[-1].fences
    assert steps[-1].rule == "bring up the controller"


def test_a_claim_for_a_play_names_the_check_that_asks_for_it() -> None:
    status = {"observed_at": stamp(NOW), "reasons": []}
    broken = serving(2, adapter_detail={**serving(2).adapter_detail, "fence": 0})
    start = world(
        instance=instance(status="running", health="healthy", status_detail=status),
        members=(controller(status="ready"), broken),
        operations=(add(3),),
    )
    claims = {step.rule for step in dry_run(start, SLURM) if shown(step)["step"] in ("claim", "new fence")}
    assert claims == {"carry out worker operations", "claim what a play changes"}


def test_a_member_with_an_unknown_key_and_an_unreadable_claim_shows_the_claim() -> None:
    """Both are one field of the record: two rules that each write theirs would never come to an end."""
    broken = serving(2, adapter_detail={**serving(2).adapter_detail, "fence": [], "host_touched": True})
    start = world(
        instance=instance(status="running", health="healthy"),
        members=(controller(status="ready"), broken),
        allocations={allocation(1).id: allocation(1), allocation(2).id: keyless(2)},
    )
    now, _, _ = settle(start, decide)
    (member,) = [one for one in now.members if one.id == broken.id]
    assert member.notes.error_code == "fence_unreadable"


def test_one_run_for_several_operations_names_the_operation_of_each_member() -> None:
    first, second = add(2, correlation_id="corr-2"), add(3, 4, correlation_id="corr-3")
    start = world(
        instance=instance(status="running"), members=(controller(status="ready"),), operations=(first, second)
    )
    now, _, play = settle(start, decide)
    assert play is not None and play.playbook == "add_worker"
    asked = {one.allocation_id: play.operations[one.id].correlation_id for one in play.members[1:]}
    assert asked == {allocation(2).id: "corr-2", allocation(3).id: "corr-3", allocation(4).id: "corr-3"}
    assert [one.id for one in operations_of(play)] == [first.id, second.id]
    assert shown(play)["operation"] == f"{first.label}, {second.label}"
    assert now.members


def test_a_drain_of_two_operations_names_both_though_only_the_controller_is_played() -> None:
    workers = [serving(n, id=UUID(int=n << 120)) for n in (2, 3)]
    drains = [add(operation="drain", allocation_ids=[], member_ids=[one.id]) for one in workers]
    start = world(
        instance=instance(status="running"),
        members=(controller(status="ready"), *workers),
        operations=tuple(drains),
    )
    _, _, play = settle(start, decide)
    assert play is not None and play.playbook == "drain_worker"
    assert {key: one.id for key, one in play.operations.items()} == {
        worker.id: drain.id for worker, drain in zip(workers, drains, strict=True)
    }


def test_all_that_an_instance_operation_asks_for_names_it() -> None:
    stop = Operation(id=UUID(int=88), operation="stop", status="accepted", correlation_id="c-8", of_instance=True)
    later = add(3)
    start = world(
        instance=instance(status="running", health="healthy"),
        members=(controller(status="ready"), serving(2)),
        operations=(later,),
        instance_operations=(stop,),
    )
    _, steps, play = settle(start, decide)
    assert play is not None and operations_of(play) == [play.operation]
    assert {one.id for step in steps for one in operations_of(step)} == {stop.id, later.id}
    assert all(operations_of(step) for step in steps)
    waiting = [one for step in steps if isinstance(step, Wait) for one in operations_of(step)]
    assert {one.id for one in waiting} == {later.id}


def test_steps_that_come_before_a_play_name_the_operation_of_their_member() -> None:
    first, second = add(2, correlation_id="corr-2"), add(3, correlation_id="corr-3")
    start = world(
        instance=instance(status="running"),
        members=(controller(status="ready", adapter_detail={"fence": 4}),),
        operations=(first, second),
        allocations={allocation(n).id: keyless(n) if n == 3 else allocation(n) for n in (1, 2, 3)},
        packages=None,
    )
    named = {shown(step)["step"]: operations_of(step) for step in dry_run(start, SLURM)}
    assert named["ask policy for a package source"] == [], "it is asked for both of them"
    assert [one.id for one in named["pin host keys"]] == [second.id]


def test_a_look_and_a_report_name_no_operation() -> None:
    start = world(instance=instance(status="running", health="healthy"), members=(controller(status="ready"),))
    _, steps, play = settle(start, decide)
    assert play is not None and play.playbook == "observe"
    assert [operations_of(step) for step in steps] == [[]] * len(steps)
