"""A whole instance is decommissioned: what is done for which world, tick by tick, on a cluster in memory."""

from datetime import timedelta
from typing import Any

import pytest

from runner.model.plan import AdapterError, Announce, Claim, Finish, ForgetSecrets, Play, Refuse, SetInstance, Wait
from runner.model.platform import Operation
from runner.model.world import World
from runner.slurm.decide import decide
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, ask_whole, playbooks, serving, the, tick
from tests.unit.teardown import ctl, decommission, deleting, running
from tests.unit.worlds import add, claimed_by_another, of_kind, settle


def test_an_idle_cluster_is_drained_cleaned_forgotten_and_gone_in_one_tick() -> None:
    one, other = serving(2), serving(3)
    slurm = FakeSlurm({"w2": FakeNode(), "w3": FakeNode()})
    asked = decommission(reason="end of the project")
    now, steps, plays = tick(running(one, other, asked=(asked,)), slurm)
    assert playbooks(plays) == ["drain_worker", "decommission", "decommission"]
    (order,) = plays[0].work["drain"]
    assert order == {"nodes": ["w2", "w3"], "reason": f"gpuaas:{asked.id}: end of the project"}
    assert sorted(slurm.cleaned) == ["ctl", "w2", "w3"] and slurm.cleaned[-1] == "ctl", "the controller goes last"
    assert {member.status for member in now.members} == {"deleted"}
    assert all(member.adapter_detail["host_cleaned"] for member in now.members)
    assert now.instance.status == "deleted" and now.instance_operations == ()
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "succeeded" and len(finish.result["members"]) == 3
    assert [step.kind for step in of_kind(steps, Announce)] == ["apps.instance.deleting", "apps.instance.deleted"]
    assert of_kind(steps, ForgetSecrets)


def test_secrets_are_deleted_after_the_last_host_and_before_the_instance() -> None:
    slurm = FakeSlurm({"w2": FakeNode()})
    _, steps, _ = tick(running(serving(2), asked=(decommission(),)), slurm)
    order = [type(step) for step in steps if isinstance(step, Play | ForgetSecrets | Finish | SetInstance)]
    assert order.index(ForgetSecrets) > max(place for place, kind in enumerate(order) if kind is Play)
    assert order.index(ForgetSecrets) < order.index(Finish) < len(order) - 1
    assert order[-1] is SetInstance


def test_nothing_is_gone_while_vault_cannot_be_asked() -> None:
    slurm = FakeSlurm({"w2": FakeNode()})
    now = running(serving(2), asked=(decommission(),))
    sealed = AdapterError("vault_sealed", "Vault is sealed", "retryable")
    for _ in range(60):
        plan = decide(now)
        if of_kind(plan.steps, ForgetSecrets):
            break
        for step in plan.before_play:
            now = now.after(step)
        now = slurm.run(now, plan.play) if plan.play else now
    now, steps, play = settle(now.later(not_forgotten=sealed), decide)
    assert play is None and now.instance.status == "deleting" and not of_kind(steps, Finish)
    assert [reason["code"] for reason in now.instance.status_detail["reasons"]] == ["vault_sealed"]  # type: ignore[index]
    now, _, _ = tick(now.later(not_forgotten=None, played=frozenset()), slurm)
    assert now.instance.status == "deleted"


def test_a_deletion_by_the_platform_uses_default_terms_and_the_instances_id() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, steps, _ = tick(deleting(running(one)), slurm)
    assert slurm.nodes["w2"].reason == f"gpuaas:{now.instance.id}: decommission requested"
    assert "apps.instance.deleting" not in {step.kind for step in of_kind(steps, Announce)}, (
        "the platform has announced it"
    )
    slurm.nodes["w2"].jobs.clear()
    now, _, _ = tick(now, slurm)
    assert now.instance.status == "deleted"


def test_every_other_open_operation_ends_because_the_instance_does() -> None:
    one, other = serving(2), serving(3)
    slurm = FakeSlurm({"w2": FakeNode({7}), "w3": FakeNode()})
    restart = ask_whole("restart")
    now = running(one, other, asked=(restart,), operations=(ask("remove", one), add(5)))
    now, steps, _ = tick(deleting(now), slurm)
    assert {refusal.code for refusal in of_kind(steps, Refuse)} == {"instance_deleting"}
    assert now.operations == () and now.instance_operations == ()


