"""Member operation resume: a worker that an operation drained serves again; a drain of another owner is not undone."""

import pytest

from runner.model.plan import Finish, Refuse, Wait
from runner.model.platform import Member
from runner.model.world import World
from runner.slurm import detail
from runner.slurm.decide import decide
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, cluster, killed_in, serving, the, tick
from tests.unit.worlds import of_kind

BY_HAND = "gpuaas:manual: new disk"


def asked(now: World, *operations: object) -> World:
    return now.later(operations=(*now.operations, *operations))


def the_worker(now: World) -> Member:
    return next(member for member in now.members if member.component_key == "worker")


def drained() -> tuple[World, FakeSlurm]:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    now, _, _ = tick(cluster(one, operations=(ask("drain", one),)), slurm)
    assert the(now, one).adapter_detail["phase"] == "drained" and not now.operations
    return now, slurm


def test_a_worker_that_was_drained_serves_again() -> None:
    now, slurm = drained()
    one = the_worker(now)
    now, steps, plays = tick(asked(now, ask("resume", one)), slurm)
    assert slurm.nodes["w2"].reason is None
    assert [play.playbook for play in plays] == ["drain_worker"]
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]
    back = the(now, one)
    assert (back.status, back.adapter_detail["phase"], back.adapter_detail["drain_reason"]) == (
        "ready",
        "serving",
        None,
    )


def test_asked_twice_it_is_done_once() -> None:
    now, slurm = drained()
    one = the_worker(now)
    for _ in range(2):
        now, steps, _ = tick(asked(now, ask("resume", one)), slurm)
        assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]
        assert the(now, one).status == "ready"


@pytest.mark.parametrize("reason", ["fan is loud", BY_HAND])
def test_a_drain_that_a_person_set_is_left_and_the_next_step_is_named(reason: str) -> None:
    one = serving(2, status="draining", adapter_detail={"phase": "drained"})
    slurm = FakeSlurm({"w2": FakeNode(reason=reason)})
    now, steps, _ = tick(cluster(one, operations=(ask("resume", one),)), slurm)
    assert slurm.nodes["w2"].reason == reason
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "failed" and finish.error and finish.error["code"] == "drain_not_ours"
    assert reason in finish.error["message"] and "State=RESUME" in finish.error["message"]
    assert the(now, one).status == "draining"


def test_a_drain_of_an_earlier_operation_is_lifted_too() -> None:
    """A second drain keeps the first one's reason, so the reason need not carry the last operation's id."""
    now, slurm = drained()
    one = the_worker(now)
    now, _, _ = tick(asked(now, ask("drain", one)), slurm)
    now, _, _ = tick(asked(now, ask("resume", one)), slurm)
    assert slurm.nodes["w2"].reason is None and the(now, one).status == "ready"


def test_resume_waits_for_an_open_drain() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now = cluster(one, operations=(ask("drain", one), ask("resume", one, age=1)))
    now, steps, _ = tick(now, slurm)
    assert slurm.nodes["w2"].reason is not None
    assert any("came first" in wait.why for wait in of_kind(steps, Wait))
    slurm.nodes["w2"].jobs.clear()
    for _ in range(2):
        now, _, _ = tick(now, slurm)
    assert the(now, one).status == "ready" and slurm.nodes["w2"].reason is None


def test_nothing_is_assumed_while_the_controller_does_not_answer() -> None:
    now, slurm = drained()
    one = the_worker(now)
    slurm.answers = False
    now, steps, _ = tick(asked(now, ask("resume", one)), slurm)
    assert the(now, one).status == "draining" and now.operations and of_kind(steps, Wait)
    slurm.answers = True
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "ready" and not now.operations


def test_it_is_not_done_while_the_controller_shows_our_drain_still() -> None:
    now, slurm = drained()
    one = the_worker(now)
    slurm.ignores_resume = True
    for _ in range(2):
        now, steps, _ = tick(asked(now, ask("resume", one)) if not now.operations else now, slurm)
        assert now.operations and the(now, one).status == "draining" and of_kind(steps, Wait)
    slurm.ignores_resume = False
    now, _, _ = tick(now, slurm)
    assert not now.operations and the(now, one).status == "ready"


