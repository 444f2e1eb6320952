"""Phases and details that plays report (plugins/filter/slurm_reports.py)."""

from typing import Any

import pytest

from plugins.filter.slurm_reports import clean_report, controller_phase, drain_report, recover_report, worker_report


def node(reason: str | None, *flags: str, jobs: tuple[str, ...] = ()) -> dict[str, Any]:
    state = {"state": "IDLE", "flags": list(flags), "slurm_version": "24.11.5"}
    return {**state, "reason": reason, "reason_by": "root", "jobs": list(jobs)}


def code(error: dict[str, str] | None) -> str | None:
    return error["code"] if error else None


@pytest.mark.parametrize(("ping", "phase"), [("UP", "serving"), ("DOWN", "baseline"), ("UNKNOWN", "baseline")])
def test_a_controller_serves_only_if_slurmctld_answers(ping: str, phase: str) -> None:
    assert controller_phase({"controller": {"ping": ping}}, "baseline") == phase


def test_a_worker_is_reported_as_its_controller_shows_it() -> None:
    nodes = {"w1": node("was down"), "late": node("new", "DRAIN")}
    look = {"missing": ["late"], "snapshot": {"nodes": nodes}}
    expected = {"phase": "serving", "registered": True, "slurm_version": "24.11.5", "drain_reason": None}
    assert worker_report(look, "w1") == {**expected, "node": nodes["w1"]}
    late = worker_report(look, "late")
    assert (late["phase"], late["registered"], late["drain_reason"]) == ("registering", True, "new")


@pytest.mark.parametrize("nodes", [None, {}])
def test_a_worker_without_a_node_is_not_reported_as_serving(nodes: Any) -> None:
    unknown = {"phase": "registering", "node": None, "registered": False, "slurm_version": None, "drain_reason": None}
    assert worker_report({"missing": [], "snapshot": {"nodes": nodes}}, "w1") == unknown


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
    ("done", "clean"),
    [
        ({"residue": []}, True),
        ({"residue": ["path /etc/slurm"], "failed": True}, False),
        ({"msg": "apt failed"}, False),
        ({"residue": None}, False),
    ],
)
def test_a_host_is_clean_only_if_nothing_was_found_on_it(done: dict[str, Any], clean: bool) -> None:
    expected = ("removed", True, None) if clean else ("cleaning", False, done)
    report = clean_report(done)
    assert (report["phase"], report["cleaned"], report["outcome"]) == expected


def recovered(again: Any = None, **looked: Any) -> dict[str, Any]:
    return {"recover_looked": {"nodes": {}, "snapshot": {"nodes": {"w1": node("fan", "DRAIN")}}, **looked}} | (
        {"recover_again": again} if again else {}
    )


@pytest.mark.parametrize(
    ("controllers", "name", "text"),
    [
        (recovered(), "w1", "IDLE+DRAIN (fan)"),
        (recovered({"snapshot": {"nodes": {"w1": node(None)}}}), "w1", "IDLE"),
        (recovered({"skipped": True}), "w1", "IDLE+DRAIN (fan)"),
        (recovered(), "w2", "not in the cluster"),
        (recovered(), None, "no recorded name, the worker never joined"),
        (recovered(snapshot={"nodes": None}), "w1", "unknown, the controller did not answer"),
        ({"recover_looked": {"failed": True}}, "w1", "unknown, the controller did not answer"),
        ({}, "w1", "unknown, the controller did not answer"),
    ],
)
def test_a_recovery_shows_the_node_as_the_controller_does(
    controllers: dict[str, Any], name: str | None, text: str
) -> None:
    assert recover_report({"found": [], "changes": []}, controllers, name) == {
        "found": ["No problem was found on the host."],
        "done": [],
        "node": text,
    }


@pytest.mark.parametrize(("did", "done"), [("resumed", ["unit slurmd started", "drain lifted"]), ("left", None)])
def test_a_recovery_shows_a_lifted_drain_among_its_changes(did: str, done: list[str] | None) -> None:
    mended = {"found": ["slurmd was failed."], "changes": ["unit slurmd started"]}
    report = recover_report(mended, recovered(nodes={"w1": {"did": did}}), "w1")
    assert (report["found"], report["done"]) == (mended["found"], done or mended["changes"])
