"""Numbers of claims: which number a play carries to a host, and when it grows."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from runner.act import inventory
from runner.model import claims, names
from runner.model.plan import Claim, NewMember, Plan, Play, SetMember, stamp
from runner.model.platform import Member, Operation
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from runner.slurm.decide.claims import require_claims
from tests.unit.fake_slurm import FakeSlurm
from tests.unit.lifecycle import ask, ask_whole, cluster, serving, the, tick, two_workers
from tests.unit.worlds import ME, NOW, OTHER, add, claimed_by_us, controller, held, of_kind, settle, world


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
    assert [step.status for step in of_kind(steps, SetMember) if step.new_fence] == ["deleting"]


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_member_that_another_runner_may_have_made_is_numbered_again(attempt: int) -> None:
    """A request that was sent before gives the same answer again, and the number 1 may be another runner's."""
    operation = claimed_by_us(add(4)).model_copy(update={"attempt": attempt})
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
    recorded = the(now, one).adapter_detail
    assert recorded["fence"] == fence and recorded["last_adapter_error"]["code"] == claims.UNREADABLE
    assert recorded["last_adapter_error"]["class"] == "intervention"
    assert "Set it to a number that is not below the host's own" in recorded["last_adapter_error"]["message"]
    mended = the(now, one).model_copy(update={"adapter_detail": recorded | {"fence": 7}})
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


def test_a_handed_back_operation_is_distinguished_from_one_that_ran_out() -> None:
    asked: Operation = ask("drain", serving(2))
    assert not claims.ran_out(asked)
    assert claims.ran_out(claimed_by_us(asked)), "the time it was written is not known"
    assert not claims.ran_out(claimed_by_us(asked).model_copy(update={"updated_at": NOW + timedelta(minutes=1)}))


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