def test_a_node_that_has_not_answered_yet_is_looked_at_until_it_serves() -> None:
    now, slurm = drained()
    one = the_worker(now)
    slurm.distrusts_resumed = True
    now, _, _ = tick(asked(now, ask("resume", one)), slurm)
    assert the(now, one).status == "draining" and not now.operations
    slurm.distrusts_resumed = False
    now, _, plays = tick(now, slurm)
    assert [play.playbook for play in plays] == ["observe"] and the(now, one).status == "ready"


@pytest.mark.parametrize("done", [False, True])
def test_a_runner_killed_in_the_play_is_followed_by_one_that_ends_it(done: bool) -> None:
    now, slurm = drained()
    one = the_worker(now)
    now = killed_in(asked(now, ask("resume", one)), slurm, "drain_worker", done=done)
    now, steps, _ = tick(now, slurm)
    assert the(now, one).status == "ready" and [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]


def test_a_node_that_is_not_in_the_controller_fails_the_resume() -> None:
    now, slurm = drained()
    one = the_worker(now)
    slurm.nodes.clear()
    now, steps, _ = tick(asked(now, ask("resume", one)), slurm)
    (finish,) = of_kind(steps, Finish)
    assert finish.error and finish.error["code"] == "node_absent"
    assert not detail.is_unsettled(the(now, one)), "nothing is waited for"


@pytest.mark.parametrize(
    ("status", "parameters", "code"),
    [("failed", {}, "member_state"), ("deleting", {}, "member_state"), ("ready", {"force": 1}, "parameters_invalid")],
)
def test_what_cannot_be_resumed_is_refused_and_nothing_is_touched(status: str, parameters: dict, code: str) -> None:  # type: ignore[type-arg]
    one = serving(2, status=status)
    (refusal,) = decide(cluster(one, operations=(ask("resume", one, parameters=parameters),))).steps
    assert isinstance(refusal, Refuse) and refusal.code == code


def test_a_resumed_worker_whose_slurmd_is_down_shows_in_health_and_is_repaired() -> None:
    now, slurm = drained()
    one = the_worker(now)
    slurm.nodes["w2"].state = "DOWN"
    slurm.breaks_on_host = {"w2"}  # and it cannot be started yet
    now, steps, plays = tick(asked(now, ask("resume", one)), slurm)
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"] and slurm.nodes["w2"].reason is None
    shown, seen = the(now, one), now.instance.status_detail or {}
    assert (shown.status, shown.adapter_detail["phase"]) == ("draining", "resumed")
    assert now.instance.health == "unhealthy", "its only worker takes no job"
    assert {"no_worker_serves", "worker_down"} <= {one["code"] for one in seen["reasons"]}
    slurm.breaks_on_host = set()
    for _ in range(3):
        now, _, more = tick(now, slurm, seconds=600)
        plays += more
    assert "add_worker" in [play.playbook for play in plays], "it is repaired"
    assert (the(now, one).status, now.instance.health) == ("ready", "healthy")
    assert the(now, one).adapter_detail["phase"] == "serving"


def test_a_later_drain_and_resume_end_the_error_of_an_earlier_drain() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode(jobs={7})})
    late = {"deadline_seconds": 0, "on_deadline": "give_up"}
    now, _, _ = tick(cluster(one, operations=(ask("drain", one, parameters=late),)), slurm)
    now, _, _ = tick(now, slurm)
    assert the(now, one).notes.error_code == "drain_deadline"
    slurm.nodes["w2"].jobs = set()
    for verb in ("drain", "resume"):
        now, steps, _ = tick(asked(now, ask(verb, the_worker(now))), slurm)
        assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]
        assert the(now, one).notes.last_adapter_error is None
    assert the(now, one).status == "ready"


def test_a_new_request_keeps_an_error_that_another_kind_of_work_left() -> None:
    error = {"code": "clock_skew", "message": "m", "class": "intervention", "at": "2026-01-02T03:04:05Z"}
    one = serving(2, adapter_detail={"last_adapter_error": error})
    now, _, _ = tick(cluster(one, operations=(ask("drain", one),)), FakeSlurm({"w2": FakeNode()}))
    assert the(now, one).notes.error_code == "clock_skew"
