"""A whole cluster is stopped: what is done for which world, tick by tick, on a cluster in memory."""

from datetime import timedelta
from typing import Any

import pytest

from runner.model import limits, progress
from runner.model.plan import Claim, Finish, Refuse, SetInstance, Wait
from runner.slurm import detail
from runner.slurm.decide import decide
from runner.slurm.decide.workers.operations import orphans
from runner.slurm.readiness import running_jobs
from runner.slurm.snapshot import Job
from tests.unit.lifecycle import (
    ask,
    ask_whole,
    asked_of,
    between,
    both_ready,
    cluster,
    note_of,
    playbooks,
    reported,
    the,
    tick,
    two_workers,
    when_stopped,
)
from tests.unit.worlds import ME, add, claimed_by_another, of_kind, settle, snapshot, worker


def test_the_partition_is_closed_before_anything_else_and_no_worker_is_drained() -> None:
    slurm = two_workers()
    slurm.nodes["w2"].jobs.add(7)
    _, steps, plays = tick(cluster(*both_ready(), whole=(ask_whole("stop"),)), slurm)
    assert playbooks(plays) == ["observe", "quiesce"]
    assert slurm.partitions == {"main": "DOWN"}
    assert [fake.reason for fake in slurm.nodes.values()] == [None, None]
    assert not of_kind(steps, Finish)


@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_more_partitions_than_a_note_can_hold_do_not_end_the_operation(verb: str) -> None:
    slurm = two_workers()
    slurm.nodes["w2"].jobs.add(7)
    slurm.partitions = {f"p{number:060}": "UP" for number in range(500)} | {"x" * 500: "UP", "main": "DOWN"}
    now, _, _ = tick(cluster(*both_ready(), whole=(ask_whole(verb),)), slurm)
    assert limits.size(now.instance.status_detail) <= limits.RECORD_BYTES
    assert 20 < len(note_of(now)["partitions"]) < 100 and note_of(now)["partitions"]["main"] == "DOWN"


def test_jobs_are_waited_for_over_ticks_and_each_tick_names_them() -> None:
    slurm = two_workers()
    slurm.nodes["w2"].jobs.add(7)
    slurm.waiting.add(8)
    now = cluster(*both_ready(), whole=(ask_whole("stop"),))
    for _ in range(3):
        now, steps, _ = tick(now, slurm)
        assert reported(now) == ("running", "progressing", ["stopping"])
        assert (note_of(now)["jobs"], note_of(now)["waiting"]) == (["7"], "waits for job 7")
        assert not of_kind(steps, Finish)
    slurm.nodes["w2"].jobs.clear()
    now, steps, plays = tick(now, slurm)
    assert playbooks(plays) == ["quiesce", "stop"]
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]
    assert slurm.waiting == {8} and not slurm.up


def test_a_stopped_instance_and_its_members_report_it_and_how_to_go_on() -> None:
    one, other = both_ready()
    now = when_stopped(two_workers(), one, other)
    assert reported(now) == ("stopped", "unknown", ["stopped"])
    assert "op start" in now.instance.status_detail["reasons"][0]["message"]  # type: ignore[index]
    assert {(m.status, m.adapter_detail["phase"]) for m in now.members} == {("requested", "stopped")}
    assert the(now, one).adapter_detail["slurmd_state"] == "inactive"
    assert note_of(now)["result"] == "done"


def test_a_stopped_instance_is_settled_and_left_alone() -> None:
    slurm = two_workers()
    now = when_stopped(slurm, *both_ready())
    assert now.instance.status_detail["unsettled"] is False  # type: ignore[index]
    assert not any(detail.is_unsettled(member) for member in now.members)
    later, steps, plays = tick(now.later(now=now.now + timedelta(days=3)), slurm)
    assert (steps, plays) == ([], [])
    assert later.members == now.members


