"""What playbooks conclude from answers of modules (plugins/filter/slurm_reports.py)."""

from pathlib import Path
from typing import Any

import pytest

from plugins.filter.slurm_reports import (
    FilterModule,
    controller_phase,
    drain_report,
    leave_refusal,
    leftover_drains,
    move_refusal,
    node_of_host,
    stop_refusal,
)
from runner.model.plan import Play
from tests.unit.lifecycle import serving
from tests.unit.local_plays import LocalPlays
from tests.unit.worlds import controller, world

TARGET = "24.11.5-4"


def node(reason: str | None, *flags: str, by: str | None = "root", jobs: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"state": "IDLE", "flags": list(flags), "reason": reason, "reason_by": by, "jobs": list(jobs)}


def code(error: dict[str, str] | None) -> str | None:
    return error["code"] if error else None


def test_every_rule_is_a_filter() -> None:
    assert set(FilterModule().filters()) == {
        *("controller_phase", "drain_report", "leave_refusal", "leftover_drains", "move_refusal", "node_of_host"),
        "stop_refusal",
    }


@pytest.mark.parametrize(("ping", "phase"), [("UP", "serving"), ("DOWN", "baseline"), ("UNKNOWN", "baseline")])
def test_a_controller_serves_only_if_slurmctld_answers(ping: str, phase: str) -> None:
    assert controller_phase({"controller": {"ping": ping}}, "baseline") == phase


def test_only_drains_that_an_operation_set_are_lifted() -> None:
    nodes = {
        "ours": node("gpuaas:op-1: removed", "DRAIN"),
        "by-hand": node("gpuaas:manual: new disk", "DRAIN"),
        "person": node("broken fan", "DRAIN"),
        "slurm": node("Kill task failed", "DRAIN"),
        "down": node("gpuaas:op-1: removed"),
        "no-reason": node(None, "DRAIN", by=None),
        "not-asked": node("gpuaas:op-1: removed", "DRAIN"),
    }
    asked = ["ours", "by-hand", "person", "slurm", "down", "no-reason", "absent"]
    assert leftover_drains(asked, nodes) == ["ours"]
    assert leftover_drains(asked, None) == []


# -- moving to another version -------------------------------------------------------------------------------


def refused(error: object, **more: Any) -> dict[str, Any]:
    return {"failed": True, "msg": "it failed", "adapter_error": error, **more}


@pytest.mark.parametrize(
    ("plan", "expected", "words"),
    [
        ({"target": TARGET}, None, ""),
        ({"failed": False, "target": TARGET}, None, ""),
        (refused({"code": "x"}, unreachable=True), None, ""),
        ({"target": "24.11.5-5"}, "version_not_offered", f"moves to {TARGET}"),
        (refused({"code": "version_is_older", "message": "too old"}), "version_is_older", "w2: too old"),
        (refused({"code": "conversion_running", "message": "wait"}), "worker_cannot_move", "w2: wait"),
        (refused({"code": ["no_way_back"], "message": {"a": 1}}), "worker_cannot_move", "{'a': 1}"),
        (refused("odd"), "worker_cannot_move", "it failed"),
        (refused({}), "worker_cannot_move", "it failed"),
        ({"failed": True}, "worker_cannot_move", "gave no reason"),
    ],
)
def test_a_worker_that_cannot_move_holds_all_with_a_code_from_the_list(
    plan: dict[str, Any], expected: str | None, words: str
) -> None:
    error = move_refusal({"w1": {"target": TARGET}, "w2": plan}, TARGET)
    assert code(error) == expected
    assert error is None or (words in error["message"] and error["class"] == "intervention")


def test_a_refusal_goes_before_another_version() -> None:
    plans = {"w1": {"target": "1"}, "w2": refused({"code": "no_way_back", "message": "no"})}
    assert code(move_refusal(plans, TARGET)) == "no_way_back"


# -- draining and leaving ------------------------------------------------------------------------------------


def drained(**drain: Any) -> dict[str, Any]:
    seen = {"reason": "gpuaas:op-1: disk", "held_by": "us", "is_drained": False, **drain}
    nodes = {"w1": node("gpuaas:op-1: disk", "DRAIN", jobs=("7", "8"))}
    return {"nodes": {}, "drains": {"w1": seen}, "snapshot": {"nodes": nodes}}


def test_a_drain_is_reported_as_the_controller_shows_it() -> None:
    report = drain_report(drained(), "w1")
    detail = {"jobs_remaining": 2, "drain_reason": "gpuaas:op-1: disk", "drain_held_by": "us"}
    assert report == {"phase": "draining", "detail": detail, "error": None}
    assert drain_report(drained(is_drained=True), "w1")["phase"] == "drained"


@pytest.mark.parametrize("done", [None, {}, {"failed": True}, {"snapshot": {"nodes": None}}])
def test_without_the_controllers_answer_a_drain_is_unknown(done: dict[str, Any] | None) -> None:
    report = drain_report(done, "w1")
    assert report["phase"] == "draining"
    assert code(report["error"]) == "state_unknown"
    assert report["detail"] == {"jobs_remaining": None, "drain_reason": None, "drain_held_by": "none"}


def test_a_node_that_the_controller_does_not_show_is_not_drained() -> None:
    assert (drain_report(drained(is_drained=True), "w9")["phase"], drain_report(drained(), None)["phase"]) == (
        "draining",
        "draining",
    )


