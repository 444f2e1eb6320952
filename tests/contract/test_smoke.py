"""gpuaas-slurm smoke on a sandbox platform that others use too: whole, killed, interrupted, without ETags.

The command is the real one in its own process; its hosts are simulated, in a file that outlives it.
"""

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

    def said(self) -> str:
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

    def audit(self, name: str) -> Path:
        """The platform's audit as a file of JSON lines."""
        path = self.directory / name
        path.write_text("".join(json.dumps(row) + "\n" for row in self.stage.platform.control.audit()))
        return path


@pytest.fixture
def smoke(tmp_path: Path) -> Iterator[Smoke]:
    stage = Stage(tmp_path / "stage")
    made = Smoke(stage, tmp_path)
    FileHosts().save(made.hosts)
    before = stage.read(), stage.read("/members"), stage.read("/member-operations")
    yield made
    assert (stage.read(), stage.read("/members"), stage.read("/member-operations")) == before, "others' cluster"
    assert FileHosts.load(made.hosts).overlaps == []
    stage.close()


def test_a_whole_run_passes_reports_and_leaves_nothing_behind(smoke: Smoke) -> None:
    junit, markdown = smoke.directory / "report.xml", smoke.directory / "report.md"
    code = smoke.run("--json", "--junit", str(junit), "--markdown", str(markdown), "--run-id", "whole")
    assert code == 0, smoke.said()
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
