"""A failed deploy that is tried again: what is there stays, what failed gets new attempts, and it ends either way."""

from typing import Any
from uuid import UUID

import pytest

from runner.model.plan import AdapterError, Announce, Finish, Refuse, SetMember
from runner.model.platform import Member, Operation
from runner.model.world import World
from runner.slurm.decide import decide
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask_whole, cluster, note_of, playbooks, serving, the, tick
from tests.unit.worlds import add, allocation, not_found, of_kind, world

BROKEN = AdapterError("credential_unavailable", "the credential was revoked")
PASSING = AdapterError("package_install_failed", "the mirror is away", "retryable")


def failed_deploy(slurm: FakeSlurm, error: AdapterError = BROKEN, *, workers: bool = True) -> World:
    """As the runner leaves it: the controller failed, and with it everything that was asked for."""
    operations = (add(2, 3, id=UUID(int=0xADD)),) if workers else ()
    slurm.ctl_error = error
    now = world(operations=operations)
    for _ in range(6):
        now, _, _ = tick(now, slurm, seconds=400)
    assert now.instance.status == "failed" and now.operations == ()
    assert {one.status for one in now.members} == {"failed"}
    return now


def asked(now: World, **changes: Any) -> tuple[World, Operation]:
    operation = ask_whole("retry", **changes)
    return now.later(instance_operations=(operation,)), operation


def workers_of(now: World) -> list[Member]:
    return [one for one in now.members if one.component_key == "worker"]


def test_a_failed_deploy_is_brought_to_its_end() -> None:
    slurm = FakeSlurm()
    now, operation = asked(failed_deploy(slurm))
    slurm.ctl_error = None
    now, steps, plays = tick(now, slurm, seconds=1)
    assert playbooks(plays) == ["deploy"] and len(plays[0].members) == 3, "one run, as in the deploy"
    assert {kind for kind, _ in plays[0].acts} == {"join"}
    assert now.instance.status == "running" and {one.status for one in now.members} == {"ready"}
    (finish,) = of_kind(steps, Finish)
    assert (finish.operation.id, finish.status) == (operation.id, "succeeded") and finish.operation.of_instance
    assert len(finish.result["members"]) == 2
    assert [one.kind for one in of_kind(steps, Announce)] == ["apps.instance.running"]
    assert note_of(now)["result"] == "done"
    assert all(one.adapter_detail["attempt"] == 0 for one in now.members), "attempts were counted anew"
    assert tick(now, slurm, seconds=1)[2] == [], "nothing is left to do"


def test_members_that_are_ready_are_kept() -> None:
    slurm = FakeSlurm({"w2": FakeNode(jobs={7})})
    there = serving(2)
    lost = serving(3, status="failed", adapter_detail={"attempt": 3, "worker_hostname": None})
    now = cluster(there, lost)
    failed = now.instance.model_copy(update={"status": "failed", "health": "unhealthy"})
    now, _ = asked(now.later(instance=failed))
    now, steps, plays = tick(now, slurm)
    assert playbooks(plays) == ["add_worker"] and ("join", lost.id) in plays[0].acts
    assert there.id not in {member.id for play in plays for member in play.members}
    assert not [step for step in of_kind(steps, SetMember) if step.member.id == there.id and step.status != "ready"]
    assert slurm.nodes["w2"].jobs == {7} and the(now, lost).status == "ready"
    assert now.instance.status == "running"


def test_a_deploy_that_fails_again_ends_the_operation_with_the_reason() -> None:
    slurm = FakeSlurm()
    now, operation = asked(failed_deploy(slurm))
    now, steps, _ = tick(now, slurm)
    assert now.instance.status == "failed" and now.instance_operations == ()
    (refused,) = of_kind(steps, Refuse)
    assert (refused.operation.id, refused.code) == (operation.id, "credential_unavailable")
    assert refused.operation.of_instance and {one.status for one in now.members} == {"failed"}
    assert tick(now, slurm)[1] == []


def test_a_controller_alone_that_fails_again_ends_the_operation_too() -> None:
    slurm = FakeSlurm()
    now, operation = asked(failed_deploy(slurm, workers=False))
    now, steps, _ = tick(now, slurm)
    assert now.instance.status == "failed" and now.instance_operations == ()
    assert [(one.operation.id, one.code) for one in of_kind(steps, Refuse)] == [(operation.id, BROKEN.code)]
    now, _ = asked(now)
    slurm.ctl_error = None
    now, steps, _ = tick(now, slurm)
    assert now.instance.status == "running" and [one.status for one in of_kind(steps, Finish)] == ["succeeded"]


