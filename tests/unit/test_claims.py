"""Claims and their numbers: who may change a host, and under which number. `settle` checks every play of every test."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.act import inventory
from runner.model import claims, names
from runner.model.plan import Claim, NewMember, Plan, Play, SetMember, Wait, stamp
from runner.model.platform import Member, Operation
from runner.model.world import Policy, World
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from runner.slurm.decide.claims import require_claims
from tests.unit import test_decide_properties, test_desired_config, test_repair
from tests.unit.claims_oracle import changed
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, ask_whole, between, cluster, serving, the, tick, two_workers
from tests.unit.test_lifecycle_properties import WORKERS, requests
from tests.unit.worlds import ME, NOW, add, controller, mine, of_kind, settle, world

OTHER = "another-runner"
LEASE = {"claimed_by": OTHER, "lease_expires_at": stamp(NOW + timedelta(minutes=1))}


def seen_by_another(now: World) -> World:
    """The same world, as another runner reads it at this moment."""
    return now.later(runner_id=OTHER, fences={}, took_over=False, played=frozenset(), outcomes={})


def held(member: Member, **changes: Any) -> Member:
    return member.model_copy(update={"adapter_detail": member.adapter_detail | LEASE | changes})


def names_the_holder(steps: Any, member: Member) -> bool:
    return any(OTHER in one.why and str(member.id)[:8] in f"{one.subject} {one.why}" for one in of_kind(steps, Wait))


# -- what no operation asks for ------------------------------------------------------------------------------


def repair_of_a_worker() -> tuple[World, Member]:
    slurm, one, now = test_repair.a_cluster(dead={"w2"})
    return now.later(snapshot=slurm.seen()), one


def repair_of_the_controller() -> tuple[World, Member]:
    slurm, _, now = test_repair.a_cluster(stopped={"slurmdbd"})
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
    known = the(now, member).adapter_detail
    assert (known["claimed_by"], known["fence"], play.fences[member.id]) == (ME, 1, 1)


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


def test_a_claim_that_ran_out_holds_nobody_back() -> None:
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


# -- numbers -------------------------------------------------------------------------------------------------


def test_a_member_that_an_operation_makes_has_its_number_without_another_write() -> None:
    _, steps, play = settle(cluster(operations=(add(4),)), decide)
    assert play and play.playbook == "add_worker"
    (joining,) = [one for one in play.members if one.component_key == "worker"]
    assert play.fences[joining.id] == 1 and joining.id in play.first
    assert of_kind(steps, NewMember)
    assert [step.subject.id for step in of_kind(steps, Claim) if isinstance(step.subject, Member)] != [joining.id]
    assert not joining.adapter_detail.get("claimed_by"), "the operation's lease holds it"


def test_each_tick_takes_a_larger_number_and_a_tick_takes_one() -> None:
    operation = add(4)
    slurm = FakeSlurm(hosts_down={"w4"})
    now, numbers = cluster(operations=(operation,)), []
    for _ in range(3):
        now, _, plays = tick(now, slurm, seconds=400)
        joins = [play for play in plays if play.playbook == "add_worker"]
        numbers += [max(play.fences[one.id] for one in play.members if one.component_key == "worker") for play in joins]
    assert numbers == [1, 2, 3]


def test_a_removal_takes_its_number_with_the_write_to_deleting() -> None:
    one = serving(2, adapter_detail={"fence": 7})
    _, steps, plays = tick(cluster(one, operations=(ask("remove", one),)), two_workers())
    assert plays[-1].playbook == "remove_worker" and plays[-1].fences[one.id] == 8
    assert [step for step in of_kind(steps, Claim) if step.subject.id == one.id] == []
    assert [step.status for step in of_kind(steps, SetMember) if step.numbers] == ["deleting"]


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_member_that_another_runner_may_have_made_is_numbered_again(attempt: int) -> None:
    """A request that was sent before gives the same answer again, and the number 1 may be another runner's."""
    operation = mine(add(4)).model_copy(update={"attempt": attempt})
    _, _, play = settle(cluster(operations=(operation,)), decide)
    assert play
    assert {play.fences[one.id] for one in play.members if one.component_key == "worker"} == {attempt}


def drain_under(lease_ends: timedelta) -> Play:
    one = serving(2)
    written = NOW - timedelta(minutes=5)
    lease = {"status": "running", "claimed_by": OTHER, "updated_at": written, "lease_expires_at": written + lease_ends}
    start = cluster(one, operations=(ask("drain", one).model_copy(update=lease),))
    ours = start.members[0]
    start = start.with_member(ours.model_copy(update={"adapter_detail": ours.adapter_detail | {"fence": 5}}))
    _, _, play = settle(start, decide)
    assert play and play.playbook == "drain_worker"
    return play


def test_the_controllers_number_grows_when_an_expired_operation_is_taken_over() -> None:
    assert list(drain_under(timedelta(minutes=2)).fences.values()) == [6]


