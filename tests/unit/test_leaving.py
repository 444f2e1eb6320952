"""Workers that are drained or removed: what is done for which world, tick by tick, on a cluster in memory."""

from typing import Any

import pytest

from runner.model.plan import Claim, Finish, Refuse, SetMember, Wait
from runner.model.platform import Operation
from runner.slurm.decide import decide
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, cluster, serving, the, tick
from tests.unit.worlds import controller, of_kind


def test_drain_marks_the_node_with_our_prefix_the_operation_and_its_reason() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    drain = ask("drain", one, parameters={"reason": "disk swap"})
    tick(cluster(one, operations=(drain,)), slurm)
    assert slurm.nodes["w2"].reason == f"gpuaas:{drain.id}: disk swap"


def test_a_node_stays_draining_over_ticks_until_its_job_is_gone() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now = cluster(one, operations=(ask("drain", one),))
    for _ in range(3):
        now, steps, plays = tick(now, slurm)
        member = the(now, one)
        assert (member.status, member.adapter_detail["phase"]) == ("draining", "draining")
        assert member.adapter_detail["jobs_remaining"] == 1 and member.adapter_detail["jobs"] == ["7"]
        assert not of_kind(steps, Finish)
        assert [play.playbook for play in plays] == ["drain_worker"]
    slurm.nodes["w2"].jobs.clear()
    now, steps, _ = tick(now, slurm)
    assert the(now, one).adapter_detail["phase"] == "drained"
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]


def test_many_drains_are_one_play_and_one_call() -> None:
    members = [serving(number) for number in (2, 3, 4)]
    slurm = FakeSlurm({f"w{number}": FakeNode() for number in (2, 3, 4)})
    _, _, plays = tick(cluster(*members, operations=(ask("drain", *members),)), slurm)
    (play,) = plays
    (order,) = play.work["drain"]
    assert order["nodes"] == ["w2", "w3", "w4"]


@pytest.mark.parametrize("policy", ["requeue", "cancel"])
def test_at_the_deadline_remaining_jobs_are_ended_as_chosen_and_reported(policy: str) -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7, 8})})
    terms = {"deadline_seconds": 100, "on_deadline": policy}
    now = cluster(one, operations=(ask("drain", one, parameters=terms),))
    now, _, plays = tick(now, slurm)
    assert slurm.nodes["w2"].jobs == {7, 8}
    now, _, plays = tick(now, slurm)
    assert slurm.nodes["w2"].jobs == {7, 8}  # 60 s: not yet
    now, steps, plays = tick(now, slurm)
    assert [play.work[policy] for play in plays if play.work.get(policy)] == [["7", "8"]]
    assert of_kind(steps, Finish) == [], "the jobs are being cleared away"
    now, steps, _ = tick(now, slurm)
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "succeeded"
    assert finish.result["members"][str(one.id)]["did"] == f"{policy} of job 7, 8"


def test_giving_up_at_the_deadline_undrains_loses_nothing_and_fails_the_operation() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now = cluster(one, operations=(ask("drain", one, parameters={"deadline_seconds": 0, "on_deadline": "give_up"}),))
    now, steps, _ = tick(now, slurm)
    assert slurm.nodes["w2"].reason is None and slurm.nodes["w2"].jobs == {7}
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error["code"]) == ("failed", "drain_deadline")
    assert the(now, one).status == "ready"


def test_a_drain_set_by_a_person_is_respected_reported_and_never_undone() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7}, reason="alice: bad fan")})
    now = cluster(one, operations=(ask("drain", one, parameters={"deadline_seconds": 100}),))
    now, _, _ = tick(now, slurm)
    assert the(now, one).adapter_detail["drain_reason"] == "alice: bad fan"
    assert the(now, one).adapter_detail["drain_held_by"] == "person"
    now, _, _ = tick(now, slurm)
    now, steps, _ = tick(now, slurm, seconds=1)  # the deadline: given up, but not undone
    assert slurm.nodes["w2"].reason == "alice: bad fan"
    assert [finish.status for finish in of_kind(steps, Finish)] == ["failed"]
    assert the(now, one).status == "draining"
    now, steps, plays = tick(now, slurm)
    assert not plays and not of_kind(steps, SetMember), "it settles"


