"""decide, by example: what is done for which world."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from runner.act.inventory import build
from runner.model.plan import AdapterError, Announce, Claim, Finish, NewMember, SetInstance, SetMember, Wait, stamp
from runner.model.world import Outcome
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from tests.unit.worlds import (
    ME,
    NOW,
    UNREACHABLE,
    add,
    after,
    allocation,
    claimed_by_us,
    controller,
    deployed,
    instance,
    joined,
    node,
    of_kind,
    settle,
    snapshot,
    worker,
    world,
)


def test_a_deploy_is_one_play_with_the_controller_and_all_its_workers() -> None:
    _, steps, play = settle(world(operations=(add(2, 3),)), decide)
    assert play is not None and play.playbook == "deploy"
    assert [member.component_key for member in play.members] == ["controller", "worker", "worker"]
    assert len(of_kind(steps, Claim)) == 2  # the controller's bootstrap and the operation
    assert len(of_kind(steps, NewMember)) == 2


def test_the_instance_is_deploying_before_any_host_is_touched() -> None:
    now, _, play = settle(world(operations=(add(2),)), decide)
    assert play is not None
    assert (now.instance.status, now.instance.health) == ("deploying", "progressing")


def test_a_deploy_ends_running_and_healthy_when_the_controller_shows_every_worker() -> None:
    now, _, play = settle(world(operations=(add(2, 3),)), decide)
    assert play is not None
    first, one, two = play.members
    outcomes = {first.id: Outcome("serving"), one.id: joined("w1"), two.id: joined("w2")}
    seen = snapshot({"w1": node(), "w2": node(state="MIXED")})
    end, steps, more = settle(after(now, play, outcomes, seen), decide)
    assert more is None
    assert (end.instance.status, end.instance.health) == ("running", "healthy")
    assert {member.status for member in end.members} == {"ready"}
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]
    assert [event.kind for event in of_kind(steps, Announce)] == ["apps.instance.running"]
    assert end.instance.access is not None and end.instance.access["controller"]["host"] == "10.0.0.1"


def test_one_broken_worker_leaves_the_others_ready_and_the_instance_degraded() -> None:
    now, _, play = settle(world(operations=(add(2, 3),)), decide)
    assert play is not None
    first, one, two = play.members
    broken = AdapterError("package_install_failed", "apt has no slurmd", "intervention", "worker-x", "install")
    outcomes = {first.id: Outcome("serving"), one.id: joined("w1"), two.id: Outcome("munge", {}, broken)}
    end, steps, _ = settle(after(now, play, outcomes, snapshot({"w1": node()})), decide)
    assert (end.instance.status, end.instance.health) == ("running", "degraded")
    by_id = {member.id: member for member in end.members}
    assert by_id[one.id].status == "ready"
    assert by_id[two.id].status == "failed"
    assert by_id[two.id].adapter_detail["last_adapter_error"]["code"] == "package_install_failed"
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "failed" and finish.error["code"] == "partly_failed"
    assert finish.result["members"][str(two.id)]["error"]["code"] == "package_install_failed"
    assert finish.result["members"][str(one.id)]["status"] == "ready"


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        (None, "controller_unknown"),
        ({}, "not_registered"),
        ({"w1": node(state="DOWN")}, "not_schedulable"),
        ({"w1": node(flags={"DRAIN"})}, "not_schedulable"),
        ({"w1": node(flags={"INVALID_REG"})}, "not_schedulable"),
        ({"w1": node(state="UNKNOWN")}, "not_schedulable"),
        ({"w1": node(cpus=1)}, "wrong_resources"),
        ({"w1": node(memory_mb=1)}, "wrong_resources"),
        ({"w1": node(gres="gpu:a100:4")}, "wrong_resources"),
    ],
)
def test_a_worker_is_ready_only_if_the_controller_shows_it_ready(shown: Any, code: str) -> None:
    operation = claimed_by_us(add(2))
    member = worker(operation, 2, adapter_detail={"attempt": 2})
    joined_now = deployed(member, operations=(operation,), outcomes={member.id: joined("w1")}, snapshot=snapshot(shown))
    (step,) = of_kind(decide(joined_now).steps, SetMember)
    assert step.status == "failed"
    assert step.detail["last_adapter_error"]["code"] == code


def test_a_worker_that_registers_after_the_plays_wait_is_ready_at_a_later_tick() -> None:
    operation = claimed_by_us(add(2))
    late = deployed(worker(operation, 2), operations=(operation,))
    late = late.later(outcomes={late.members[1].id: joined("w1")}, snapshot=snapshot({}))
    after_play, steps, _ = settle(late, decide)
    (waiting,) = (one for one in after_play.members if one.component_key == "worker")
    error = waiting.adapter_detail["last_adapter_error"]
    assert (waiting.status, error["code"], error["class"]) == ("reconciling", "not_registered", "retryable")
    assert waiting.adapter_detail["attempt"] == 1 and waiting.adapter_detail["next_attempt_at"] > stamp(NOW)
    assert of_kind(steps, Finish) == [], "the operation goes on"
    due = after_play.later(
        now=NOW + timedelta(seconds=31),
        outcomes={waiting.id: joined("w1")},
        snapshot=snapshot({"w1": node()}),
        played=frozenset(),
    )
    end, _, _ = settle(due, decide)
    assert {one.status for one in end.members} == {"ready"}


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        ({"slurmctld": "failed"}, "slurmctld_not_active"),
        ({"slurmdbd": "inactive"}, "slurmdbd_not_active"),
        ({"munge": None}, "munge_not_active"),
        ({"ping": "DOWN"}, "slurmctld_not_answering"),
        ({"config_version": None}, "config_unknown"),
        ({"submit_account": None}, "no_submit_account"),
    ],
)
def test_a_controller_is_ready_only_when_all_of_it_serves(seen: Any, code: str) -> None:
    held = controller(status="reconciling", adapter_detail={"claimed_by": ME, "attempt": 2})
    built = world(members=(held,), outcomes={held.id: Outcome("baseline")}, snapshot=snapshot({}, **seen))
    end, _, _ = settle(built, decide)
    assert end.members[0].status == "failed"
    assert end.members[0].adapter_detail["last_adapter_error"]["code"] == code
    assert (end.instance.status, end.instance.health) == ("failed", "unhealthy")


def test_an_error_that_may_pass_is_tried_again_later_and_a_bounded_number_of_times() -> None:
    operation = claimed_by_us(add(2))
    member = worker(operation, 2)
    first = deployed(member, operations=(operation,), outcomes={member.id: Outcome(error=UNREACHABLE)})
    (again,) = of_kind(decide(first).steps, SetMember)
    assert again.status == "reconciling"
    assert again.detail["attempt"] == 1
    assert again.detail["next_attempt_at"] == stamp(NOW + timedelta(seconds=30))
    tired = worker(operation, 2, status="reconciling", adapter_detail={"attempt": 2})
    last = deployed(tired, operations=(operation,), outcomes={tired.id: Outcome(error=UNREACHABLE)})
    (over,) = of_kind(decide(last).steps, SetMember)
    assert over.status == "failed"


def test_a_try_that_is_not_due_waits_and_reports_until_when() -> None:
    due = stamp(NOW + timedelta(seconds=10))
    operation = add(2, status="running", claimed_by="dead", lease_expires_at=NOW - timedelta(seconds=1))
    member = worker(operation, 2, status="reconciling", adapter_detail={"attempt": 1, "next_attempt_at": due})
    plan = decide(deployed(member, operations=(operation,)))
    assert plan.idle and due in plan.steps[0].why


def test_an_expired_lease_is_taken_over() -> None:
    operation = add(2, status="running", claimed_by="dead", lease_expires_at=NOW - timedelta(seconds=1))
    (claim,) = decide(deployed(operations=(operation,))).steps
    assert isinstance(claim, Claim)


def test_adding_to_a_running_cluster_plays_the_join_only() -> None:
    _, _, play = settle(deployed(operations=(add(4, 5), add(6))), decide)
    assert play is not None and play.playbook == "add_worker"
    assert len(play.members) == 4  # the controller is asked, three workers join, in one run


def test_an_allocation_on_its_way_is_waited_for() -> None:
    start = deployed(operations=(add(4),))
    start = start.later(allocations={**start.allocations, UUID(int=104): allocation(4, status="provisioning")})
    _, steps, play = settle(start, decide)
    assert play is None
    assert "provisioning" in of_kind(steps, Wait)[-1].why


def test_same_node_placement_puts_a_worker_on_the_controllers_host() -> None:
    intent = {
        "mode": "same_node",
        "controller_allocation_id": str(UUID(int=101)),
        "worker_allocation_ids": [str(UUID(int=101))],
    }
    _, _, play = settle(world(instance=instance(placement_intent=intent), operations=(add(1),)), decide)
    assert play is not None
    assert [member.allocation_id for member in play.members] == [UUID(int=101), UUID(int=101)]


def test_an_instance_without_changes_needs_no_step() -> None:
    assert decide(deployed()).steps == ()


def test_old_knowledge_is_looked_at_anew() -> None:
    old = {"observed_at": stamp(NOW - timedelta(seconds=46))}
    start = world(
        instance=instance(status="running", health="healthy", status_detail=old), members=(controller(status="ready"),)
    )
    _, _, play = settle(start, decide)
    assert play is not None and play.playbook == "observe"


def test_a_worker_the_controller_lost_makes_a_running_instance_degraded() -> None:
    operation = add(2)
    member = worker(operation, 2, status="ready", adapter_detail={"worker_hostname": "w1", "cpus": 2})
    other = worker(operation, 3, status="ready", adapter_detail={"worker_hostname": "w2", "cpus": 2})
    seen = snapshot({"w1": node(state="DOWN", reason="gone"), "w2": node()})
    played = frozenset({("look", UUID(int=0xC0 << 120)), ("repair", member.id)})
    end, steps, _ = settle(deployed(member, other, played=played, snapshot=seen), decide)
    assert end.instance.health == "degraded"
    assert "gone" in end.instance.status_detail["reasons"][0]["message"]  # type: ignore[index]
    assert of_kind(steps, SetInstance)


def test_a_cancelled_operation_leaves_no_member_half_way() -> None:
    member = worker(add(2), 2, status="reconciling")
    end, _, _ = settle(deployed(member), decide)
    assert [one.status for one in end.members if one.component_key == "worker"] == ["failed"]


def test_a_controller_that_can_be_looked_at_again_shows_no_old_error() -> None:
    mended = controller(status="ready", adapter_detail={"last_adapter_error": {"code": "host_unreachable"}})
    start = deployed(played=frozenset({("look", mended.id)}), snapshot=snapshot({}))
    end, _, _ = settle(start.later(members=(mended,)), decide)
    assert end.members[0].adapter_detail["last_adapter_error"] is None


def test_health_is_looked_at_while_an_operation_waits() -> None:
    old = {"observed_at": stamp(NOW - timedelta(days=1))}
    start = world(
        instance=instance(status="running", health="healthy", status_detail=old),
        members=(controller(status="ready"),),
        operations=(add(4),),
    )
    start = start.later(allocations={**start.allocations, UUID(int=104): allocation(4, status="provisioning")})
    _, _, play = settle(start, decide)
    assert play is not None and play.playbook == "observe"


@pytest.mark.parametrize("failing", [0, 40])
def test_the_result_for_many_workers_fits_what_the_platform_takes(failing: int) -> None:
    operation = claimed_by_us(add(*range(1, 9)))
    long = {"last_adapter_error": AdapterError("task_failed", "x" * 1000).as_note(NOW).stored()}
    members = [worker(operation, 10 + n, status="failed", adapter_detail=long) for n in range(failing)]
    members += [worker(operation, 100 + n, status="ready") for n in range(200)]
    operation = operation.model_copy(update={"allocation_ids": [member.allocation_id for member in members]})
    start = deployed(*members, operations=(operation,))
    start = start.later(allocations={one.allocation_id: allocation(1, id=one.allocation_id) for one in start.members})
    (finish,) = of_kind(decide(start).steps, Finish)
    assert len(json.dumps(finish.result)) < 16_000
    shown = finish.result["members"]
    assert len(shown) + finish.result["more_members"] == len(members)
    assert sum(one["status"] == "failed" for one in shown.values()) == min(failing, len(shown))


def test_a_cluster_that_runs_is_looked_at_and_served_whatever_became_of_its_config() -> None:
    old = {"observed_at": stamp(NOW - timedelta(days=1))}
    odd = {"slurm": {"Include": "elsewhere"}}
    start = world(
        instance=instance(status="running", health="healthy", status_detail=old, config=odd),
        members=(controller(status="ready"),),
    )
    _, _, play = settle(start, decide)
    assert play is not None and play.playbook == "observe"
    tree, problems = build(SLURM, start.instance, play.members, start.allocations)
    assert problems == {} and tree["all"]["hosts"]