def test_a_decommission_goes_ahead_of_what_has_not_begun() -> None:
    slurm = FakeSlurm({"w2": FakeNode()})
    restart = ask_whole("restart")
    now, steps, _ = tick(running(serving(2), asked=(restart, decommission(age=5))), slurm)
    assert now.instance.status == "deleted"
    assert [refusal.code for refusal in of_kind(steps, Refuse)] == ["instance_deleting"]


# -- jobs ----------------------------------------------------------------------------------------------------


def test_jobs_are_waited_for_tick_after_tick_while_idle_workers_go() -> None:
    busy, idle = serving(2), serving(3)
    slurm = FakeSlurm({"w2": FakeNode({7}), "w3": FakeNode()})
    now = running(busy, idle, asked=(decommission(),))
    for _ in range(3):
        now, _, _ = tick(now, slurm, seconds=86_400)
        assert the(now, busy).status == "draining" and the(now, idle).status == "deleted"
        assert ctl(now).status == "ready" and slurm.nodes["w2"].jobs == {7}
    assert "job 7" in now.instance.status_detail["reasons"][0]["message"]  # type: ignore[index]
    slurm.nodes["w2"].jobs.clear()
    now, _, _ = tick(now, slurm)
    assert now.instance.status == "deleted"


def test_at_the_deadline_jobs_are_cancelled_if_that_was_asked_for() -> None:
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now = running(serving(2), asked=(decommission(deadline_seconds=100, on_deadline="cancel"),))
    now, _, _ = tick(now, slurm)
    now, _, _ = tick(now, slurm)
    assert slurm.nodes["w2"].jobs == {7}, "60 s: not yet"
    now, _, plays = tick(now, slurm)
    assert [play.work["cancel"] for play in plays if play.work.get("cancel")] == [["7"]]
    assert now.instance.status == "deleting" and set(slurm.nodes["w2"].ending) == {7}
    now, _, _ = tick(now, slurm)
    assert now.instance.status == "deleted" and slurm.cleaned_with_jobs == []


@pytest.mark.parametrize("policy", [{}, {"on_deadline": "give_up"}])
def test_give_up_at_the_deadline_fails_the_operation_and_ends_no_job(policy: Any) -> None:
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now = running(serving(2), asked=(decommission(deadline_seconds=0, **policy),))
    now, steps, _ = tick(now, slurm)
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error["code"]) == ("failed", "drain_deadline")
    assert now.instance.status == "deleting" and slurm.nodes["w2"].jobs == {7}
    now, _, _ = tick(now, slurm)
    slurm.nodes["w2"].jobs.clear()
    now, _, _ = tick(now, slurm)
    assert now.instance.status == "deleted"


def test_a_waiting_job_or_a_reservation_does_not_keep_a_cluster_that_goes_as_a_whole() -> None:
    slurm = FakeSlurm({"w2": FakeNode()}, pending_on={11: "w2"}, reservations={"maint": "w2"})
    now, _, _ = tick(running(serving(2), asked=(decommission(),)), slurm)
    assert now.instance.status == "deleted"


# -- who asks twice --------------------------------------------------------------------------------------------


def test_a_second_decommission_joins_the_first_and_shortens_nothing() -> None:
    slurm = FakeSlurm({"w2": FakeNode({7})})
    first, second = decommission(), decommission(age=5, deadline_seconds=0, on_deadline="cancel")
    now, _, _ = tick(running(serving(2), asked=(first, second)), slurm)
    now, _, _ = tick(now, slurm)
    assert slurm.nodes["w2"].jobs == {7} and len(now.instance_operations) == 2
    slurm.nodes["w2"].jobs.clear()
    now, steps, _ = tick(now, slurm)
    assert {(one.operation.id, one.status) for one in of_kind(steps, Finish)} == {
        (first.id, "succeeded"),
        (second.id, "succeeded"),
    }


def test_who_asks_later_of_an_instance_that_is_deleting_already_counts_from_then() -> None:
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, _, _ = tick(deleting(running(serving(2))), slurm, seconds=7200)
    now = now.later(instance_operations=(decommission(deadline_seconds=100, on_deadline="cancel"),))
    now, _, _ = tick(now, slurm)
    assert slurm.nodes["w2"].jobs == {7}, "two hours have passed, but not since it was asked for"
    for _ in range(3):
        now, _, _ = tick(now, slurm)
    assert now.instance.status == "deleted"


