"""Lines that keep a worker from being lost or worked on twice. Each test fails if its line is dropped."""

from datetime import timedelta
from typing import Any

import pytest

from runner.model.plan import Claim, Finish, Play, Refuse, SetMember, Wait, stamp
from runner.model.world import Outcome, World
from runner.slurm.decide import decide
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, cluster, serving, the, tick, two_workers
from tests.unit.worlds import (
    NOW,
    add,
    after,
    claimed_by_another,
    controller,
    instance,
    of_kind,
    settle,
    snapshot,
    worker,
)


def test_a_removal_that_fails_on_its_host_is_tried_a_bounded_number_of_times() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, breaks_on_host={"w2"})
    now, tries = cluster(one, operations=(ask("remove", one),)), 0
    for _ in range(6):
        now, _, plays = tick(now, slurm, seconds=400)
        tries += sum(play.playbook == "remove_worker" for play in plays)
    assert tries == now.policy.max_attempts
    assert the(now, one).status == "failed" and now.operations == ()


@pytest.mark.parametrize("verb", ["drain", "remove"])
@pytest.mark.parametrize("status", ["reconciling", "failed"])
def test_no_worker_leaves_while_the_controller_is_not_ready(verb: str, status: str) -> None:
    one = serving(2)
    start = cluster(one, operations=(ask(verb, one),))
    claim = {"next_attempt_at": stamp(NOW + timedelta(hours=1))}
    start = start.with_member(controller(status=status, adapter_detail=claim))
    now, steps, _ = settle(start, decide)
    assert the(now, one).status == "ready"
    assert any("the controller is not ready" in one.why for one in of_kind(steps, Wait))


def test_an_add_is_taken_up_when_the_earliest_of_its_members_is_due() -> None:
    operation = add(4, 5)

    def coming(number: int, seconds: int) -> Any:
        due = stamp(NOW + timedelta(seconds=seconds))
        return worker(operation, number, status="reconciling", adapter_detail={"next_attempt_at": due})

    handed_back = operation.model_copy(update={"status": "running", "claimed_by": "gone", "lease_expires_at": NOW})
    early = cluster(coming(4, 10), coming(5, 1000), operations=(handed_back,))
    assert of_kind(settle(early, decide)[1], Claim) == []
    later = early.later(now=NOW + timedelta(seconds=11))
    assert next(step.subject.id for step in of_kind(settle(later, decide)[1], Claim)) == operation.id


def test_the_second_of_two_open_adds_of_one_allocation_is_refused() -> None:
    first, second = add(4), add(4, created_at=NOW)
    _, steps, play = settle(cluster(operations=(first, second)), decide)
    assert [(step.operation.id, step.code) for step in of_kind(steps, Refuse)] == [(second.id, "allocation_in_use")]
    assert play and [one.allocation_id for one in play.members if one.component_key == "worker"] == first.allocation_ids


def removing() -> tuple[World, Play, Any]:
    """A worker in the play that takes it out."""
    one = serving(2)
    slurm = two_workers()
    now, _, play = settle(cluster(one, serving(3), operations=(ask("remove", one),)), decide)
    while play and play.playbook != "remove_worker":
        now, _, play = settle(slurm.run(now, play), decide)
    assert play
    return now, play, one


@pytest.mark.parametrize("shown", ["the drained node", "nothing", "no nodes"])
def test_a_worker_is_deleted_only_when_the_controller_shows_that_its_node_is_gone(shown: str) -> None:
    now, play, one = removing()
    drained = FakeSlurm({"w2": FakeNode(reason="gpuaas: on its way out"), "w3": FakeNode()}).seen()
    seen = {"the drained node": drained, "nothing": None, "no nodes": snapshot(None)}[shown]
    now, steps, _ = settle(after(now, play, {one.id: Outcome("removed", {"residue": []})}, seen), decide)
    assert the(now, one).status == "deleting" and of_kind(steps, Finish) == []
    assert shown != "the drained node" or any("has not confirmed" in step.why for step in of_kind(steps, Wait))