@pytest.mark.parametrize("policy", ["requeue", "cancel"])
def test_at_the_deadline_what_runs_is_ended_as_chosen_and_announced_before(policy: str) -> None:
    slurm = two_workers()
    slurm.nodes["w2"].jobs.update({7, 9})
    stop = ask_whole("stop", parameters={"deadline_seconds": 100, "on_deadline": policy})
    now = cluster(*both_ready(), whole=(stop,))
    for _ in range(2):
        now, _, _ = tick(now, slurm)
        assert slurm.nodes["w2"].jobs == {7, 9}
    before, steps, play = settle(now, decide)
    before, steps, play = settle(slurm.run(before, play), decide)  # type: ignore[arg-type]
    assert play and play.work[policy] == ["7", "9"]
    assert note_of(before)["announced_eviction"] == f"{policy} of job 7, 9", "written before it is done"
    now, steps, _ = tick(now, slurm)
    assert of_kind(steps, Finish) == [] and slurm.up, "the jobs are being cleared away"
    now, steps, _ = tick(now, slurm)
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.result["did"]) == ("succeeded", f"{policy} of job 7, 9")
    assert slurm.waiting == ({7, 9} if policy == "requeue" else set())


def test_giving_up_at_the_deadline_opens_the_cluster_again_and_loses_nothing() -> None:
    slurm = two_workers()
    slurm.nodes["w2"].jobs.add(7)
    now = cluster(*both_ready(), whole=(ask_whole("stop", parameters={"deadline_seconds": 0}),))
    now, steps, _ = tick(now, slurm)
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error["code"]) == ("failed", "stop_deadline")
    assert "job 7" in finish.error["message"]
    assert slurm.partitions == {"main": "UP"} and slurm.nodes["w2"].jobs == {7} and slurm.up
    assert reported(now) == ("running", "healthy", [])


def test_each_partition_is_closed_and_brought_back_to_what_it_was() -> None:
    slurm = two_workers()
    slurm.partitions |= {"night": "DRAIN", "old": "DOWN", "off": "INACTIVE"}
    before = dict(slurm.partitions)
    slurm.nodes["w2"].jobs.add(7)
    now, _, _ = tick(cluster(*both_ready(), whole=(ask_whole("stop", parameters={"deadline_seconds": 100}),)), slurm)
    # One in DRAIN would go on to start what waits in it.
    assert slurm.partitions == {"main": "DOWN", "night": "INACTIVE", "old": "DOWN", "off": "INACTIVE"}
    now, _, _ = tick(now, slurm, seconds=100)
    now, steps, _ = tick(now, slurm)
    assert of_kind(steps, Finish)
    assert slurm.partitions == before


def test_the_start_closes_the_partition_again_since_slurm_loses_its_state() -> None:
    slurm = two_workers()
    slurm.partitions["night"] = "DOWN"
    now = when_stopped(slurm, *both_ready())
    now, _, _ = tick(asked_of(now, ask_whole("start")), slurm)
    assert slurm.partitions == {"main": "UP", "night": "DOWN"}


def test_operations_on_members_wait_for_the_stop_and_go_on_after_the_start() -> None:
    one, other = both_ready()
    slurm = two_workers()
    slurm.nodes["w2"].jobs.add(7)
    drain = ask("drain", other, age=5)
    stop = ask_whole("stop")
    now, steps, _ = tick(cluster(one, other, operations=(drain,), whole=(stop,)), slurm)
    assert f"stop {str(stop.id)[:8]} is under way" in [step.why for step in of_kind(steps, Wait)]
    slurm.nodes["w2"].jobs.clear()
    now, steps, _ = tick(now, slurm)
    assert now.instance.status == "stopped"
    now, steps, plays = tick(now, slurm)
    assert [step.why for step in of_kind(steps, Wait)] == ["the instance is stopped"] and plays == []
    now, steps, _ = tick(asked_of(now, ask_whole("start")), slurm)
    now, more, _ = tick(now, slurm)
    assert [(f.operation.operation, f.status) for f in of_kind([*steps, *more], Finish)] == [
        ("start", "succeeded"),
        ("drain", "succeeded"),
    ]
    assert the(now, other).status == "draining"


def test_an_add_that_was_half_way_goes_on_after_the_start() -> None:
    joining = add(4)
    slurm = two_workers()
    half = worker(joining, 4, adapter_detail={"next_attempt_at": "2026-01-02T09:00:00Z", "attempt": 1})
    now, _, _ = tick(cluster(*both_ready(), half, operations=(joining,), whole=(ask_whole("stop"),)), slurm)
    assert the(now, half).status in ("requested", "reconciling") and not progress.is_stopped(the(now, half))
    now, _, _ = tick(asked_of(now, ask_whole("start")), slurm)
    assert the(now, half).status in ("requested", "reconciling"), "the start is not about it"
    now = now.later(now=now.now + timedelta(days=1))
    now, _, _ = tick(now, slurm)
    assert the(now, half).status == "ready"


