"""A play and what is claimed before it, step by step: whole plans, whole notes, and why nothing is begun."""

from dataclasses import replace
from typing import Any

import pytest

from runner.model.names import host_name
from runner.model.plan import Claim, Finish, Plan, Play, Refuse, SetInstance, SetMember, Step, Wait, stamp
from runner.model.platform import Member, Operation
from runner.slurm.decide.claims import changed_by, not_now, require_claims
from runner.slurm.decide.members import obstacle
from runner.slurm.world import World
from tests.unit.claimed_members import seen, wrk
from tests.unit.lifecycle import ask, ask_whole
from tests.unit.teardown import deleting
from tests.unit.worlds import ME, NOW, SOON, THEIR_CLAIM, THEY_HOLD_IT, claimed_by_another, claimed_by_us, controller

OURS: dict[str, Any] = {"claimed_by": ME, "lease_expires_at": stamp(SOON), "fence": 3}
ACTS = ("deploy", "stop", "restart", "upgrade", "rollback", "rotate", "decommission")


def ctl(**detail: Any) -> Member:
    return controller(status="ready", adapter_detail={"fence": 5} | detail)


def handed_back(operation: Operation) -> Operation:
    return claimed_by_us(operation).model_copy(update={"lease_expires_at": NOW})


def planned(world: World, play: Play, *others: Step) -> tuple[Step, ...]:
    return require_claims(world, Plan((*others, play))).steps


def test_a_plan_without_a_play_stays_as_it_is() -> None:
    plan = Plan((Wait("why", "x"), SetInstance("why", "running", "healthy", {})))
    assert require_claims(seen(ctl(**THEIR_CLAIM)), plan) is plan


@pytest.mark.parametrize("ends", [True, False])
def test_a_play_comes_after_the_end_of_an_operation(ends: bool) -> None:
    operation = claimed_by_us(ask("drain", wrk()))
    end: Step = Finish("over", operation, "succeeded", {}) if ends else Refuse("no", operation, "odd")
    first = Wait("why", "x")
    assert planned(seen(ctl()), Play("p", "deploy", (ctl(),)), first, end) == (first, end)


def test_a_play_waits_for_every_member_that_it_may_not_change() -> None:
    one, other, odd, free = ctl(**THEIR_CLAIM), wrk(2, **THEIR_CLAIM), wrk(3, fence="text"), wrk(4)
    now, first = seen(one, other, odd, free), Wait("why", "x")
    steps = planned(now, Play("p", "deploy", (one, other, odd, free)), first, SetMember("w", free, "ready"))
    unreadable = obstacle(now, odd)
    assert unreadable and steps == (
        first,
        Wait(THEY_HOLD_IT, host_name(one)),
        Wait(THEY_HOLD_IT, host_name(other)),
        Wait(unreadable, host_name(odd)),
    )


def test_a_play_through_the_controller_waits_for_its_holder_once() -> None:
    one, other = ctl(**THEIR_CLAIM), wrk()
    now = seen(one, other, operations=(claimed_by_us(ask("drain", other)),))
    assert planned(now, Play("p", "drain_worker", (one, other))) == (Wait(THEY_HOLD_IT, host_name(one)),)


def test_what_no_operation_asks_for_is_claimed_and_held() -> None:
    one, other, claimed = ctl(), wrk(2, status="failed"), wrk(3, **OURS)
    why = "playbooks/deploy.yml changes its host"
    play = Play("p", "deploy", (one, other, claimed))
    now = seen(one, other, claimed, fences={claimed.id: 3})
    wanted = (Claim(why, one, "ready", hold=True), Claim(why, other, "failed", hold=True))
    assert planned(now, play, Wait("why", "x")) == wanted
    stale = Claim(why, claimed, "ready", hold=True)
    assert planned(seen(one, other, claimed), play) == (*wanted, stale), "its number is of an earlier tick"
    numbered_only = now.later(fences={claimed.id: 3, one.id: 5, other.id: 2})
    assert planned(numbered_only, play) == wanted, "a number without a claim is not enough"


@pytest.mark.parametrize(
    ("operations", "whole", "hold"),
    [
        ((), (), (True, True)),
        (("ours",), (), (False, True)),
        (("theirs",), (), (True, True)),
        (("handed back",), (), (True, True)),
        ((), ("ours",), (False, False)),
        ((), ("handed back",), (True, True)),
    ],
)
def test_a_member_that_our_operation_concerns_only_needs_a_number(operations: Any, whole: Any, hold: Any) -> None:
    one, other = wrk(2), wrk(3)
    made = {"ours": claimed_by_us, "theirs": claimed_by_another, "handed back": handed_back}
    now = seen(
        one,
        other,
        operations=tuple(made[how](ask("drain", one)) for how in operations),
        instance_operations=tuple(made[how](ask_whole("restart")) for how in whole),
    )
    play, why = Play("p", "restart", (one, other)), "playbooks/restart.yml changes its host"
    claims = tuple(Claim(why, who, "ready", hold=how) for who, how in zip((one, other), hold, strict=True))
    assert planned(now, play) == claims
    numbered = planned(now.later(fences={one.id: 3, other.id: 4}), play)
    missing = tuple(claim for claim in claims if claim.hold)
    assert numbered == (missing or (replace(play, fences={one.id: 3, other.id: 4}),))


