"""A whole instance on its way out: what is done for which world, tick by tick, on a cluster in mind."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.model.plan import (
    AdapterError,
    Announce,
    Claim,
    Finish,
    ForgetSecrets,
    Play,
    Refuse,
    SetInstance,
    Step,
    Wait,
)
from runner.model.platform import Member, Operation
from runner.model.world import Outcome, World
from runner.slurm.decide import decide
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, cluster, serving, the, tick
from tests.unit.worlds import NOW, add, controller, instance, of_kind, settle, worker, world


def decommission(age: int = 0, **parameters: Any) -> Operation:
    return Operation(
        id=uuid4(),
        operation="decommission",
        parameters=parameters,
        status="accepted",
        correlation_id="corr-3",
        created_at=NOW + timedelta(seconds=age),
        of_instance=True,
    )


def running(*members: Member, asked: tuple[Operation, ...] = (), operations: tuple[Operation, ...] = ()) -> World:
    now = cluster(*members, operations=operations)
    known = {"controller_hostname": "ctl", "phase": "serving", "host_touched": True}
    served = controller(status="ready", adapter_detail=known)
    return now.later(members=(served, *members), instance_operations=asked)


def deleting(now: World) -> World:
    """As the platform does it when a person deletes the instance."""
    return now.later(instance=now.instance.model_copy(update={"status": "deleting"}))


def released(now: World, number: int, status: str = "released") -> World:
    gone = now.allocations[UUID(int=100 + number)].model_copy(update={"status": status})
    return now.later(allocations={**now.allocations, gone.id: gone})


def ctl(now: World) -> Member:
    return next(one for one in now.members if one.component_key == "controller")


def books(plays: list[Play]) -> list[str]:
    return [play.playbook for play in plays]


# -- the plain scenario -----------------------------------------------------------------------------------------


def test_an_idle_cluster_is_drained_cleaned_forgotten_and_gone_in_one_tick() -> None:
    one, other = serving(2), serving(3)
    slurm = FakeSlurm({"w2": FakeNode(), "w3": FakeNode()})
    asked = decommission(reason="end of the project")
    now, steps, plays = tick(running(one, other, asked=(asked,)), slurm)
    assert books(plays) == ["drain_worker", "decommission", "decommission"]
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
    plan = decide(now)
    for _ in range(60):
        plan = decide(now)
        if of_kind(plan.steps, ForgetSecrets):
            break
        now, _, play = settle_one(now, plan)
        now = slurm.run(now, play) if play else now
    now, steps, play = settle(now.later(not_forgotten=sealed), decide)
    assert play is None and now.instance.status == "deleting" and not of_kind(steps, Finish)
    assert [reason["code"] for reason in now.instance.status_detail["reasons"]] == ["vault_sealed"]  # type: ignore[index]
    now, _, _ = tick(now.later(not_forgotten=None, played=frozenset()), slurm)
    assert now.instance.status == "deleted"


def settle_one(now: World, plan: Any) -> tuple[World, list[Step], Play | None]:

    for step in plan.writes:
        now = now.after(step)
    return now, list(plan.steps), plan.play


def test_a_deletion_by_the_platform_uses_default_terms_and_the_instances_id() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, steps, _ = tick(deleting(running(one)), slurm)
    assert slurm.nodes["w2"].reason == f"gpuaas:{now.instance.id}: decommission asked for"
    assert "apps.instance.deleting" not in {step.kind for step in of_kind(steps, Announce)}, (
        "the platform has announced it"
    )
    slurm.nodes["w2"].jobs.clear()
    now, _, _ = tick(now, slurm)
    assert now.instance.status == "deleted"


def test_every_other_open_operation_ends_because_the_instance_does() -> None:
    one, other = serving(2), serving(3)
    slurm = FakeSlurm({"w2": FakeNode({7}), "w3": FakeNode()})
    restart = decommission().model_copy(update={"operation": "restart"})
    now = running(one, other, asked=(restart,), operations=(ask("remove", one), add(5)))
    now, steps, _ = tick(deleting(now), slurm)
    assert {refusal.code for refusal in of_kind(steps, Refuse)} == {"instance_deleting"}
    assert now.operations == () and now.instance_operations == ()


def test_a_decommission_goes_ahead_of_what_has_not_begun() -> None:
    slurm = FakeSlurm({"w2": FakeNode()})
    restart = decommission().model_copy(update={"operation": "restart"})
    now, steps, _ = tick(running(serving(2), asked=(restart, decommission(age=5))), slurm)
    assert now.instance.status == "deleted"
    assert [refusal.code for refusal in of_kind(steps, Refuse)] in (["instance_deleting"], ["operation_unknown"])


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


def test_homes_go_only_while_the_terms_that_hold_say_so() -> None:
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


# -- half deployed, lost, silent -------------------------------------------------------------------------------


def test_an_instance_that_nobody_has_begun_to_build_is_gone_at_once() -> None:
    slurm = FakeSlurm()
    operation = add(2, 3)
    now = world(operations=(operation,), instance_operations=(decommission(),))
    now, steps, plays = tick(now, slurm)
    assert now.instance.status == "deleted"
    assert books(plays) == ["decommission"], "its host is asked, since a record can be behind"
    assert [refusal.operation.id for refusal in of_kind(steps, Refuse)] == [operation.id]


@pytest.mark.parametrize("status", ["requested", "reconciling", "failed"])
def test_a_half_deployed_instance_is_cleaned_without_asking_a_controller(status: str) -> None:
    operation = add(2)
    known = {"phase": "accounting", "host_touched": True}
    members = (controller(status=status, adapter_detail=known), worker(operation, 2, status="requested"))
    slurm = FakeSlurm()
    now = world(members=members, operations=(operation,), instance_operations=(decommission(),))
    now, _, plays = tick(now.later(instance=instance(status="failed")), slurm)
    assert now.instance.status == "deleted" and books(plays) == ["decommission", "decommission"]
    assert slurm.cleaned == ["w2", "ctl"]


def test_a_stopped_cluster_goes_without_being_started() -> None:
    note = {"stopped": {"was": "ready", "phase": "serving"}, "phase": "stopped"}
    one = serving(2, status="requested", adapter_detail=note)
    known = note | {"controller_hostname": "ctl", "host_touched": True}
    now = running(one, asked=(decommission(),)).later(
        instance=instance(status="stopped"), members=(controller(status="requested", adapter_detail=known), one)
    )
    slurm = FakeSlurm({"w2": FakeNode()}, answers=False)
    now, _, plays = tick(now, slurm)
    assert now.instance.status == "deleted" and books(plays) == ["decommission", "decommission"]


def test_a_host_that_was_never_touched_and_never_answers_holds_nobody_up() -> None:
    members = (controller(status="failed", adapter_detail={"phase": "preflight", "attempt": 3}),)
    slurm = FakeSlurm(hosts_down={"ctl"})
    now, _, _ = tick(world(members=members, instance_operations=(decommission(),)), slurm)
    assert now.instance.status == "deleted"
    assert ctl(now).adapter_detail["host_cleaned"] is False and "ever set up" in ctl(now).adapter_detail["host_left"]


@pytest.mark.parametrize("status", ["released", "failed", "releasing", "release_failed"])
def test_a_lost_controller_does_not_keep_the_workers_hosts(status: str) -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, answers=False, hosts_down={"ctl"})
    now, _, plays = tick(released(running(one, asked=(decommission(),)), 1, status), slurm)
    assert the(now, one).status == "deleted" and slurm.cleaned == ["w2"]
    assert all(member.component_key == "worker" for play in plays for member in play.members), "it is not dialled"
    if status == "released":
        assert now.instance.status == "deleted" and ctl(now).adapter_detail["host_cleaned"] is False
    else:
        assert ctl(now).status == "deleting" and now.instance.status == "deleting"


def test_a_silent_controller_is_waited_for_and_then_done_without() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, answers=False, hosts_down={"ctl"})
    now = running(one, asked=(decommission(host_patience_seconds=100),))
    for _ in range(2):
        now, _, plays = tick(now, slurm)
        assert books(plays) == ["drain_worker"] and the(now, one).status == "draining"
        assert [reason["code"] for reason in now.instance.status_detail["reasons"]] == ["controller_silent"]  # type: ignore[index]
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "deleted"
    assert ctl(now).status == "deleting" and "ctl is out of reach" in str(now.instance.status_detail)
    slurm.answers, slurm.hosts_down = True, set()
    now, _, _ = tick(now, slurm)
    assert now.instance.status == "deleted" and ctl(now).adapter_detail["host_cleaned"] is True


def test_a_job_on_a_host_is_not_ended_because_its_controller_is_lost() -> None:
    slurm = FakeSlurm({"w2": FakeNode({7})}, answers=False)
    now = released(running(serving(2), asked=(decommission(),)), 1)
    for _ in range(5):
        now, _, _ = tick(now, slurm, seconds=3600)
    assert slurm.nodes["w2"].jobs == {7} and now.instance.status == "deleting"
    assert now.instance_operations, "it is waited for, not given up"
    slurm.nodes["w2"].jobs.clear()
    now, _, _ = tick(now, slurm)
    assert now.instance.status == "deleted"


def test_jobs_that_only_the_host_reports_are_waited_for_a_bounded_number_of_times() -> None:
    one, other = serving(2), serving(3)
    slurm = FakeSlurm({"w2": FakeNode(), "w3": FakeNode()})
    clean = slurm._clean

    def lies(play: Play, member: Member) -> Outcome:
        if member.id != one.id:
            return clean(play, member)
        return Outcome("stopping", {}, AdapterError("jobs_on_host", "a job runs", "retryable", host="w2"))

    slurm._clean = lies  # type: ignore[method-assign]
    now = running(one, other, asked=(decommission(),))
    for _ in range(now.policy.max_attempts - 1):
        now, _, _ = tick(now, slurm)
        assert the(now, one).status == "deleting" and now.instance_operations
    now, steps, _ = tick(now, slurm)
    assert the(now, one).status == "failed" and now.instance_operations == ()
    assert [finish.error["code"] for finish in of_kind(steps, Finish)] == ["jobs_on_host"]
    assert ctl(now).status == "deleted", "the others continue without it"


def test_a_silent_worker_does_not_hold_up_the_rest_and_is_named() -> None:
    silent, other = serving(2), serving(3)
    slurm = FakeSlurm({"w2": FakeNode(), "w3": FakeNode()}, hosts_down={"w2"})
    now, steps, _ = tick(running(silent, other, asked=(decommission(host_patience_seconds=0),)), slurm)
    assert slurm.cleaned == ["w3", "ctl"]
    assert the(now, silent).status == "deleting" and now.instance.status == "deleting"
    (reason,) = now.instance.status_detail["reasons"]  # type: ignore[index]
    assert (reason["code"], reason["member_id"]) == ("host_unreachable", str(silent.id)) and "w2" in reason["message"]
    assert of_kind(steps, ForgetSecrets) and not of_kind(steps, Finish)
    now, steps, _ = tick(now, slurm, seconds=864_000)
    assert the(now, silent).status == "deleting", "no request allows to abandon it"
    assert not of_kind(steps, ForgetSecrets), "they are gone already"
    slurm.hosts_down = set()
    now, _, _ = tick(now, slurm)
    assert now.instance.status == "deleted" and the(now, silent).adapter_detail["host_cleaned"] is True


def test_a_silent_worker_is_abandoned_only_on_request_and_after_patience() -> None:
    silent = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, hosts_down={"w2"})
    asked = decommission(abandon_unreachable=True, host_patience_seconds=100)
    now, _, _ = tick(running(silent, asked=(asked,)), slurm)
    now, _, _ = tick(now, slurm)
    assert the(now, silent).status == "deleting"
    now, steps, _ = tick(now, slurm)
    gone = the(now, silent)
    assert gone.status == "deleted" and gone.adapter_detail["host_cleaned"] is False
    assert "abandoned" in gone.adapter_detail["host_left"]
    (finish,) = of_kind(steps, Finish)
    assert finish.result["members"][str(silent.id)]["host_cleaned"] is False


def test_a_silent_worker_ends_when_its_allocation_is_released() -> None:
    silent = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, hosts_down={"w2"})
    now, _, _ = tick(running(silent, asked=(decommission(),)), slurm)
    now, _, plays = tick(released(now, 2), slurm)
    assert now.instance.status == "deleted" and not plays
    assert the(now, silent).adapter_detail["host_left"] == "its allocation is released"


# -- residue ---------------------------------------------------------------------------------------------------


def test_residue_fails_the_member_and_the_next_decommission_retries() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, residue={"w2": ["path /etc/munge"]})
    now, steps, _ = tick(running(one, asked=(decommission(),)), slurm)
    member = the(now, one)
    assert member.status == "failed" and member.adapter_detail["residue"] == ["path /etc/munge"]
    assert ctl(now).status == "deleted" and now.instance.status == "deleting"
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error["code"]) == ("failed", "residue_left")
    now, steps, plays = tick(now, slurm)
    assert not plays and the(now, one).status == "failed", "a person has to see to it"
    slurm.residue.clear()
    now, steps, _ = tick(now.later(instance_operations=(decommission(age=9),)), slurm)
    assert now.instance.status == "deleted"
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]


def test_a_fault_that_may_pass_is_tried_again_a_bounded_number_of_times() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, residue={"w2": ["x"]})
    slurm_clean = slurm._clean

    def busy(play: Play, member: Member) -> Any:
        cleaned = slurm_clean(play, member)
        if cleaned.error:
            from dataclasses import replace

            return replace(cleaned, error=AdapterError("package_lock_busy", "apt is busy", "retryable", host="w2"))
        return cleaned

    slurm._clean = busy  # type: ignore[method-assign]
    now = running(one, asked=(decommission(),))
    for _ in range(2):
        now, _, _ = tick(now, slurm)
        assert the(now, one).status == "deleting" and now.instance_operations
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "failed" and now.instance_operations == ()


def test_a_deadline_for_jobs_is_no_deadline_for_anything_else() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, hosts_down={"w2"})
    now, steps, _ = tick(running(one, asked=(decommission(deadline_seconds=0),)), slurm)
    assert not of_kind(steps, Finish) and now.instance_operations, "nothing runs on it: only its host does not answer"


def test_a_member_of_no_component_of_ours_holds_nothing_up() -> None:
    stranger = serving(4).model_copy(update={"component_key": "gpu-dashboard"})
    now, _, _ = tick(running(stranger, asked=(decommission(),)), FakeSlurm())
    assert now.instance.status == "deleted"


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
    theirs = add(5).model_copy(
        update={"status": "running", "claimed_by": "other", "lease_expires_at": NOW + timedelta(seconds=90)}
    )
    slurm = FakeSlurm({"w2": FakeNode()})
    now, steps, plays = tick(running(serving(2), asked=(decommission(),), operations=(theirs,)), slurm, seconds=120)
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


# -- by property -----------------------------------------------------------------------------------------------

TERMS: list[dict[str, Any]] = [
    {},
    {"deadline_seconds": 90, "on_deadline": "cancel"},
    {"deadline_seconds": 90},
    {"abandon_unreachable": True, "host_patience_seconds": 90},
    {"host_patience_seconds": 0},
]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_worker_is_cleaned_under_a_job_that_the_terms_keep(data: st.DataObject) -> None:
    members = [serving(number) for number in (2, 3)]
    slurm = FakeSlurm({f"w{number}": FakeNode() for number in (2, 3)})
    now = running(*members)
    now = deleting(now) if data.draw(st.booleans()) else now.later(instance_operations=(decommission(),))
    may_end_jobs = False
    for age in range(data.draw(st.integers(1, 6))):
        for fake in slurm.nodes.values():
            happening = data.draw(st.sampled_from(["nothing", "job starts", "jobs end", "person resumes"]))
            if happening == "job starts" and fake.reason is None:
                fake.jobs.add(age + 1)
            elif happening == "jobs end":
                fake.jobs.clear()
            elif happening == "person resumes":
                fake.reason = None
        slurm.answers = data.draw(st.integers(0, 2)) > 0
        slurm.hosts_down = set(data.draw(st.lists(st.sampled_from(["ctl", "w2", "w3"]), max_size=2)))
        if now.instance_operations and data.draw(st.integers(0, 3)) == 0:
            now = now.later(instance_operations=now.instance_operations[1:])  # a person cancels one
        if now.instance.status != "deleted" and data.draw(st.integers(0, 2)) == 0:
            terms = data.draw(st.sampled_from(TERMS))
            may_end_jobs = may_end_jobs or terms.get("on_deadline") == "cancel"
            now = now.later(instance_operations=(*now.instance_operations, decommission(age=age, **terms)))
        had = {name: set(fake.jobs) for name, fake in slurm.nodes.items()}
        now, _, plays = tick(now, slurm)
        if not may_end_jobs:
            assert slurm.cleaned_with_jobs == [] and not any(play.work.get("cancel") for play in plays)
            assert all(had[name] <= fake.jobs for name, fake in slurm.nodes.items())
            assert all(not jobs for name, jobs in had.items() if name not in slurm.nodes)
    slurm.answers, slurm.hosts_down = True, set()
    for fake in slurm.nodes.values():
        fake.jobs.clear()
    for _ in range(4):
        if now.instance.status in ("deleting", "running"):
            now = now if now.instance_operations else deleting(now)
            now, _, _ = tick(now, slurm, seconds=700)
    assert now.instance.status == "deleted" and now.instance_operations == ()
    assert {member.status for member in now.members} == {"deleted"}
