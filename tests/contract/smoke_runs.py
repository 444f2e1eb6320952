"""Smoke runs on a sandbox platform that others use too: the real command in its own process, with simulated hosts."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.contract import killable_runner
from tests.contract.killable_runner import FileHosts
from tests.contract.stage import Stage, allocation
from tests.platform_process import Doc

FREE = (5, 6, 7, 8)  # the stage's own cluster has 1 to 3


@dataclass
class Smoke:
    """A project in which another cluster is requested, and smoke runs in it."""

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


def opened(stage: Stage, directory: Path) -> Iterator[Smoke]:
    made = Smoke(stage, directory)
    FileHosts().save(made.hosts)
    before = made.others()
    yield made
    assert made.others() == before
    assert FileHosts.load(made.hosts).overlaps == []
    stage.close()
