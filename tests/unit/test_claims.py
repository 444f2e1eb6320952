"""Claims: who may change a host. `settle` checks every play of every test."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.model.plan import Claim, Play, Wait, stamp
from runner.model.platform import Member
from runner.model.world import Policy, World
from runner.slurm.decide import decide
from tests.unit import drifting, test_decide_properties, test_desired_config
from tests.unit.claims_oracle import changed
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, ask_whole, between, cluster, serving, the, tick, two_workers
from tests.unit.test_lifecycle_properties import WORKERS, requests
from tests.unit.worlds import ME, NOW, OTHER, add, held, of_kind, settle


def seen_by_another(now: World) -> World:
    """The same world, as another runner reads it at this moment."""
    return now.later(runner_id=OTHER, fences={}, took_over=False, played=frozenset(), outcomes={})


def names_the_holder(steps: Any, member: Member) -> bool:
    return any(OTHER in one.why and str(member.id)[:8] in f"{one.subject} {one.why}" for one in of_kind(steps, Wait))


# -- what no operation asks for ------------------------------------------------------------------------------


def repair_of_a_worker() -> tuple[World, Member]:
    slurm, one, now = drifting.a_cluster(dead={"w2"})
    return now.later(snapshot=slurm.seen()), one


def repair_of_the_controller() -> tuple[World, Member]:
    slurm, _, now = drifting.a_cluster(stopped={"slurmdbd"})
    return now.later(snapshot=slurm.seen()), now.members[0]


def changed_configuration() -> tuple[World, Member]:
    now = test_desired_config.running({"slurm": {"MaxJobCount": 5}}, serving(2))
    return now, test_desired_config.the_controller(now)


def changed_users() -> tuple[World, Member]:
    config = {"users": [{"name": "ada", "uid": 2001}]}
    one = serving(2, adapter_detail={"users_version": "before"})
    return test_desired_config.running(config, one, users_version="before"), one


def follow() -> tuple[World, Member]:
    one = serving(2, adapter_detail={"config_version": "sha256:old"})
    now = test_desired_config.running({}, one)
    seen = FakeSlurm({"w2": FakeNode()}).seen()
    ours = test_desired_config.the_controller(now)
    live = ours.adapter_detail | {"applied_config": test_desired_config.digest_of({})}
    return now.with_member(ours.model_copy(update={"adapter_detail": live})).later(snapshot=seen), one


UNASKED = [repair_of_a_worker, repair_of_the_controller, changed_configuration, changed_users, follow]


@pytest.mark.parametrize("case", UNASKED, ids=lambda case: case.__name__)
def test_what_no_operation_asks_for_is_claimed_member_by_member(case: Callable[[], tuple[World, Member]]) -> None:
    start, member = case()
    now, steps, play = settle(start, decide)
    assert play and member.id in play.fences
    claimed = [step for step in of_kind(steps, Claim) if step.subject.id == member.id]
    assert [step.hold for step in claimed] == [True]
    recorded = the(now, member).adapter_detail
    assert (recorded["claimed_by"], recorded["fence"], play.fences[member.id]) == (ME, 1, 1)


@pytest.mark.parametrize("case", UNASKED, ids=lambda case: case.__name__)
def test_what_one_runner_claimed_another_leaves_alone_and_names_it(case: Callable[[], tuple[World, Member]]) -> None:
    start, _ = case()
    # Nothing but the claim keeps a second try from being due at once.
    now, _, play = settle(start.later(policy=Policy(retry_seconds=0)), decide)
    assert play
    other = seen_by_another(now)
    _, steps, theirs = settle(other, decide)
    assert theirs is None or not {one.id for one in changed(theirs)} & {one.id for one in changed(play)}
    assert any(ME in one.why for one in of_kind(steps, Wait)), steps


@pytest.mark.parametrize("verb", ["drain", "remove"])
def test_an_operation_waits_for_a_member_that_another_runner_holds(verb: str) -> None:
    one, other = held(serving(2)), serving(3)
    asked = ask(verb, one, other)
    now, steps, plays = tick(cluster(one, other, operations=(asked,)), two_workers())
    assert names_the_holder(steps, one)
    assert the(now, one).status == "ready" and the(now, other).status != "ready"
    assert not [play for play in plays if one.id in play.fences]
    later = now.later(now=now.now + timedelta(minutes=5))
    after, _, _ = tick(later, two_workers())
    assert the(after, one).status != "ready"


@pytest.mark.parametrize("verb", ["stop", "restart", "upgrade", "rotate_credentials", "decommission"])
def test_an_operation_on_the_instance_waits_for_a_member_that_another_runner_holds(verb: str) -> None:
    one = held(serving(2))
    now, steps, plays = tick(cluster(one, serving(3), whole=(ask_whole(verb),)), two_workers())
    assert names_the_holder(steps, one) and not [play for play in plays if play.fences]
    assert now.instance.status == "running"


def test_workers_wait_while_another_runner_holds_the_controller() -> None:
    one = serving(2)
    start = cluster(one, operations=(ask("drain", one), add(4)))
    start = start.with_member(held(start.members[0]))
    _, steps, play = settle(start, decide)
    assert play is None and names_the_holder(steps, one)


def test_a_claim_that_ran_out_holds_no_runner_back() -> None:
    past = {"lease_expires_at": stamp(NOW - timedelta(seconds=1))}
    one = held(serving(2), **past)
    now, _, _ = tick(cluster(one, operations=(ask("drain", one),)), two_workers())
    assert the(now, one).status == "draining"


@st.composite
def any_world(draw: st.DrawFn) -> World:
    if draw(st.booleans()):
        return draw(test_decide_properties.worlds())
    slurm = FakeSlurm({f"w{number}": FakeNode() for number in WORKERS})
    now = cluster(*(serving(number) for number in WORKERS))
    now = now.later(operations=tuple(draw(requests(now, age)) for age in range(draw(st.integers(0, 3)))))
    if draw(st.booleans()):
        whole = draw(st.sampled_from(["stop", "restart", "upgrade", "rollback", "rotate_credentials", "decommission"]))
        now = now.later(instance_operations=(ask_whole(whole),))
    for _ in range(draw(st.integers(0, 2))):
        now, _, _ = tick(now, slurm)
    return now


@settings(max_examples=150, deadline=None)
@given(any_world())
def test_two_runners_that_read_one_world_never_play_one_member(start: World) -> None:
    now, _, play = settle(start, decide)
    _, _, theirs = settle(seen_by_another(now), decide)
    if play is None or theirs is None:
        return
    shared = (
        {one.id for one in changed(play) if one.component_key == "controller"} if _only_asks(play, theirs) else set()
    )
    both = {one.id for one in changed(play)} & {one.id for one in changed(theirs)}
    assert both <= shared, f"{play.playbook} and {theirs.playbook} both change {both}"


def _only_asks(*plays: Play) -> bool:
    """Operations on different workers may speak with one controller at the same time."""
    return all(play.playbook in ("add_worker", "remove_worker", "drain_worker") for play in plays)


def test_an_undo_that_no_operation_asks_for_any_more_is_claimed() -> None:
    """An operation that a person called off cannot be held; what is left to undo is held by the members."""
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, _, _ = tick(cluster(serving(2), whole=(ask_whole("stop"),)), slurm)
    _, steps, play = settle(now.later(instance_operations=()), decide)
    assert play and play.playbook == "quiesce"
    assert [step.hold for step in of_kind(steps, Claim)] == [True]


def test_between_ticks_nothing_is_held() -> None:
    now, _, play = settle(repair_of_a_worker()[0], decide)
    assert play
    assert not [one for one in between(now).members if one.adapter_detail.get("claimed_by")]
