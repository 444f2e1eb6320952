"""A stop that is called off, whose runner is killed, or whose controller or workers do not answer."""

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
    playbooks,
    reported,
    the,
    tick,
    two_workers,
    when_stopped,
)
from tests.unit.worlds import of_kind, settle


def test_partitions_that_we_closed_are_opened_however_late_the_controller_answers() -> None:
    slurm = two_workers()
    slurm.nodes["w2"].jobs.add(7)
    now, _, _ = tick(cluster(*both_ready(), whole=(ask_whole("stop"),)), slurm)
    assert slurm.partitions == {"main": "DOWN"}
    slurm.answers, now = False, now.later(instance_operations=())
    for _ in range(6):
        now, _, _ = tick(now, slurm, seconds=4000)
        assert "result" not in note_of(now)
    slurm.answers = True
    now, _, _ = tick(now, slurm, seconds=4000)
    assert slurm.partitions == {"main": "UP"} and note_of(now)["result"] == "cancelled"


def test_a_stop_called_off_while_it_waits_opens_the_cluster() -> None:
    slurm = two_workers()
    slurm.nodes["w2"].jobs.add(7)
    now, _, _ = tick(cluster(*both_ready(), whole=(ask_whole("stop"),)), slurm)
    assert now.instance.status_detail["unsettled"] is True, "a tick without work must notice the cancellation"  # type: ignore[index]
    now, _, _ = tick(now.later(instance_operations=()), slurm)
    assert slurm.partitions == {"main": "UP"}
    assert reported(now) == ("running", "healthy", []) and note_of(now)["result"] == "cancelled"


def test_a_stop_called_off_while_daemons_are_being_stopped_is_finished() -> None:
    slurm = two_workers()
    now = killed_in(cluster(*both_ready(), whole=(ask_whole("stop"),)), slurm, "stop", done=True)
    now, _, _ = tick(now.later(instance_operations=()), slurm)
    assert reported(now)[:2] == ("stopped", "unknown") and note_of(now)["result"] == "cancelled"
    now, _, _ = tick(asked_of(now, ask_whole("start")), slurm)
    assert now.instance.status == "running"


@pytest.mark.parametrize("playbook", ["observe", "quiesce", "stop"])
@pytest.mark.parametrize("done", [False, True])
def test_a_stop_survives_a_killed_runner_anywhere(playbook: str, done: bool) -> None:
    slurm = two_workers()
    slurm.waiting.add(8)
    now = killed_in(cluster(*both_ready(), whole=(ask_whole("stop"),)), slurm, playbook, done=done)
    now, steps, _ = tick(now, slurm)
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]
    assert reported(now)[:2] == ("stopped", "unknown") and slurm.waiting == {8}


def test_a_stop_killed_before_its_end_was_written_ends_as_it_was_judged() -> None:
    slurm = two_workers()
    stop = ask_whole("stop")
    done = when_stopped(slurm, *both_ready())
    stored = note_of(done) | {"operation_id": str(stop.id)}
    instance = done.instance.model_copy(
        update={"status_detail": {**(done.instance.status_detail or {}), "lifecycle": stored}}
    )
    _, steps, plays = tick(done.later(instance=instance, instance_operations=(stop,)), slurm)
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"] and plays == []


def test_a_job_that_slips_in_before_the_end_is_waited_for() -> None:
    slurm = two_workers()
    now = killed_in(cluster(*both_ready(), whole=(ask_whole("stop"),)), slurm, "stop", done=False)
    slurm.nodes["w3"].jobs.add(9)
    now, steps, _ = tick(now, slurm)
    assert not of_kind(steps, Finish) and slurm.up
    assert note_of(now)["jobs"] == ["9"]
    slurm.nodes["w3"].jobs.clear()
    now, steps, _ = tick(now, slurm)
    assert of_kind(steps, Finish) and not slurm.up


def test_while_the_controller_does_not_answer_jobs_are_unknown_and_not_none() -> None:
    slurm = two_workers()
    slurm.answers = False
    now = cluster(*both_ready(), whole=(ask_whole("stop"),))
    for _ in range(4):
        now, steps, plays = tick(now, slurm)
        assert playbooks(plays) == ["observe"] and not of_kind(steps, Finish)
        assert reported(now) == ("running", "progressing", ["controller_unknown"])
    slurm.answers = True
    now, steps, _ = tick(now, slurm)
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]


def test_a_deadline_with_cancel_ends_nothing_on_a_controller_that_cannot_be_asked() -> None:
    slurm = two_workers()
    terms = {"deadline_seconds": 90, "on_deadline": "cancel"}
    now = cluster(*both_ready(), whole=(ask_whole("stop", parameters=terms),))
    slurm.answers = False
    ends: list[Any] = []
    for _ in range(8):
        now, steps, _ = tick(now, slurm, seconds=100)
        ends += of_kind(steps, Finish)
    assert [(end.status, end.error["code"]) for end in ends] == [("failed", "stop_deadline")]
    (message,) = (end.error["message"] for end in ends)
    assert message.startswith("the controller did not answer, and the 90 s") and "jobs" not in message
    assert message.endswith("it had closed no partition")
    assert slurm.up