def test_an_accepted_operation_covers_no_member() -> None:
    one = wrk()
    asked = claimed_by_us(ask("drain", one)).model_copy(update={"status": "accepted"})
    claim = Claim("playbooks/restart.yml changes its host", one, "ready", hold=True)
    assert planned(seen(one, operations=(asked,)), Play("p", "restart", (one,))) == (claim,)


@pytest.mark.parametrize("keeper", [True, False])
def test_one_claim_covers_all_members_of_an_instance_that_is_deleted(keeper: bool) -> None:
    one, other = wrk(2), wrk(3, **OURS)
    now = deleting(seen(one, other, fences={other.id: 3} if keeper else {}))
    why, play = "playbooks/decommission.yml changes its host", Play("p", "decommission", (one,))
    assert planned(now, play) == (Claim(why, one, "ready", hold=not keeper),)
    running = now.later(instance=now.instance.model_copy(update={"status": "running"}))
    assert planned(running, play) == (Claim(why, one, "ready", hold=True),)


def test_a_numbered_play_keeps_its_place_and_names_who_is_first() -> None:
    one, other, third = ctl(**OURS), wrk(2, status="requested", **OURS), wrk(3, status="reconciling", **OURS)
    play = Play("p", "deploy", (one, other, third), frozenset({("join", other.id), ("start", third.id)}))
    fences = {one.id: 7, other.id: 8, third.id: 9}
    wait = Wait("why", "x")
    numbered = replace(play, fences=fences, first=frozenset({other.id}))
    assert planned(seen(one, other, third, fences=fences), play, wait) == (wait, numbered)


@pytest.mark.parametrize(
    ("changes", "detail", "fence"),
    [
        ({}, {}, 5),
        ({"fences": True}, {}, 6),
        ({"fences": True, "took_over": True}, {"claimed_by": "gone"}, 6),
        ({"took_over": True}, {}, None),
        ({}, {"claimed_by": "gone"}, None),
        ({}, {"fence": 0}, None),
    ],
)
def test_the_number_of_a_shared_controller_grows_if_a_runner_vanished(
    changes: dict[str, Any], detail: dict[str, Any], fence: int | None
) -> None:
    one, other = ctl(**detail), wrk()
    numbers = {one.id: 6} if changes.get("fences") else {}
    now = seen(one, other, operations=(claimed_by_us(ask("drain", other)),), **(changes | {"fences": numbers}))
    play = Play("p", "drain_worker", (one, other))
    claim = Claim("playbooks/drain_worker.yml changes its host", one, "ready", hold=False)
    assert planned(now, play) == ((claim,) if fence is None else (replace(play, fences={one.id: fence}),))


@pytest.mark.parametrize(
    ("playbook", "case", "shared"),
    [
        ("drain_worker", "member operation", True),
        ("quiesce", "member operation", True),
        ("restart", "member operation", False),
        ("drain_worker", "no operation", False),
        ("drain_worker", "instance operation", False),
        ("drain_worker", "deleting", False),
    ],
)
def test_only_an_operation_on_workers_shares_the_controller(playbook: str, case: str, shared: bool) -> None:
    one = ctl()
    now = seen(one, operations=() if case == "no operation" else (claimed_by_us(ask("drain", wrk())),))
    if case == "instance operation":
        now = now.later(instance_operations=(claimed_by_us(ask_whole("restart")),))
    if case == "deleting":
        now = deleting(now)
    (step,) = planned(now, Play("p", playbook, (one,)))
    assert isinstance(step, Play if shared else Claim)


@pytest.mark.parametrize(
    ("playbook", "wanted"),
    [
        *((name, "cw") for name in ACTS),
        *((name, "cw") for name in ("add_worker", "remove_worker", "follow")),
        *((name, "c") for name in ("drain_worker", "quiesce")),
        ("observe", ""),
    ],
)
def test_a_play_changes_hosts_by_its_playbook(playbook: str, wanted: str) -> None:
    both = {"c": ctl(), "w": wrk()}
    assert changed_by(Play("p", playbook, tuple(both.values()))) == tuple(both[key] for key in wanted)


# -- why nothing is begun ------------------------------------------------------------------------------------


def test_nothing_is_begun_while_another_runner_is_at_work() -> None:
    one, asked = ctl(), ask("drain", wrk())
    assert not_now(seen(one), one) is None
    assert not_now(seen(one), ctl(**THEIR_CLAIM)) == THEY_HOLD_IT
    assert not_now(seen(one, operations=(claimed_by_us(asked), claimed_by_another(asked))), one) is None, (
        "ours is at work as well"
    )
    assert not_now(seen(one, operations=(claimed_by_us(asked),)), ctl(**THEIR_CLAIM)) == THEY_HOLD_IT
    whole = seen(one, operations=(claimed_by_another(asked),), instance_operations=(claimed_by_us(ask_whole("stop")),))
    assert not_now(whole, one) is None
    busy = f"{asked.label}: {THEY_HOLD_IT}"
    assert not_now(seen(one, operations=(handed_back(asked), claimed_by_another(asked))), one) == busy
    waiting = claimed_by_another(asked).model_copy(update={"status": "accepted"})
    assert not_now(seen(one, operations=(waiting,)), one) is None
    ended = claimed_by_another(asked).model_copy(update={"lease_expires_at": NOW})
    assert not_now(seen(one, operations=(ended,)), one) is None
