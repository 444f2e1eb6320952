"""gpuaas-slurm smoke on real hosts, as an operator runs it on a platform: whole, killed, and interrupted in a play.

One Debian: what the steps do on hosts is tested by the other scenarios on both.
"""

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.fleet.fleet import Fleet
from tests.commands import ends
from tests.e2e.cluster import Cluster, Runner, fleet_named, kill, until
from tests.e2e.host_picture import difference, picture
from tests.platform_process import ApiClient, Doc
from tests.runner_process import gpuaas_slurm

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("tried"), pytest.mark.timeout(3600)]

HOSTS = ("gs-1", "gs-2", "gs-3")
PATIENCE = 3000  # a whole run takes 20 minutes on a busy machine


@dataclass
class Tried:
    fleet: Fleet
    variables: dict[str, str]
    before: dict[str, set[str]]

    @property
    def api(self) -> ApiClient:
        return ApiClient(self.variables["GPUAAS_BASE_URL"], self.variables["GPUAAS_OPERATOR_TOKEN"])

    @property
    def path(self) -> str:
        return f"/projects/{self.variables['GPUAAS_PROJECT_ID']}/app-instances"

    def instance(self, run_id: str) -> Doc | None:
        listed = self.api.get(self.path).json()["items"]
        return next((one for one in listed if one["name"] == f"smoke-{run_id}"), None)

    def operations(self, run_id: str) -> list[str]:
        instance = self.instance(run_id)
        listed = self.api.get(f"{self.path}/{instance['id']}/member-operations").json()["items"] if instance else []
        return [one["operation"] for one in listed]

    def smoke(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return gpuaas_slurm(self.variables, "smoke", *arguments, "--json", timeout=PATIENCE)

    def start(self, *arguments: str) -> Runner:
        return Cluster(self.fleet, "", self.variables).start_run("smoke", *arguments, "--json")

    def hosts_are_as_found(self) -> None:
        for host in HOSTS:
            assert difference(self.before[host], picture(self.fleet, host)) == [], host


@pytest.fixture(scope="session")
def tried() -> Iterator[Tried]:
    with fleet_named("e2e-smoke") as fleet:
        fleet.up(hosts=len(HOSTS), suite="bookworm", warm=True)
        variables = {**fleet.env(), "GPUAAS_LOG_FORMAT": "json", "GPUAAS_LEASE_SECONDS": "20"}
        yield Tried(fleet, variables, {host: picture(fleet, host) for host in HOSTS})


def outcomes(report: Doc) -> dict[str, str]:
    return {one["step"]: one["outcome"] for one in report["results"]}


def test_a_run_passes_and_the_hosts_are_as_found(tried: Tried, tmp_path: Path) -> None:
    junit, markdown = tmp_path / "report.xml", tmp_path / "report.md"
    files = ("--junit", str(junit), "--markdown", str(markdown))
    done = tried.smoke("--allocations", ",".join(HOSTS), "--run-id", "whole", *files)
    ends(done, 0)
    report = json.loads(done.stdout)
    assert [step for step, outcome in outcomes(report).items() if outcome != "passed"] == ["bulk-add", "audit"]
    assert report["gaps"] == [] and report["left_behind"] is None
    assert "<failure" not in junit.read_text() and "| decommission/decommission | passed |" in markdown.read_text()
    tried.hosts_are_as_found()


def test_afterwards_the_audit_has_each_of_its_requests(tried: Tried, tmp_path: Path) -> None:
    export = tmp_path / "audit.jsonl"
    export.write_text("".join(json.dumps(row) + "\n" for row in tried.fleet.control().audit()))
    arguments = ("--allocations", ",".join(HOSTS), "--run-id", "whole", "--audit", str(export))
    done = tried.smoke(*arguments)
    ends(done, 0)
    assert outcomes(json.loads(done.stdout))["audit"] == "passed"


def test_a_run_that_was_killed_in_a_play_is_continued(tried: Tried) -> None:
    arguments = ("--allocations", "gs-1", "--run-id", "killed", "--chapter", "workers")
    process = tried.start(*arguments)
    until(lambda: "remove" in tried.operations("killed"), 600, "a remove is requested")
    kill(process)
    done = tried.smoke(*arguments)
    ends(done, 0)
    assert tried.operations("killed") == ["add", "add", "drain", "resume", "remove", "add"]
    tried.hosts_are_as_found()


def test_a_run_that_is_interrupted_in_a_play_leaves_nothing_behind(tried: Tried) -> None:
    process = tried.start("--allocations", "gs-3", "--run-id", "stopped")
    until(lambda: (tried.instance("stopped") or {}).get("status") == "deploying", 120, "the deploy has begun")
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    report = json.loads(stdout)
    assert report["interrupted"] and report["left_behind"] is None
    assert (tried.instance("stopped") or {})["status"] == "deleted"
    tried.hosts_are_as_found()