def test_cancelling_a_drain_undrains_what_was_ours() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, _, _ = tick(cluster(one, operations=(ask("drain", one),)), slurm)
    assert slurm.nodes["w2"].reason
    now, _, _ = tick(now.later(operations=()), slurm, seconds=1)
    assert slurm.nodes["w2"].reason is None
    assert the(now, one).status == "ready"
    _, steps, plays = tick(now, slurm)
    assert not plays and not of_kind(steps, SetMember), "it settles"


def test_a_worker_a_person_undrained_serves_again() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    now, _, _ = tick(cluster(one, operations=(ask("drain", one),)), slurm)
    assert the(now, one).status == "draining"
    slurm.nodes["w2"].reason = None
    now, _, _ = tick(now.later(instance=now.instance.model_copy(update={"status_detail": {}})), slurm)
    assert the(now, one).status == "ready"


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda one: ask("drain"), "no_members"),
        (lambda one: ask("drain", one, one), "member_twice"),
        (lambda one: ask("drain", serving(3)), "member_not_found"),
        (lambda one: ask("remove", controller(status="ready")), "controller_not_supported"),
        (lambda one: ask("replace", one), "allocations_required"),
        (lambda one: ask("replace", one, allocations=(5, 6)), "replace_uneven"),
        (lambda one: ask("drain", one, parameters={"deadline_seconds": -1}), "parameters_invalid"),
        (
            lambda one: ask("drain", one, parameters={"on_deadline": "explode", "deadline_seconds": 1}),
            "parameters_invalid",
        ),
        (lambda one: ask("drain", one, parameters={"on_deadline": "cancel"}), "parameters_invalid"),
        (lambda one: ask("drain", one, parameters={"reason": "x\nNodeName=evil"}), "parameters_invalid"),
        (lambda one: ask("drain", one, parameters={"force": True}), "parameters_invalid"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_touches_nothing(make: Any, code: str) -> None:
    one = serving(2)
    (refusal,) = decide(cluster(one, operations=(make(one),))).steps
    assert isinstance(refusal, Refuse) and refusal.code == code and refusal.why


def test_a_member_in_a_state_that_does_not_allow_it_is_refused() -> None:
    one = serving(2, status="failed")
    (refusal,) = decide(cluster(one, operations=(ask("drain", one),))).steps
    assert isinstance(refusal, Refuse) and refusal.code == "member_state"


def test_two_operations_on_one_member_go_in_order_of_creation() -> None:
    one, other = serving(2), serving(3)
    drain, remove = ask("drain", one), ask("remove", one, age=1)
    elsewhere = ask("drain", other, age=2)
    slurm = FakeSlurm({"w2": FakeNode({7}), "w3": FakeNode()})
    now, steps, _ = tick(cluster(one, other, operations=(drain, remove, elsewhere)), slurm)
    claimed = {claim.subject.id for claim in of_kind(steps, Claim) if isinstance(claim.subject, Operation)}
    assert claimed == {drain.id, elsewhere.id}
    assert any("came first" in wait.why for wait in of_kind(steps, Wait))
    slurm.nodes["w2"].jobs.clear()
    now, _, _ = tick(now, slurm)
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "deleted" and the(now, other).status == "draining"


def test_a_worker_given_back_is_looked_at_until_it_is_seen_serving() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now = cluster(one, operations=(ask("drain", one, parameters={"deadline_seconds": 0}),))
    slurm.distrusts_resumed = True
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "draining" and now.operations == ()
    assert now.instance.status_detail["unsettled"] is True  # type: ignore[index]
    slurm.distrusts_resumed = False
    now, _, plays = tick(now, slurm)
    assert [play.playbook for play in plays] == ["observe"]
    assert the(now, one).status == "ready"


def test_a_handed_back_operation_is_claimed_again_by_the_same_runner() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, _, _ = tick(cluster(one, operations=(ask("drain", one),)), slurm)
    assert now.operations[0].claimed_by == now.runner_id
    assert [type(step) for step in decide(now).steps] == [Claim]


def test_a_cancelled_drain_is_not_concluded_while_the_controller_does_not_answer() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, _, _ = tick(cluster(one, operations=(ask("drain", one),)), slurm)
    slurm.answers = False
    now, _, _ = tick(now.later(operations=()), slurm)
    assert the(now, one).adapter_detail["leave"].get("result") is None and slurm.nodes["w2"].reason
    slurm.answers = True
    now, _, _ = tick(now, slurm)
    assert the(now, one).adapter_detail["leave"]["result"] == "cancelled" and slurm.nodes["w2"].reason is None