def test_cancelling_it_calls_off_the_deadline_and_not_the_teardown() -> None:
    slurm = FakeSlurm({"w2": FakeNode({7})})
    asked = decommission(deadline_seconds=100, on_deadline="cancel", keep_logs=True)
    now, _, _ = tick(running(serving(2), asked=(asked,)), slurm)
    now, _, _ = tick(now.later(instance_operations=()), slurm, seconds=3600)
    now, _, _ = tick(now, slurm)
    assert now.instance.status == "deleting" and slurm.nodes["w2"].jobs == {7}
    slurm.nodes["w2"].jobs.clear()
    now, _, plays = tick(now, slurm)
    assert now.instance.status == "deleted"
    assert all(play.terms["decommission_keep_logs"] for play in plays if play.playbook == "decommission")


def test_homes_go_only_while_the_valid_terms_ask_for_it() -> None:
    for asked, whose in ((decommission(remove_homes=True), 2), (decommission(), 0)):
        slurm = FakeSlurm({"w2": FakeNode()})
        now, _, plays = tick(running(serving(2), asked=(asked,)), slurm)
        cleaning = [play.terms["decommission_homes_of"] for play in plays if play.playbook == "decommission"]
        assert now.instance.status == "deleted" and sum(map(len, cleaning)) == whose
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, _, _ = tick(running(serving(2), asked=(decommission(remove_homes=True),)), slurm)
    slurm.nodes["w2"].jobs.clear()
    now, _, plays = tick(now.later(instance_operations=()), slurm)
    assert now.instance.status == "deleted"
    assert [play.terms["decommission_homes_of"] for play in plays if play.playbook == "decommission"] == [[], []]


# -- whose it is -----------------------------------------------------------------------------------------------


def other_runner(now: World) -> World:
    return now.later(runner_id="another-runner", played=frozenset(), outcomes={}, snapshot=None)


@pytest.mark.parametrize("asked", [(), (decommission(),)])
def test_two_runners_are_kept_apart_with_an_operation_and_without(asked: tuple[Operation, ...]) -> None:
    now = running(serving(2), asked=asked)
    now, steps, play = settle(now if asked else deleting(now), decide)
    assert play and of_kind(steps, Claim)
    _, steps, play = settle(other_runner(now), decide)
    assert play is None and all(isinstance(step, Wait) for step in steps)


def test_a_runner_that_was_killed_is_taken_over_from_when_its_lease_runs_out() -> None:
    slurm = FakeSlurm({"w2": FakeNode()})
    now, _, play = settle(running(serving(2), asked=(decommission(),)), decide)
    assert play
    now = slurm.run(now, play)
    now, _, play = settle(now, decide)  # drained; killed in the middle of cleaning
    assert play and play.playbook == "decommission"
    later = other_runner(slurm.run(now, play)).later(now=now.now + timedelta(minutes=5))
    now, _, _ = tick(later, slurm)
    assert now.instance.status == "deleted"


def test_work_that_another_runner_holds_is_waited_for_before_anything_is_torn_down() -> None:
    slurm = FakeSlurm({"w2": FakeNode()})
    now, steps, plays = tick(
        running(serving(2), asked=(decommission(),), operations=(claimed_by_another(add(5)),)), slurm, seconds=120
    )
    assert not plays and not of_kind(steps, Refuse)
    now, _, _ = tick(now, slurm)
    assert now.instance.status == "deleted"


@pytest.mark.parametrize(
    "parameters",
    [
        {"force": True},
        {"deadline_seconds": -1},
        {"deadline_seconds": "10"},
        {"on_deadline": "cancel"},
        {"deadline_seconds": 1, "on_deadline": "requeue"},
        {"keep_logs": "yes"},
        {"remove_homes": "yes"},
        {"reason": "x\nNodeName=evil"},
    ],
)
def test_terms_that_cannot_be_used_are_refused_and_touch_nothing(parameters: Any) -> None:
    for now in (running(serving(2)), deleting(running(serving(2)))):
        plan = decide(now.later(instance_operations=(decommission(**parameters),)))
        (refusal,) = of_kind(plan.steps, Refuse)
        assert refusal.code == "parameters_invalid" and plan.play is None