def test_a_stop_that_lost_its_controller_reports_that_it_opens_partitions() -> None:
    slurm = two_workers()
    slurm.nodes["w2"].jobs.add(7)
    now = cluster(*both_ready(), whole=(ask_whole("stop", parameters={"deadline_seconds": 90}),))
    now, _, _ = tick(now, slurm, seconds=100)
    assert slurm.partitions == {"main": "DOWN"}
    slurm.answers = False
    now, steps, _ = tick(now, slurm, seconds=4000)
    assert note_of(now)["failure"]["code"] == "stop_deadline" and not of_kind(steps, Finish)
    slurm.answers = True
    now, steps, _ = tick(now, slurm, seconds=4000)
    (finish,) = of_kind(steps, Finish)
    assert slurm.partitions == {"main": "UP"}
    assert finish.error["message"].startswith("the controller did not answer, and the 90 s")
    assert finish.error["message"].endswith("the partitions that it closed are opened again")


def test_a_worker_host_that_does_not_answer_is_named_and_holds_no_other_up() -> None:
    one, other = both_ready()
    slurm = two_workers()
    slurm.hosts_down.add("w3")
    now, steps, _ = tick(cluster(one, other, whole=(ask_whole("stop"),)), slurm)
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "succeeded"
    assert list(finish.result["not_reached"]) == [f"worker-{other.id.hex[:8]}"]
    assert the(now, other).adapter_detail["last_adapter_error"]["code"] == "not_stopped"
    assert the(now, one).adapter_detail["last_adapter_error"] is None
    assert "1 worker host(s) did not answer" in now.instance.status_detail["reasons"][0]["message"]  # type: ignore[index]


def test_a_controller_that_cannot_be_stopped_is_opened_after_some_attempts() -> None:
    slurm = two_workers()
    now = killed_in(cluster(*both_ready(), whole=(ask_whole("stop"),)), slurm, "stop", done=False)
    slurm.ctl_error = AdapterError("unit_does_not_stop", "mariadb does not stop.", "retryable")
    for tries in (1, 2):
        now, steps, plays = tick(now, slurm, seconds=300)
        assert (
            playbooks(plays) == ["stop"] and note_of(now)["attempts"]["count"] == tries and not of_kind(steps, Finish)
        )
    slurm.ctl_error = AdapterError("unit_does_not_stop", "mariadb does not stop.", "repairable")
    now, _, play = settle(now, decide)
    now, steps, play = settle(slurm.run(now, play), decide)  # type: ignore[arg-type]
    assert play and play.work == {"partitions": {"main": "UP"}}
    slurm.ctl_error = None
    now, steps, _ = settle(slurm.run(now, play), decide)
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error["code"]) == ("failed", "stop_failed")
    assert slurm.partitions == {"main": "UP"} and now.instance.status == "running"


def test_a_stop_that_was_called_off_is_undone_before_the_next_one_begins() -> None:
    slurm = two_workers()
    slurm.nodes["w2"].jobs.add(7)
    now, _, _ = tick(cluster(*both_ready(), whole=(ask_whole("stop"),)), slurm)
    second = ask_whole("stop", age=1)
    now, _, _ = tick(now.later(instance_operations=(second,)), slurm)
    now, _, _ = tick(now, slurm)
    assert note_of(now)["operation_id"] == str(second.id) and note_of(now)["partitions"] == {"main": "UP"}
    now, _, _ = tick(now.later(instance_operations=()), slurm)
    assert slurm.partitions == {"main": "UP"}


def test_a_controller_that_stops_answering_while_jobs_run_is_not_stopped() -> None:
    slurm = two_workers()
    slurm.nodes["w2"].jobs.add(7)
    now, _, _ = tick(cluster(*both_ready(), whole=(ask_whole("stop"),)), slurm)
    slurm.answers = False
    now, steps, plays = tick(now, slurm)
    assert playbooks(plays) == ["quiesce"] and not of_kind(steps, Finish) and note_of(now)["phase"] == "waiting"
    slurm.answers = True
    now, _, _ = tick(now, slurm)
    assert note_of(now)["jobs"] == ["7"] and slurm.up


def test_a_stop_killed_while_it_writes_keeps_what_members_were() -> None:
    one, other = both_ready()
    slurm = two_workers()
    now, _, _ = tick(cluster(one, other, operations=(ask("drain", other),)), slurm)
    before = killed_in(asked_of(now, ask_whole("stop")), slurm, "stop", done=True)
    written, _, _ = tick(before, slurm)
    half = before.with_member(the(written, other))  # the rest was not written
    now, steps, _ = tick(half, slurm)
    assert of_kind(steps, Finish) and the(now, other).adapter_detail["stopped"] == {
        "was": "draining",
        "phase": "drained",
    }