def test_what_may_pass_is_tried_as_often_as_in_a_deploy() -> None:
    slurm = FakeSlurm()
    now, _ = asked(failed_deploy(slurm, PASSING))
    now, _, plays = tick(now, slurm, seconds=400)
    assert playbooks(plays) == ["deploy"] and now.instance.status == "deploying" and now.instance_operations != ()
    now, _, _ = tick(now, slurm, seconds=400)
    slurm.ctl_error = None
    now, steps, _ = tick(now, slurm)
    assert now.instance.status == "running" and of_kind(steps, Finish)


def test_a_worker_that_fails_again_is_named_and_the_rest_serves() -> None:
    slurm = FakeSlurm()
    now, _ = asked(failed_deploy(slurm))
    slurm.ctl_error, slurm.hosts_down = None, {"w3"}
    for _ in range(4):
        now, steps, _ = tick(now, slurm, seconds=400)
        if now.instance_operations == ():
            break
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, (finish.error or {})["code"]) == ("failed", "partly_failed")
    assert sorted(one.status for one in workers_of(now)) == ["failed", "ready"]
    assert (now.instance.status, now.instance.health) == ("running", "degraded")


@pytest.mark.parametrize("gone", [not_found(3), allocation(3, status="released")], ids=["not found", "released"])
def test_a_worker_whose_machine_is_gone_fails_alone(gone: Any) -> None:
    slurm = FakeSlurm()
    now, _ = asked(failed_deploy(slurm))
    slurm.ctl_error = None
    now, steps, _ = tick(now.later(allocations={**now.allocations, gone.id: gone}), slurm)
    (finish,) = of_kind(steps, Finish)
    assert (finish.error or {})["code"] == "partly_failed"
    assert {one.allocation_id: one.status for one in workers_of(now)} == {UUID(int=102): "ready", gone.id: "failed"}
    assert now.instance.status == "running"


@pytest.mark.parametrize("status", ["requested", "deploying", "running", "stopped", "deleting"])
def test_only_a_failed_deploy_is_tried_again(status: str) -> None:
    now = cluster(serving(2))
    now, operation = asked(now.later(instance=now.instance.model_copy(update={"status": status})))
    steps = list(decide(now).steps)
    refused = [step for step in of_kind(steps, Refuse) if step.operation.id == operation.id]
    assert [step.code for step in refused] == ["instance_deleting" if status == "deleting" else "instance_state"]


def test_parameters_are_refused_and_nothing_changes() -> None:
    before, _ = asked(failed_deploy(FakeSlurm()), parameters={"force": True})
    now, steps, plays = tick(before, FakeSlurm())
    assert [step.code for step in of_kind(steps, Refuse)] == ["parameters_invalid"] and plays == []
    assert now.members == before.members and now.instance == before.instance


def test_a_cancelled_retry_leaves_a_deploy_that_goes_on() -> None:
    slurm = FakeSlurm()
    now, _ = asked(failed_deploy(slurm, PASSING))
    now, _, _ = tick(now, slurm, seconds=400)
    slurm.ctl_error = None
    now, _, _ = tick(now.later(instance_operations=()), slurm, seconds=400)
    now, _, _ = tick(now, slurm)
    assert now.instance.status == "running" and note_of(now)["result"] == "cancelled"
    codes = {(one.adapter_detail["last_adapter_error"] or {}).get("code") for one in workers_of(now)}
    assert codes == {"operation_ended"}


def test_operations_on_members_wait_for_a_retry() -> None:
    slurm = FakeSlurm()
    now, _ = asked(failed_deploy(slurm, PASSING))
    later = add(4)
    now, steps, _ = tick(now.later(operations=(later,)), slurm, seconds=400)
    assert [one.id for one in now.operations] == [later.id] and not of_kind(steps, Refuse)
    slurm.ctl_error = None
    for _ in range(2):
        now, _, _ = tick(now, slurm, seconds=400)
    assert now.operations == () and sum(one.status == "ready" for one in workers_of(now)) == 3
