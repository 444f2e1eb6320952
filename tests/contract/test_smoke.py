"""gpuaas-slurm smoke on a sandbox platform that others use too: whole, killed, interrupted, without ETags.

The command is the real one in its own process; its hosts are simulated, in a file that outlives it.
"""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.contract import killable_runner
from tests.contract.killable_runner import FileHosts
from tests.contract.stage import Stage, allocation
from tests.contract.test_other_contract import OtherStage
from tests.leases import end_leases
from tests.platform_process import Doc
from tests.waits import until

FREE = (5, 6, 7, 8)  # the stage's own cluster has 1 to 3


@dataclass
class Smoke:
    """A project in which somebody else's cluster is requested, and smoke runs in it."""

    stage: Stage
    directory: Path
    changes: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: str, allocations: tuple[int, ...] = FREE) -> Any:
        named = ["--allocations", ",".join(map(allocation, allocations))] if allocations else []
        variables = {**self.stage.variables, "GPUAAS_OBSERVE_SECONDS": "0", **self.changes}
        for path in (self.output, self.log):
            path.unlink(missing_ok=True)
        command = ("smoke", *named, "--step-timeout", "60", *arguments)
        return killable_runner.start(variables, self.hosts, self.log, command=command, output=self.output)

    def run(self, *arguments: str, allocations: tuple[int, ...] = FREE) -> int:
        return self.end(self.start(*arguments, allocations=allocations))

    def end(self, process: Any) -> int:
        code = killable_runner.exit_code(process, 300)
        assert code is not None, self.log.read_text()[-3000:]
        return code

    @property
    def hosts(self) -> Path:
        return self.directory / "smoke-hosts"

    @property
    def output(self) -> Path:
        return self.directory / "stdout"

    @property
    def log(self) -> Path:
        return self.directory / "stderr"

    @property
    def report(self) -> Doc:
        found: Doc = json.loads(self.output.read_text())
        return found

    def outcomes(self) -> dict[str, str]:
        return {one["step"]: one["outcome"] for one in self.report["results"]}

    def printed(self) -> str:
        return "\n".join(path.read_text() for path in (self.output, self.log) if path.exists())[-6000:]

    def instances(self) -> list[Doc]:
        """Those of smoke runs, deleted ones too."""
        project = self.stage.project
        listed = project.operator.get(f"{project.path}/app-instances").json()["items"]
        return [one for one in listed if one["id"] != self.stage.made["id"]]

    def asked(self, what: str) -> list[Doc]:
        (instance,) = self.instances()
        found: list[Doc] = self.stage.project.shown(instance, what)
        return found

    def others(self) -> list[Doc]:
        """The records of the cluster that is not smoke's."""
        records = [self.stage.read(), *self.stage.read("/members"), *self.stage.read("/member-operations")]
        return [{key: value for key, value in one.items() if key != "etag"} for one in records]

    def audit(self, name: str) -> Path:
        """The platform's audit as a file of JSON lines."""
        path = self.directory / name
        path.write_text("".join(json.dumps(row) + "\n" for row in self.stage.platform.control.audit()))
        return path


@pytest.fixture
def smoke(tmp_path: Path) -> Iterator[Smoke]:
    yield from opened(Stage(tmp_path / "stage"), tmp_path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Smoke]:
    """A platform with other names, nested errors, no ETags, another login, and no operations made by a deploy."""
    yield from opened(OtherStage(tmp_path / "stage"), tmp_path)


def opened(stage: Stage, directory: Path) -> Iterator[Smoke]:
    made = Smoke(stage, directory)
    FileHosts().save(made.hosts)
    before = made.others()
    yield made
    assert made.others() == before
    assert FileHosts.load(made.hosts).overlaps == []
    stage.close()


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
    assert elsewhere.report["gaps"] == [], "what the mapping file says is not a gap"


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


def test_a_killed_run_is_continued_and_requests_nothing_twice(smoke: Smoke) -> None:
    process = smoke.start("--run-id", "killed", "--json")
    until(lambda: len(smoke.instances()) == 1 and "drain" in str(smoke.asked("/member-operations")), 120, "a drain")
    os.kill(process.pid, signal.SIGKILL)
    assert smoke.end(process) == -signal.SIGKILL
    (instance,) = smoke.instances()
    project = smoke.stage.project
    end_leases(project.adapter, f"{project.path}/app-instances/{instance['id']}")
    assert smoke.run("--run-id", "killed", "--json") == 0, smoke.printed()
    asked = [one["operation"] for one in smoke.asked("/member-operations")]
    assert asked == ["add", "add", "drain", "resume", "remove", "add", "replace", "add"]  # the first cannot work
    outcomes = smoke.outcomes()
    assert outcomes["deploy"] == outcomes["drain"] == outcomes["reason"] == outcomes["decommission"] == "passed"
    assert outcomes["controller"] == "skipped", "it cannot be seen again"
    assert smoke.instances()[0]["status"] == "deleted"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_run_leaves_nothing_behind(smoke: Smoke, name: str) -> None:
    process = smoke.start("--run-id", "stopped", "--json")
    until(lambda: len(smoke.instances()) == 1 and smoke.instances()[0]["status"] == "running", 120, "it runs")
    os.kill(process.pid, signal.Signals[name])
    assert smoke.end(process) == 130, smoke.printed()
    assert smoke.report["interrupted"] and smoke.report["left_behind"] is None
    assert smoke.outcomes()["decommission"] == "passed"
    (instance,) = smoke.instances()
    assert instance["status"] == "deleted"
    assert {one["status"] for one in smoke.asked("/members")} == {"deleted"}


