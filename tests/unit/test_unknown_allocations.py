"""An allocation that cannot be read is not one that is gone: its host is neither touched nor forgotten."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.act.inventory import build
from runner.model.plan import Claim, ForgetSecrets, Refuse, SetMember, Wait
from runner.model.platform import Unreadable
from runner.model.world import World
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, between, cluster, reported, serving, the, tick
from tests.unit.teardown import decommission, running
from tests.unit.test_lifecycle_properties import WORKERS, meddle
from tests.unit.worlds import add, allocation, instance, not_found, of_kind, world


def without_allocation(now: World, number: int) -> World:
    """The same world, with nothing known of one allocation."""
    lost = UUID(int=100 + number)
    odd = Unreadable("allocation", str(lost), "insufficient_permissions, HTTP 403")
    kept = {key: one for key, one in now.allocations.items() if key != lost}
    return now.later(allocations=kept, unknown_allocations={lost: odd})


def with_allocation(now: World, number: int, **changes: Any) -> World:
    return now.later(
        allocations={**now.allocations, UUID(int=100 + number): allocation(number, **changes)}, unknown_allocations={}
    )


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_member_whose_allocation_is_unknown_is_neither_touched_nor_forgotten(data: st.DataObject) -> None:
    slurm = FakeSlurm({f"w{number}": FakeNode() for number in WORKERS})
    now, count = running(*(serving(number) for number in WORKERS)), [0]
    number = data.draw(st.sampled_from(WORKERS))
    for _ in range(data.draw(st.integers(0, 2))):
        now = meddle(data, now, slurm, count)
        now, _, _ = tick(now, slurm)
    on_it = {one.id for one in now.members if one.allocation_id == UUID(int=100 + number) and one.status != "deleted"}
    if data.draw(st.booleans()):
        now = now.later(instance_operations=(decommission(99),))
    for _ in range(3):
        now, steps, plays = tick(without_allocation(now, number), slurm, seconds=400)
        for step in of_kind(steps, SetMember):
            assert step.member.id not in on_it or step.status != "deleted"
        if on_it:
            assert not of_kind(steps, ForgetSecrets)
            assert now.instance.status != "deleted"
        acts = {(kind, one) for play in plays for kind, one in play.acts if one in on_it}
        assert {kind for kind, _ in acts}.isdisjoint({"clean", "remove", "forget", "join", "start", "repair"})


# -- allocations ---------------------------------------------------------------------------------------------


def test_a_removal_waits_while_its_allocation_is_unknown() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    now, steps, plays = tick(without_allocation(cluster(one, operations=(ask("remove", one),)), 2), slurm)
    assert the(now, one).status == "deleting" and "remove_worker" not in [play.playbook for play in plays]
    assert any("HTTP 403" in step.why for step in of_kind(steps, Wait))
    assert "w2" in slurm.nodes and now.operations != ()
    gone = now.later(allocations={**now.allocations, UUID(int=102): not_found(2)}, unknown_allocations={})
    now, _, _ = tick(gone, slurm)
    assert the(now, one).status == "deleted" and the(now, one).adapter_detail["host_cleaned"] is False
    assert now.operations == ()


def test_a_removal_goes_on_when_the_allocation_can_be_read_again() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    now, _, _ = tick(without_allocation(cluster(one, operations=(ask("remove", one),)), 2), slurm)
    now, _, _ = tick(with_allocation(now, 2), slurm)
    assert the(now, one).status == "deleted" and the(now, one).adapter_detail["host_cleaned"] is True


@pytest.mark.parametrize("touched", [True, False])
def test_a_teardown_cleans_the_others_and_keeps_a_member_without_allocation_record(touched: bool) -> None:
    one, other = serving(2), serving(3)
    if not touched:
        other = serving(3, status="requested", adapter_detail={"worker_hostname": None, "phase": "requested"})
        other.adapter_detail["registered_in_controller"] = False
    slurm = FakeSlurm({"w2": FakeNode(), **({"w3": FakeNode()} if touched else {})})
    now = without_allocation(running(one, other, asked=(decommission(),)), 3)
    for _ in range(3):
        now, steps, _ = tick(now, slurm, seconds=700)
        assert not of_kind(steps, ForgetSecrets)
    assert the(now, one).status == "deleted" and the(now, other).status == "deleting"
    assert now.instance.status == "deleting" and "record_unreadable" in reported(now)[2]
    gone = now.later(allocations={**now.allocations, UUID(int=103): not_found(3)}, unknown_allocations={})
    now, steps, _ = tick(gone, slurm)
    assert of_kind(steps, ForgetSecrets) and now.instance.status == "deleted"


def test_a_person_can_abandon_a_member_whose_allocation_stays_unknown() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    asked = decommission(abandon_unreachable=True, host_patience_seconds=600)
    now = without_allocation(running(one, asked=(asked,)), 2)
    for _ in range(4):
        now, _, _ = tick(now, slurm, seconds=400)
    assert now.instance.status == "deleted"
    assert "record_unreadable" in the(now, one).adapter_detail["host_left"]


def test_an_add_that_names_an_unknown_allocation_waits_unclaimed() -> None:
    now = without_allocation(cluster(operations=(add(4),)), 4)
    steps = decide(now).steps
    assert not of_kind(list(steps), Claim) and not of_kind(list(steps), Refuse)
    assert any("HTTP 403" in step.why for step in of_kind(list(steps), Wait))


def test_a_controller_whose_allocation_is_unknown_is_not_dialled() -> None:
    now = without_allocation(cluster(serving(2)), 1)
    hosts, problems = build(SLURM, now.instance, now.members, now.allocations)
    assert [problem.code for problem in problems.values()] == ["record_unreadable"]
    assert [name for name in hosts["all"]["hosts"] if name.startswith("controller")] == []


def test_the_health_of_a_running_cluster_names_an_unknown_allocation() -> None:
    now, _, _ = tick(between(without_allocation(cluster(serving(2)), 2), 300), FakeSlurm({"w2": FakeNode()}))
    (reason,) = (now.instance.status_detail or {})["reasons"]
    assert (reason["code"], reason["kind"], reason["id"]) == ("record_unreadable", "allocation", str(UUID(int=102)))
    assert now.instance.health == "degraded"


def test_a_teardown_does_not_take_an_unknown_controller_for_gone() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode(jobs={7})}, answers=False)
    now, _, plays = tick(without_allocation(running(one, asked=(decommission(),)), 1), slurm)
    assert {play.playbook for play in plays} == {"drain_worker"}, "its workers' hosts are not asked behind its back"
    assert the(now, one).status == "draining" and slurm.cleaned == []


def test_a_new_deploy_waits_for_its_controllers_allocation() -> None:
    now, steps, plays = tick(without_allocation(world(instance=instance()), 1), FakeSlurm())
    assert plays == [] and now.instance.status != "failed"
    assert not [step for step in of_kind(steps, SetMember) if step.status == "failed"]