def test_a_runner_leaves_a_stop_alone_that_another_one_carries_out() -> None:
    one, other = both_ready()
    stop = claimed_by_another(ask_whole("stop"))
    _, steps, plays = tick(cluster(one, other, operations=(ask("drain", one),), whole=(stop,)), two_workers())
    assert plays == [] and not of_kind(steps, Claim)


def test_a_stop_waits_for_a_runner_that_is_at_work_on_members() -> None:
    one, other = both_ready()
    drain = claimed_by_another(ask("drain", one))
    _, steps, plays = tick(cluster(one, other, operations=(drain,), whole=(ask_whole("stop"),)), two_workers())
    assert plays == [] and not of_kind(steps, Claim)


@pytest.mark.parametrize(
    "parameters",
    [{"on_deadline": "cancel"}, {"deadline_seconds": -1}, {"reason": "$(reboot)"}, {"nonsense": 1}],
)
def test_terms_that_make_no_sense_are_refused_and_nothing_is_touched(parameters: dict[str, Any]) -> None:
    _, steps, plays = tick(cluster(*both_ready(), whole=(ask_whole("stop", parameters=parameters),)), two_workers())
    assert [refusal.code for refusal in of_kind(steps, Refuse)] == ["parameters_invalid"] and plays == []


def test_what_does_not_fit_the_state_is_refused() -> None:
    slurm = two_workers()
    for verb, now in (("start", cluster(*both_ready())), ("stop", when_stopped(slurm, *both_ready()))):
        _, steps, plays = tick(asked_of(now, ask_whole(verb)), slurm)
        assert [refusal.code for refusal in of_kind(steps, Refuse)] == ["instance_state"] and plays == []


def test_a_note_with_names_that_are_not_partitions_reaches_no_controller() -> None:
    slurm = two_workers()
    slurm.nodes["w2"].jobs.add(7)
    now, _, _ = tick(cluster(*both_ready(), whole=(ask_whole("stop"),)), slurm)
    stored = note_of(now) | {"partitions": {"main": "UP", "x State=UP": "UP", "y": "reboot"}}
    status = {**(now.instance.status_detail or {}), "lifecycle": stored}
    now = now.later(instance=now.instance.model_copy(update={"status_detail": status}))
    now, _, plays = tick(now, slurm)
    assert playbooks(plays) == ["observe"] and "note_unreadable" in reported(now)[2]
    assert note_of(now) == stored, "the note is left as it is"


def test_a_plan_with_a_look_at_the_cluster_names_the_jobs_in_the_way() -> None:
    slurm = two_workers()
    slurm.nodes["w2"].jobs.add(7)
    live = cluster(*both_ready(), whole=(ask_whole("stop"),)).later(snapshot=slurm.seen())
    _, steps, play = settle(live, decide)
    assert play and play.playbook == "quiesce" and "job 7" in play.why
    assert of_kind(steps, SetInstance) and between(live).runner_id == ME


def test_a_stopped_member_is_not_an_orphan() -> None:
    now = when_stopped(two_workers(), *both_ready())
    assert orphans(now)[0] == []


def test_what_holds_a_node_runs_and_what_holds_none_waits() -> None:
    jobs = [
        Job(id=1, address="1", state="RUNNING", nodes=["w2"]),
        Job(id=2, address="2", state="COMPLETING", nodes=["w2"]),
        Job(id=3, address="3", state="SUSPENDED", nodes=["w3"]),
        Job(id=4, address="4", state="PENDING"),
        Job(id=5, address="5", state="PENDING", nodes=["w2"]),  # where it is meant to run
        Job(id=6, address="6", state="REQUEUE_HOLD"),
    ]
    seen = snapshot({}).model_copy(update={"jobs": jobs})
    assert [job.id for job in running_jobs(seen) or []] == [1, 2, 3]
    assert running_jobs(snapshot({})) is None and running_jobs(None) is None