@pytest.mark.parametrize(
    ("verdicts", "name", "expected"),
    [
        ({"w1": {"did": "deletable"}}, "w1", None),
        ({"w1": {"did": "deleted"}}, "w1", None),
        ({"w1": {"did": "absent"}}, "w1", None),
        ({}, None, None),
        (None, None, "state_unknown"),
        (None, "w1", "state_unknown"),
        ({}, "w1", "state_unknown"),
        ({"w1": {"did": "kept", "code": "jobs_need_node", "reason": "Job 7 waits"}}, "w1", "jobs_need_node"),
        ({"w1": {"did": "unknown", "code": None, "reason": None}}, "w1", "state_unknown"),
        ({"w2": {"did": "deletable"}}, "w1", "state_unknown"),
    ],
)
def test_a_worker_leaves_only_by_its_controllers_verdict(
    verdicts: dict[str, dict[str, Any]] | None, name: str | None, expected: str | None
) -> None:
    assert code(leave_refusal(verdicts, name)) == expected


@pytest.mark.parametrize(
    ("looked", "expected"),
    [
        ({"hostname": "gs-4", "units_noted": ["slurmd"]}, "gs-4"),
        ({"hostname": "gs-4", "units_noted": ["munge"]}, None),
        ({"hostname": "taken", "units_noted": ["slurmd"]}, None),
        ({"hostname": "mine", "units_noted": ["slurmd"]}, "mine"),
        ({"hostname": "a b", "units_noted": ["slurmd"]}, None),
        ({"hostname": "-a", "units_noted": ["slurmd"]}, None),
        ({"hostname": "gs-4\n", "units_noted": ["slurmd"]}, None),
        ({"hostname": ["gs-4"], "units_noted": ["slurmd"]}, None),
        ({}, None),
    ],
)
def test_a_host_names_its_node_unless_another_member_has_the_name(looked: dict[str, Any], expected: str | None) -> None:
    assert node_of_host(looked, "m1", {"taken": "m2", "mine": "m1"}) == expected


# -- stopping ------------------------------------------------------------------------------------------------


def snapshot(slurmctld: str, jobs: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {"observed_at": "2026-01-02T03:04:05Z", "controller": {"slurmctld": slurmctld}, "nodes": {}, "jobs": jobs}


def job(address: str, state: str, *nodes: str) -> dict[str, Any]:
    return {"id": 7, "address": address, "state": state, "nodes": list(nodes)}


@pytest.mark.parametrize(
    ("slurmctld", "jobs", "expected"),
    [
        ("active", [], None),
        ("active", [job("7", "PENDING")], None),
        ("active", [job("7", "PENDING", "w1")], None),
        ("active", [job("7_1", "RUNNING", "w1"), job("8", "PENDING")], "jobs_running"),
        ("active", [job("7", "COMPLETING", "w1")], "jobs_running"),
        ("active", None, "slurm_silent"),
        ("failed", None, "slurm_silent"),
        ("inactive", None, None),
    ],
)
def test_a_stop_waits_for_jobs_and_for_an_answer(
    slurmctld: str, jobs: list[dict[str, Any]] | None, expected: str | None
) -> None:
    error = stop_refusal(snapshot(slurmctld, jobs))
    assert code(error) == expected
    assert error is None or error["class"] == "retryable"
    assert expected != "jobs_running" or (error and error["message"].startswith("Jobs are running: 7"))


# -- in real plays -------------------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalPlays:
    return LocalPlays(tmp_path, monkeypatch)


def test_by_hand_the_workers_of_the_run_are_drained_in_the_persons_name(local: LocalPlays) -> None:
    chief, leaver = controller(status="ready"), serving(2)
    done = local.by_hand("drain_worker", world(members=(chief, leaver)), chief, leaver)
    assert done.returncode == 0, done.stdout
    [asked] = local.asked("slurm_nodes")
    assert asked["drain"] == [{"nodes": ["w2"], "reason": "gpuaas:manual: requested by an operator"}]


def test_the_runners_orders_are_all_that_is_asked_of_slurm(local: LocalPlays) -> None:
    chief, leaver = controller(status="ready"), serving(2)
    orders = [{"nodes": ["w2"], "reason": "gpuaas:op-1: disk"}]
    step = Play("test", "drain_worker", (chief, leaver), work={"drain": orders, "requeue": ["7"]})
    outcome = local.play(step, world(members=(chief, leaver))).outcomes[leaver.id]
    [asked] = local.asked("slurm_nodes")
    assert (asked["drain"], asked["requeue"], asked["resume"]) == (orders, ["7"], [])
    assert (outcome.phase, outcome.error) == ("draining", None)


@pytest.mark.parametrize("running", [True, False])
def test_a_cluster_with_a_running_job_is_not_stopped(local: LocalPlays, running: bool) -> None:
    chief, helper = controller(status="ready"), serving(2)
    jobs = [job("7", "RUNNING" if running else "PENDING", "w2")]
    local.module("slurm_snapshot", f"answer = {{'snapshot': {{**snapshot, 'jobs': {jobs!r}}}}}")
    local.module("host_units", "answer = {'units': {}, 'left': {}}")
    result = local.play(Play("test", "stop", (chief, helper)), world(members=(chief, helper)))
    codes = [error and error.code for error in (result.outcomes[chief.id].error, result.outcomes[helper.id].error)]
    assert codes == (["jobs_running", "controller_not_quiet"] if running else [None, None])
    assert len(local.asked("host_units")) == (0 if running else 2)