@pytest.mark.parametrize("shown", ["the node", "nothing"])
def test_a_worker_whose_host_is_gone_is_deleted_only_when_its_node_is(shown: str) -> None:
    one = serving(2, status="deleting")
    operation = ask("remove", one)
    leave = {"operation_id": str(operation.id), "verb": "remove", "since": stamp(NOW), "verdict": None}
    one = one.model_copy(update={"adapter_detail": one.adapter_detail | {"leave": leave}})
    start = cluster(one, operations=(operation,))
    released = start.allocations[one.allocation_id].model_copy(update={"status": "released"})  # type: ignore[index]
    start = start.later(allocations={**start.allocations, released.id: released})
    slurm = FakeSlurm({"w2": FakeNode(reason=f"gpuaas:{operation.id}: remove")})
    now, _, play = settle(start, decide)
    while play and ("forget", one.id) not in play.acts:
        now, _, play = settle(slurm.run(now, play), decide)
    assert play, "the controller is asked to delete the node"
    seen = slurm.seen() if shown == "the node" else None
    now, _, _ = settle(after(now, play, {}, seen), decide)
    assert the(now, one).status == "deleting"


def test_a_cancelled_drain_is_not_concluded_while_nothing_is_known() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, _, _ = tick(cluster(one, operations=(ask("drain", one),)), slurm)
    now, _, play = settle(now.later(operations=()), decide)
    assert play and ("resume", one.id) in play.acts
    for seen in (None, snapshot(None)):
        end, steps, _ = settle(after(now, play, {}, seen), decide)
        assert the(end, one).notes.leave and the(end, one).adapter_detail["leave"].get("result") is None
        assert any("did not answer" in step.why for step in of_kind(steps, Wait))
    end, _, _ = settle(slurm.run(now, play), decide)
    assert the(end, one).adapter_detail["leave"]["result"] == "cancelled"


@pytest.mark.parametrize("policy", ["cancel", "requeue"])
def test_jobs_are_evicted_once_in_a_tick_even_if_they_are_slow_to_end(policy: str) -> None:
    one = serving(2)
    terms = {"deadline_seconds": 0, "on_deadline": policy}
    now, _, play = settle(cluster(one, operations=(ask("drain", one, parameters=terms),)), decide)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    evictions = 0
    for _ in range(6):
        if play is None:
            break
        evictions += ("evict", one.id) in play.acts
        # The job is still there after the call, as one whose epilog takes its time.
        now, _, play = settle(after(now, play, {}, slurm.seen()), decide)
    assert evictions == 1


def test_what_is_claimed_is_not_deleted_or_drained_without_a_note() -> None:
    """The agreement is written before the first play, so that a killed runner's successor knows of it."""
    one = serving(2)
    _, steps, play = settle(cluster(one, operations=(ask("remove", one),)), decide)
    assert play and play.playbook == "drain_worker"
    begun = [step for step in of_kind(steps, SetMember) if step.member.id == one.id]
    assert begun[0].detail["leave"]["verb"] == "remove"


def test_a_failed_instance_ends_open_operations_except_those_of_another_runner() -> None:
    past = {"lease_expires_at": NOW - timedelta(seconds=1)}
    free, held, expired = add(3), claimed_by_another(add(4)), claimed_by_another(add(5)).model_copy(update=past)
    steps = decide(
        cluster(serving(2)).later(operations=(free, held, expired), instance=instance(status="failed"))
    ).steps
    refused = {step.operation.id: step.code for step in steps if isinstance(step, Refuse)}
    assert refused == {free.id: "instance_failed", expired.id: "instance_failed"}
    (waits,) = (step for step in steps if isinstance(step, Wait) and step.operation == held)
    assert "runner other holds it" in waits.why
