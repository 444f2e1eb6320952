"""gpuaas-slurm smoke killed, interrupted, kept, and beside a runner that is deployed."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract import killable_runner
from tests.contract.smoke_runs import Smoke, opened
from tests.contract.stage import Stage, allocation
from tests.leases import end_leases
from tests.waits import until


@pytest.fixture
def smoke(tmp_path: Path) -> Iterator[Smoke]:
    yield from opened(Stage(tmp_path / "stage"), tmp_path)


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
    assert "the work is left to the runner that is deployed" in smoke.log.read_text()
    assert 0 in codes and smoke.instances()[0]["status"] == "deleted"


def test_without_etags_it_works_alone_where_it_is_the_only_runner(smoke: Smoke) -> None:
    without_etags(smoke)
    assert smoke.run("--chapter", "questions", "--only-runner", "--json", "--run-id", "alone", allocations=(5,)) == 0
    assert smoke.instances()[0]["status"] == "deleted"
    found = {(one["expected"], one["kind"]) for one in smoke.report["gaps"]}
    assert ("a version of the record: the header ETag, or the field etag", "platform_primitive") in found
    assert smoke.run("--run-id", "alone", "--clean-up", "--json", allocations=()) == 0, smoke.printed()
    assert smoke.outcomes() == {"decommission": "passed", "ticks": "skipped"}, "without --only-runner it does no ticks"
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
