"""Hosts of an instance that is decommissioned: half deployed, lost, out of reach, in use, or with something left."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from runner.model.plan import AdapterError, Finish, ForgetSecrets, Play, Refuse
from runner.model.platform import Member
from runner.model.world import Outcome, World
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import playbooks, serving, the, tick
from tests.unit.teardown import ctl, decommission, running
from tests.unit.worlds import add, controller, instance, of_kind, worker, world


def released(now: World, number: int, status: str = "released") -> World:
    gone = now.allocations[UUID(int=100 + number)].model_copy(update={"status": status})
    return now.later(allocations={**now.allocations, gone.id: gone})


# -- half deployed, lost, unreachable --------------------------------------------------------------------------


def test_an_instance_that_was_never_built_is_gone_at_once() -> None:
    slurm = FakeSlurm()
    operation = add(2, 3)
    now = world(operations=(operation,), instance_operations=(decommission(),))
    now, steps, plays = tick(now, slurm)
    assert now.instance.status == "deleted"
    assert playbooks(plays) == ["decommission"], "its host is asked, since a record can be behind"
    assert [refusal.operation.id for refusal in of_kind(steps, Refuse)] == [operation.id]


@pytest.mark.parametrize("status", ["requested", "reconciling", "failed"])
def test_a_half_deployed_instance_is_cleaned_without_asking_a_controller(status: str) -> None:
    operation = add(2)
    recorded = {"phase": "accounting", "host_touched": True}
    members = (controller(status=status, adapter_detail=recorded), worker(operation, 2, status="requested"))
    slurm = FakeSlurm()
    now = world(members=members, operations=(operation,), instance_operations=(decommission(),))
    now, _, plays = tick(now.later(instance=instance(status="failed")), slurm)
    assert now.instance.status == "deleted" and playbooks(plays) == ["decommission", "decommission"]
    assert slurm.cleaned == ["w2", "ctl"]


def test_a_stopped_cluster_goes_without_being_started() -> None:
    note = {"stopped": {"was": "ready", "phase": "serving"}, "phase": "stopped"}
    one = serving(2, status="requested", adapter_detail=note)
    recorded = note | {"controller_hostname": "ctl", "host_touched": True}
    now = running(one, asked=(decommission(),)).later(
        instance=instance(status="stopped"), members=(controller(status="requested", adapter_detail=recorded), one)
    )
    slurm = FakeSlurm({"w2": FakeNode()}, answers=False)
    now, _, plays = tick(now, slurm)
    assert now.instance.status == "deleted" and playbooks(plays) == ["decommission", "decommission"]


def test_a_host_that_was_never_touched_and_never_answers_delays_no_other() -> None:
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


def test_an_unreachable_controller_is_waited_for_and_then_done_without() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, answers=False, hosts_down={"ctl"})
    now = running(one, asked=(decommission(host_patience_seconds=100),))
    for _ in range(2):
        now, _, plays = tick(now, slurm)
        assert playbooks(plays) == ["drain_worker"] and the(now, one).status == "draining"
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

    def refusing(play: Play, member: Member) -> Outcome:
        if member.id != one.id:
            return clean(play, member)
        return Outcome("stopping", {}, AdapterError("jobs_on_host", "a job runs", "retryable", host="w2"))

    slurm._clean = refusing  # type: ignore[method-assign]
    now = running(one, other, asked=(decommission(),))
    for _ in range(now.policy.max_attempts - 1):
        now, _, _ = tick(now, slurm)
        assert the(now, one).status == "deleting" and now.instance_operations
    now, steps, _ = tick(now, slurm)
    assert the(now, one).status == "failed" and now.instance_operations == ()
    assert [finish.error["code"] for finish in of_kind(steps, Finish)] == ["jobs_on_host"]
    assert ctl(now).status == "deleted", "the others continue without it"


def test_an_unreachable_worker_does_not_hold_up_the_rest_and_is_named() -> None:
    unreachable, other = serving(2), serving(3)
    slurm = FakeSlurm({"w2": FakeNode(), "w3": FakeNode()}, hosts_down={"w2"})
    now, steps, _ = tick(running(unreachable, other, asked=(decommission(host_patience_seconds=0),)), slurm)
    assert slurm.cleaned == ["w3", "ctl"]
    assert the(now, unreachable).status == "deleting" and now.instance.status == "deleting"
    (reason,) = now.instance.status_detail["reasons"]  # type: ignore[index]
    assert (reason["code"], reason["member_id"]) == ("host_unreachable", str(unreachable.id))
    assert "w2" in reason["message"]
    assert of_kind(steps, ForgetSecrets) and not of_kind(steps, Finish)
    now, steps, _ = tick(now, slurm, seconds=864_000)
    assert the(now, unreachable).status == "deleting", "no request allows to abandon it"
    assert not of_kind(steps, ForgetSecrets), "they are gone already"
    slurm.hosts_down = set()
    now, _, _ = tick(now, slurm)
    assert now.instance.status == "deleted" and the(now, unreachable).adapter_detail["host_cleaned"] is True


def test_an_unreachable_worker_is_abandoned_only_on_request_and_after_patience() -> None:
    unreachable = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, hosts_down={"w2"})
    asked = decommission(abandon_unreachable=True, host_patience_seconds=100)
    now, _, _ = tick(running(unreachable, asked=(asked,)), slurm)
    now, _, _ = tick(now, slurm)
    assert the(now, unreachable).status == "deleting"
    now, steps, _ = tick(now, slurm)
    gone = the(now, unreachable)
    assert gone.status == "deleted" and gone.adapter_detail["host_cleaned"] is False
    assert "abandoned" in gone.adapter_detail["host_left"]
    (finish,) = of_kind(steps, Finish)
    assert finish.result["members"][str(unreachable.id)]["host_cleaned"] is False


def test_an_unreachable_worker_ends_when_its_allocation_is_released() -> None:
    unreachable = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, hosts_down={"w2"})
    now, _, _ = tick(running(unreachable, asked=(decommission(),)), slurm)
    now, _, plays = tick(released(now, 2), slurm)
    assert now.instance.status == "deleted" and not plays
    assert the(now, unreachable).adapter_detail["host_left"] == "its allocation is released"


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


def test_a_member_of_an_unknown_component_delays_nothing() -> None:
    foreign = serving(4).model_copy(update={"component_key": "gpu-dashboard"})
    now, _, _ = tick(running(foreign, asked=(decommission(),)), FakeSlurm())
    assert now.instance.status == "deleted"