def test_the_controllers_number_grows_when_a_claim_of_its_own_ran_out() -> None:
    one = serving(2)
    start = cluster(one, operations=(ask("drain", one),))
    past = {"lease_expires_at": stamp(NOW - timedelta(seconds=1)), "fence": 5}
    _, _, play = settle(start.with_member(held(start.members[0], **past)), decide)
    assert play and play.playbook == "drain_worker" and list(play.fences.values()) == [6]


def test_the_controllers_number_stays_when_an_operation_was_handed_back() -> None:
    assert list(drain_under(timedelta(0)).fences.values()) == [5]


@pytest.mark.parametrize("fence", ["7", -1, 2.5, True, [1]])
def test_a_number_that_cannot_be_read_is_not_taken_for_none(fence: Any) -> None:
    one = serving(2, adapter_detail={"fence": fence})
    now, _, plays = tick(cluster(one, serving(3), operations=(ask("remove", one),)), two_workers())
    assert not [play for play in plays if one.id in play.fences]
    known = the(now, one).adapter_detail
    assert known["fence"] == fence and known["last_adapter_error"]["code"] == claims.UNREADABLE
    assert known["last_adapter_error"]["class"] == "intervention"
    assert "Set it to a number that is not below the host's own" in known["last_adapter_error"]["message"]
    mended = the(now, one).model_copy(update={"adapter_detail": known | {"fence": 7}})
    _, _, plays = tick(now.with_member(mended), two_workers())
    assert [play.fences[one.id] for play in plays if one.id in play.fences] == [8]


def test_only_a_member_that_is_brought_up_is_first() -> None:
    slurm = two_workers()
    _, _, play = settle(world(operations=(add(2),)), decide)
    assert play and play.playbook == "deploy" and play.first == {one.id for one in play.members}
    stopped, _, _ = tick(cluster(serving(2), serving(3), whole=(ask_whole("stop"),)), slurm)
    _, _, play = settle(stopped.later(instance_operations=(ask_whole("start"),)), decide)
    assert play and play.playbook == "deploy" and len(play.fences) == 3 and play.first == frozenset()


def test_the_inventory_has_the_number_of_each_member_and_whether_it_is_first() -> None:
    one, other = controller(status="ready"), serving(2)
    allocations = world().allocations
    tree, _ = inventory.build(
        SLURM, world().instance, [one, other], allocations, fences={other.id: 4}, first={other.id}
    )
    hosts = tree["all"]["hosts"]
    ours = hosts[names.host_name(other)]
    assert (ours["gpuaas_fence"], ours["gpuaas_first_play"]) == (4, True)
    assert "gpuaas_fence" not in hosts[names.host_name(one)]


def test_a_look_carries_no_number() -> None:
    now = cluster(serving(2))
    old = {"observed_at": stamp(NOW - timedelta(days=1)), "reasons": []}
    _, steps, play = settle(now.later(instance=now.instance.model_copy(update={"status_detail": old})), decide)
    assert play and play.playbook == "observe" and dict(play.fences) == {}
    assert of_kind(steps, Claim) == []


def test_an_undo_that_no_operation_asks_for_any_more_is_claimed() -> None:
    """An operation that a person called off cannot be held; what is left to undo is held by the members."""
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, _, _ = tick(cluster(serving(2), whole=(ask_whole("stop"),)), slurm)
    _, steps, play = settle(now.later(instance_operations=()), decide)
    assert play and play.playbook == "quiesce"
    assert [step.hold for step in of_kind(steps, Claim)] == [True]


def test_a_handed_back_operation_is_told_from_one_that_ran_out() -> None:
    asked: Operation = ask("drain", serving(2))
    assert not claims.ran_out(asked)
    assert claims.ran_out(mine(asked)), "nobody knows when it was written"
    assert not claims.ran_out(mine(asked).model_copy(update={"updated_at": NOW + timedelta(minutes=1)}))


def test_between_ticks_nothing_is_held() -> None:
    now, _, play = settle(repair_of_a_worker()[0], decide)
    assert play
    assert not [one for one in between(now).members if one.adapter_detail.get("claimed_by")]


@pytest.mark.parametrize(
    ("status", "detail", "act", "first"),
    [
        ("requested", {}, "join", True),
        ("reconciling", {}, "join", True),
        ("ready", {}, "join", False),  # it gets users that are declared anew
        ("requested", {"stopped": {"was": "ready"}}, "join", False),
        ("reconciling", {}, "start", False),
        ("failed", {}, "join", False),
    ],
)
def test_a_first_play_is_a_join_of_a_member_that_never_served(status: str, detail: Any, act: Any, first: bool) -> None:
    member = serving(2, status=status, adapter_detail=detail)
    play = Play("x", "deploy", (member,), frozenset({(act, member.id)}))
    start = cluster(member).later(fences={member.id: 1})
    held_by_us = {"claimed_by": ME, "lease_expires_at": stamp(NOW + timedelta(minutes=1)), "fence": 1}
    member = member.model_copy(update={"adapter_detail": member.adapter_detail | held_by_us})
    play = replace(play, members=(member,))
    (numbered,) = require_claims(start.with_member(member), Plan((play,))).steps
    assert isinstance(numbered, Play) and (member.id in numbered.first) == first
