"""A stopped cluster is started: what is done for which world, tick by tick, on a cluster in memory."""

from typing import Any

import pytest

from runner.model.plan import AdapterError, Finish
from runner.slurm.decide import decide
from tests.unit.lifecycle import (
    ask,
    ask_whole,
    asked_of,
    both_ready,
    cluster,
    killed_in,
    note_of,
    reported,
    serving,
    the,
    tick,
    two_workers,
    when_stopped,
)
from tests.unit.worlds import UNREACHABLE, of_kind, settle


def test_start_brings_back_every_member_in_one_run_and_reports_its_progress() -> None:
    one, other = both_ready()
    slurm = two_workers()
    now = asked_of(when_stopped(slurm, one, other), ask_whole("start"))
    under_way, steps, play = settle(now, decide)
    assert reported(under_way) == ("deploying", "progressing", ["starting"])
    assert play and play.playbook == "deploy" and len(play.members) == 3 and play.terms == {"keep_drains": True}
    now, steps, _ = tick(now, slurm)
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "succeeded"
    assert {result["status"] for result in finish.result["members"].values()} == {"ready"}
    assert reported(now) == ("running", "healthy", [])
    assert {(m.status, m.adapter_detail["phase"]) for m in now.members} == {("ready", "serving")}


def test_a_cluster_can_be_stopped_and_started_again_and_again() -> None:
    slurm = two_workers()
    now = cluster(*both_ready())
    for age in range(3):
        now, _, _ = tick(asked_of(now, ask_whole("stop", age=age * 2)), slurm)
        assert now.instance.status == "stopped"
        now, _, _ = tick(asked_of(now, ask_whole("start", age=age * 2 + 1)), slurm)
        assert reported(now) == ("running", "healthy", [])


@pytest.mark.parametrize("reason", ["alice: bad fan", "gpuaas:manual: hot"])
def test_a_drain_survives_stop_and_start_whoever_set_it(reason: str) -> None:
    one, other = both_ready()
    slurm = two_workers()
    slurm.nodes["w3"].reason = reason
    now, steps, _ = tick(asked_of(when_stopped(slurm, one, other), ask_whole("start")), slurm)
    assert slurm.nodes["w3"].reason == reason
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]
    assert (the(now, other).status, the(now, other).adapter_detail["drain_reason"]) == ("ready", reason)


def test_a_drained_worker_comes_back_drained() -> None:
    one, other = both_ready()
    slurm = two_workers()
    now, _, _ = tick(cluster(one, other, operations=(ask("drain", other),)), slurm)
    assert the(now, other).adapter_detail["phase"] == "drained"
    now, _, _ = tick(asked_of(now, ask_whole("stop")), slurm)
    assert the(now, other).status == "requested"
    now, _, _ = tick(asked_of(now, ask_whole("start")), slurm)
    assert (the(now, other).status, the(now, other).adapter_detail["phase"]) == ("draining", "drained")


def test_each_worker_ends_by_itself_and_the_result_shows_how() -> None:
    one, other = both_ready()
    slurm = two_workers()
    now = asked_of(when_stopped(slurm, one, other), ask_whole("start"))
    slurm.breaks_on_host.add("w3")
    for _ in range(5):
        now, steps, _ = tick(now, slurm, seconds=300)
        if of_kind(steps, Finish):
            break
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error["code"]) == ("failed", "partly_failed")
    assert (the(now, one).status, the(now, other).status) == ("ready", "failed")
    assert finish.result["members"][str(other.id)]["error"]["code"] == "host_lock_busy"
    assert reported(now)[:2] == ("running", "degraded")


def test_a_worker_that_failed_before_the_stop_is_not_the_starts_failure() -> None:
    one = serving(2)
    lost = serving(3, status="failed")
    slurm = two_workers()
    now, steps, _ = tick(asked_of(when_stopped(slurm, one, lost), ask_whole("start")), slurm)
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]
    assert the(now, lost).status == "failed"


def test_a_failed_start_leaves_the_instance_stopped_and_can_be_requested_again() -> None:
    slurm = two_workers()
    now = asked_of(when_stopped(slurm, *both_ready()), ask_whole("start"))
    slurm.ctl_error = AdapterError("unit_failed", "slurmctld did not come up.", "repairable")
    now, steps, _ = tick(now, slurm)
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error["code"]) == ("failed", "unit_failed")
    assert reported(now) == ("stopped", "unknown", ["stopped"])
    assert {(m.status, m.adapter_detail["phase"]) for m in now.members} == {("requested", "stopped")}
    slurm.ctl_error = None
    now, steps, _ = tick(asked_of(now, ask_whole("start", age=9)), slurm)
    assert reported(now) == ("running", "healthy", [])


def test_a_controller_that_does_not_answer_is_tried_a_few_times() -> None:
    slurm = two_workers()
    now = asked_of(when_stopped(slurm, *both_ready()), ask_whole("start"))
    slurm.ctl_error = UNREACHABLE
    ends: list[Any] = []
    for _ in range(5):
        now, steps, _ = tick(now, slurm, seconds=300)
        ends += of_kind(steps, Finish)
    assert [(end.status, end.error["code"]) for end in ends] == [("failed", "host_unreachable")]
    assert note_of(now)["attempts"]["count"] == 2 and reported(now)[:2] == ("stopped", "unknown")


@pytest.mark.parametrize("done", [False, True])
def test_a_start_survives_a_killed_runner(done: bool) -> None:
    slurm = two_workers()
    now = killed_in(asked_of(when_stopped(slurm, *both_ready()), ask_whole("start")), slurm, "deploy", done=done)
    assert now.instance.status == "deploying"
    now, steps, _ = tick(now, slurm)
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]
    assert reported(now) == ("running", "healthy", [])


@pytest.mark.parametrize("done", [False, True])
def test_a_start_called_off_in_the_middle_is_finished(done: bool) -> None:
    slurm = two_workers()
    now = killed_in(asked_of(when_stopped(slurm, *both_ready()), ask_whole("start")), slurm, "deploy", done=done)
    now, _, _ = tick(now.later(instance_operations=()), slurm)
    assert reported(now) == ("running", "healthy", []) and note_of(now)["result"] == "cancelled"


def test_a_called_off_start_is_not_stopped_while_its_controller_does_not_answer() -> None:
    slurm = two_workers()
    now = killed_in(asked_of(when_stopped(slurm, *both_ready()), ask_whole("start")), slurm, "deploy", done=True)
    slurm.answers, now = False, now.later(instance_operations=())
    for _ in range(5):
        now, _, _ = tick(now, slurm, seconds=4000)
        assert slurm.up and now.instance.status == "deploying"
    slurm.answers = True
    now, _, _ = tick(now, slurm, seconds=4000)
    assert reported(now) == ("running", "healthy", []) and note_of(now)["result"] == "cancelled"


def test_a_start_called_off_before_it_began_leaves_the_cluster_stopped() -> None:
    slurm = two_workers()
    now = when_stopped(slurm, *both_ready())
    now, steps, plays = tick(now.later(instance_operations=()), slurm)
    assert (steps, plays) == ([], []) and now.instance.status == "stopped"