def test_a_kept_cluster_is_taken_down_by_the_command_that_is_printed(smoke: Smoke) -> None:
    assert smoke.run("--run-id", "kept", "--keep", "--chapter", "questions", allocations=(5,)) == 0, smoke.printed()
    assert smoke.instances()[0]["status"] == "running"
    assert "left behind: instance" in smoke.printed() and "smoke --run-id kept --clean-up" in smoke.printed()
    assert smoke.run("--run-id", "kept", "--clean-up", "--json", allocations=()) == 0, smoke.printed()
    assert smoke.outcomes() == {"decommission": "passed", "ticks": "passed"}
    assert smoke.instances()[0]["status"] == "deleted"
    assert smoke.run("--run-id", "other", "--clean-up", allocations=()) == 2


def test_what_a_run_did_not_make_is_not_taken_down(smoke: Smoke) -> None:
    project = smoke.stage.project
    body = {name: smoke.stage.read()[name] for name in ("app_slug", "app_version", "access_credential_id", "config")}
    intent = {"mode": "same_node", "controller_allocation_id": allocation(8), "worker_allocation_ids": [allocation(8)]}
    answer = project.operator.post(
        f"{project.path}/app-instances", {**body, "placement_intent": intent, "name": "smoke-theirs"}
    )
    assert answer.status_code == 201, answer.text
    for arguments in (("--clean-up",), ()):
        assert smoke.run("--run-id", "theirs", *arguments, allocations=(5,)) == 2
        assert "nothing shows that a smoke run made it" in smoke.printed()
    assert [one["status"] for one in smoke.instances()] == ["requested"]


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


def test_a_second_signal_ends_the_taking_down_and_the_command_for_it_is_printed(smoke: Smoke) -> None:
    process = smoke.start("--run-id", "twice", "--json", "--leave-to-runner", allocations=(5,))
    until(lambda: len(smoke.instances()) == 1, 60, "it is requested")
    os.kill(process.pid, signal.SIGINT)
    until(lambda: smoke.asked("/operations") != [], 60, "a decommission is requested")
    os.kill(process.pid, signal.SIGINT)
    assert smoke.end(process) == 130, smoke.printed()
    assert "smoke --run-id twice --clean-up" in smoke.report["left_behind"]
    assert smoke.run("--run-id", "twice", "--clean-up", "--json", allocations=()) == 0, smoke.printed()
    assert smoke.instances()[0]["status"] == "deleted"


def test_an_allocation_in_use_is_refused_before_anything_is_requested(smoke: Smoke) -> None:
    assert smoke.run("--json", allocations=(1, 5)) == 1, smoke.printed()
    (failed,) = [one for one in smoke.report["results"] if one["outcome"] == "failed"]
    assert (failed["step"], failed["code"]) == ("allocations", "allocation_in_use")
    assert smoke.instances() == []


def without_etags(smoke: Smoke) -> None:
    smoke.stage.platform.control.inject_fault("strip_etags", "/projects/", times=1_000_000)
    smoke.changes = {"GPUAAS_STATE_DIRECTORY": str(smoke.directory / "state")}


@contextlib.contextmanager
def deployed_runner(smoke: Smoke) -> Iterator[list[int | None]]:
    """A runner that works on the same instance, tick after tick; yields its exit codes."""
    done, codes = threading.Event(), []
    variables = {**smoke.stage.variables, "GPUAAS_OBSERVE_SECONDS": "0", **smoke.changes}

    def work() -> None:
        while not done.wait(0.2):
            for one in smoke.instances():
                command = ("run", "--instance", one["id"])
                runner = killable_runner.start(variables, smoke.hosts, smoke.directory / "runner.log", command=command)
                codes.append(killable_runner.exit_code(runner, 100))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield codes
    finally:
        done.set()
        thread.join()


def test_beside_a_deployed_runner_claims_keep_both_apart(smoke: Smoke) -> None:
    with deployed_runner(smoke) as codes:
        assert smoke.run("--chapter", "lifecycle", "--json", allocations=(5, 6)) == 0, smoke.printed()
    assert 0 in codes and smoke.instances()[0]["status"] == "deleted"


def test_without_etags_the_deployed_runner_does_the_work(smoke: Smoke) -> None:
    without_etags(smoke)
    with deployed_runner(smoke) as codes:
        assert smoke.run("--chapter", "questions", "--json", allocations=(5, 6)) == 0, smoke.printed()
    assert "the work is left to the runner that is deployed" in smoke.printed()
    assert 0 in codes and smoke.instances()[0]["status"] == "deleted"


def test_without_etags_it_works_alone_where_it_is_the_only_runner(smoke: Smoke) -> None:
    without_etags(smoke)
    assert smoke.run("--chapter", "questions", "--only-runner", "--json", allocations=(5,)) == 0, smoke.printed()
    assert smoke.instances()[0]["status"] == "deleted"
    found = {(one["expected"], one["kind"]) for one in smoke.report["gaps"]}
    assert ("a version of the record: the header ETag, or the field etag", "platform_primitive") in found
    (lock,) = (smoke.directory / "state").iterdir()
    assert lock.suffix == ".lock"


def test_a_deploy_whose_answer_is_lost_is_found_and_taken_down(smoke: Smoke) -> None:
    control = smoke.stage.platform.control
    control.inject_fault("apply_then_hold", "/app-instances$", method="POST", times=1)
    smoke.changes = {"GPUAAS_API_TIMEOUT_SECONDS": "1", "GPUAAS_API_PATIENCE_SECONDS": "0"}
    assert smoke.run("--json", allocations=(5,)) == 1, smoke.printed()
    found = {one["step"]: one for one in smoke.report["results"]}
    assert found["deploy"]["code"] == "platform_unreachable" and found["decommission"]["outcome"] == "passed"
    assert [one["status"] for one in smoke.instances()] == ["deleted"]
