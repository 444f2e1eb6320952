"""gpuaas-slurm smoke: what a run does on a platform, what it reports, and on a platform with another contract."""

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.contract.killable_runner import FileHosts
from tests.contract.smoke_runs import Smoke, opened
from tests.contract.stage import Stage
from tests.contract.test_other_contract import OtherStage
from tests.platform_process import our_manifest


@pytest.fixture
def smoke(tmp_path: Path) -> Iterator[Smoke]:
    yield from opened(Stage(tmp_path / "stage"), tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Smoke]:
    """A platform with other names, nested errors, no ETags, another login, and no operations made by a deploy."""
    yield from opened(OtherStage(tmp_path / "stage"), tmp_path)


def test_a_whole_run_passes_reports_and_leaves_nothing_behind(smoke: Smoke) -> None:
    junit, markdown = smoke.directory / "report.xml", smoke.directory / "report.md"
    code = smoke.run("--json", "--junit", str(junit), "--markdown", str(markdown), "--run-id", "whole")
    assert code == 0, smoke.printed()
    report = smoke.report
    assert report["passed"] and report["left_behind"] is None
    assert {step for step, outcome in smoke.outcomes().items() if outcome != "passed"} == {"audit"}
    (instance,) = smoke.instances()
    assert (instance["name"], instance["status"]) == ("smoke-whole", "deleted")
    assert {one["status"] for one in smoke.asked("/members")} == {"deleted"}
    on_record = {one["correlation_id"] for one in smoke.asked("/member-operations") + smoke.asked("/operations")}
    assert on_record <= {one["correlation_id"] for one in report["results"]}
    cases = ElementTree.fromstring(junit.read_text()).findall("testcase")
    assert [one.get("name") for one in cases] == [one["step"] for one in report["results"]]
    assert all(one["correlation_id"] in markdown.read_text() for one in report["results"] if one["correlation_id"])


def test_a_whole_run_passes_on_a_platform_with_another_contract(elsewhere: Smoke) -> None:
    """Only the mapping file and the key of its login are set."""
    elsewhere.changes = {"GPUAAS_STATE_DIRECTORY": str(elsewhere.directory / "state")}
    code = elsewhere.run("--json", "--only-runner", "--same-node", "--run-id", "other", allocations=(5, 6, 7))
    assert code == 0, elsewhere.printed()
    assert {step for step, outcome in elsewhere.outcomes().items() if outcome != "passed"} == {"audit"}
    assert elsewhere.instances()[0]["status"] == "deleted"
    # What the mapping file says is not a gap. This platform issues no runtime secrets, under its own name too.
    assert [one["call"] for one in elsewhere.report["gaps"]] == [
        "POST /projects/{id}/app-instances/{id}/runtime-secrets"
    ]


def test_the_audit_has_each_request_and_a_missing_line_is_found(smoke: Smoke) -> None:
    chosen = ("--chapter", "questions", "--run-id", "audited")
    assert smoke.run(*chosen, "--json") == 0, smoke.printed()
    whole = smoke.audit("audit.jsonl")
    requested = [*smoke.asked("/member-operations"), *smoke.asked("/operations")]
    assert smoke.run(*chosen, "--json", "--audit", str(whole)) == 0, smoke.printed()
    assert smoke.outcomes()["audit"] == "passed"
    assert [*smoke.asked("/member-operations"), *smoke.asked("/operations")] == requested, "nothing is requested again"
    gone = requested[-1]["id"]
    less = smoke.directory / "less.jsonl"
    less.write_text("".join(line + "\n" for line in whole.read_text().splitlines() if gone not in line))
    assert smoke.run(*chosen, "--json", "--audit", str(less)) == 1
    (found,) = [one for one in smoke.report["results"] if one["step"] == "audit"]
    assert found["code"] == "audit_incomplete" and gone in found["detail"]


def test_both_kinds_of_question_are_answered_with_the_reason_of_the_failure(smoke: Smoke) -> None:
    assert smoke.run("--chapter", "questions", "--json", allocations=(5, 6)) == 0, smoke.printed()
    found = {one["step"]: one for one in smoke.report["results"]}
    assert "worker-" in found["success"]["detail"] and "runtime: phase serving" in found["success"]["detail"]
    assert "allocation_not_found" in found["reason"]["detail"]
    (refused,) = [one for one in smoke.asked("/member-operations") if one["status"] == "failed"]
    about = {found[step]["correlation_id"] for step in ("operation", "failure", "reason")}
    assert about == {refused["correlation_id"]}


def test_the_pilot_publishes_and_moves_the_cluster_to_another_version_and_back(smoke: Smoke) -> None:
    control, manifest = smoke.stage.platform.control, our_manifest()
    control.register_app(manifest | {"version": "9.0.0"})
    assert smoke.run("--chapter", "pilot", "--json", allocations=(5,)) == 0, smoke.printed()
    found = {one["step"]: one for one in smoke.report["results"]}
    assert {found[step]["outcome"] for step in ("publish", "entitlement", "move", "moved", "move-back")} == {"passed"}
    assert manifest["version"] in found["publish"]["detail"] and "9.0.0" in found["move"]["detail"]
    (instance,) = smoke.instances()
    assert (instance["app_version"], instance["status"]) == (manifest["version"], "deleted")
    assert found["move"]["correlation_id"] == instance["correlation_id"]


def test_a_dry_run_prints_the_steps_and_requests_nothing(smoke: Smoke) -> None:
    before = len(smoke.stage.platform.control.audit())
    assert smoke.run("--dry-run", "--json", allocations=(5, 6)) == 0, smoke.printed()
    steps = json.loads(smoke.output.read_text())
    assert [one["step"] for one in steps][:3] == ["identities", "allocations", "deploy"]
    assert {one["step"]: one["left_out"] for one in steps}[
        "replace"
    ] == "left out: needs 3 allocations, and 2 were given"
    assert len(smoke.stage.platform.control.audit()) == before


def test_after_a_failure_the_rest_is_left_out_and_the_cluster_taken_down(smoke: Smoke) -> None:
    hosts = FileHosts.load(smoke.hosts)
    hosts.hosts_down.add("w6")
    hosts.save(smoke.hosts)
    smoke.changes = {"GPUAAS_MAX_ATTEMPTS": "1"}
    assert smoke.run("--json", allocations=(5, 6, 7)) == 1, smoke.printed()
    found = {one["step"]: one for one in smoke.report["results"]}
    assert found["worker"]["outcome"] == "failed" and "correlation" in found["worker"]["detail"]
    assert found["drain"]["detail"] == "not done, because step worker failed"


def test_calls_that_are_missing_on_the_platform_are_gaps_in_the_report(smoke: Smoke) -> None:
    smoke.stage.platform.control.inject_fault("status", "/me$", times=2, status=404)
    assert smoke.run("--json", allocations=(1,)) == 1, smoke.printed()
    gaps = [(one["call"], one["basis"], one["kind"]) for one in smoke.report["gaps"]]
    assert ("GET /me", "stated", "read_surface") in gaps
    assert smoke.outcomes()["identities"] == "passed"


def test_an_allocation_in_use_is_refused_before_anything_is_requested(smoke: Smoke) -> None:
    assert smoke.run("--json", allocations=(1, 5)) == 1, smoke.printed()
    (failed,) = [one for one in smoke.report["results"] if one["outcome"] == "failed"]
    assert (failed["step"], failed["code"]) == ("allocations", "allocation_in_use")
    assert smoke.instances() == []
