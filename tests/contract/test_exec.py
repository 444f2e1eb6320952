"""`gpuaas-slurm exec` takes claims like a runner: real commands and a real platform; hosts are only records."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from runner.intent.errors import IntentError
from runner.loop import manual
from runner.model.errors import RequestError
from runner.model.plan import stamp
from sandbox.fleet.keys import KeyPair
from tests.commands import ends
from tests.platform_process import Doc, Project
from tests.runner_process import COMMAND, environment, gpuaas_slurm
from tests.unit.lifecycle import cluster, serving
from tests.waits import until

SHOW = (sys.executable, "-c", "import os; print(os.environ['GPUAAS_CLAIMS'])")


class Operator:
    """An operator with the project's settings, and a cluster whose members are recorded as ready."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.variables = environment(project, GPUAAS_LEASE_SECONDS="10", GPUAAS_RUNNER_ID="prod")
        self.path = f"{project.path}/app-instances/{project.deploy(workers=2)['id']}"
        control = project.platform.control
        control.put_credential(
            project.project_id, project.credential_id, username="ops", private_key=KeyPair.generate().private
        )
        operation = self._items("member-operations")[0]
        for allocation in project.allocation_ids[1:3]:
            detail = {"operation_id": operation["id"], "worker_hostname": f"w{allocation[:8]}", "fence": 4}
            body = {"component_key": "worker", "allocation_id": allocation, "adapter_detail": detail}
            assert project.adapter.post(f"{self.path}/members", body).status_code == 201
        cancelled = project.operator.patch(f"{self.path}/member-operations/{operation['id']}", {"status": "cancelled"})
        assert cancelled.status_code == 200, cancelled.text

    def _items(self, what: str) -> list[Doc]:
        return list(self.project.operator.get(f"{self.path}/{what}").json()["items"])

    def members(self) -> dict[str, Doc]:
        return {f"{one['component_key']}-{one['id'][:8]}": one for one in self._items("members")}

    def worker(self) -> str:
        return min(name for name in self.members() if name.startswith("worker"))

    def exec(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return gpuaas_slurm(self.variables, "exec", *arguments)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("GPUAAS_", "VAULT_"))}
        return subprocess.Popen(
            [COMMAND, "exec", *arguments],
            env={**inherited, **self.variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def hold(self, name: str, by: str) -> str:
        until_when = stamp(datetime.now(UTC) + timedelta(minutes=5))
        member = self.members()[name]
        detail = {**member["adapter_detail"], "claimed_by": by, "lease_expires_at": until_when}
        answer = self.project.adapter.patch(f"{self.path}/members/{member['id']}", {"adapter_detail": detail})
        assert answer.status_code == 200
        return until_when

    def claimed(self) -> dict[str, str]:
        found = {name: one["adapter_detail"].get("claimed_by") for name, one in self.members().items()}
        return {name: by for name, by in found.items() if by}


@pytest.fixture
def operator(dialable: Project) -> Iterator[Operator]:
    made = Operator(dialable)
    yield made
    assert made.claimed() in ({}, getattr(made, "expected", {})), "a claim was left"


def test_exec_claims_every_member_gives_the_numbers_and_hands_them_back(operator: Operator) -> None:
    done = operator.exec("--", *SHOW)
    ends(done, 0)
    members = operator.members()
    assert json.loads(done.stdout) == {one["id"]: one["adapter_detail"]["fence"] for one in members.values()}
    workers = [one for one in members.values() if one["component_key"] == "worker"]
    assert [one["adapter_detail"]["fence"] for one in workers] == [5, 5]


def test_exec_claims_only_the_named_members_and_none_for_reading(operator: Operator) -> None:
    name = operator.worker()
    done = operator.exec("--members", name, "--", *SHOW)
    ends(done, 0)
    assert json.loads(done.stdout) == {operator.members()[name]["id"]: 5}
    mark = operator.project.platform.control.requests()["last"]
    reading = operator.exec("--read-only", "--", *SHOW)
    ends(reading, 0)
    assert json.loads(reading.stdout) == {}
    sent = operator.project.platform.control.requests(mark)["requests"]
    assert [row for row in sent if row["method"] == "PATCH"] == []


def test_exec_is_refused_and_names_the_runner_that_holds_a_member(operator: Operator) -> None:
    name = operator.worker()
    until_when = operator.hold(name, "prod")
    operator.expected = {name: "prod"}  # type: ignore[attr-defined]
    refused = operator.exec("--", *SHOW)
    ends(refused, 3)
    message = " ".join(refused.stderr.split())
    assert f"{name} is held by runner prod until {until_when}" in message and "--members" in message
    assert refused.stdout == "" and operator.claimed() == {name: "prod"}
    ends(operator.exec("--members", max(operator.members()), "--", *SHOW), 0)


def test_exec_is_refused_while_another_runner_carries_out_an_operation(operator: Operator) -> None:
    asked = operator.project.operator.post(f"{operator.path}/operations", {"operation": "restart"}).json()
    lease = stamp(datetime.now(UTC) + timedelta(minutes=5))
    body = {"status": "running", "claimed_by": "left", "lease_expires_at": lease}
    assert operator.project.adapter.patch(f"{operator.path}/operations/{asked['id']}", body).status_code == 200
    refused = operator.exec("--", *SHOW)
    ends(refused, 3)
    assert "is held by runner left" in " ".join(refused.stderr.split())


def test_exec_passes_the_exit_code_on_and_hands_back_after_a_failure(operator: Operator) -> None:
    ends(operator.exec("--", "sh", "-c", "exit 7"), 7)
    ends(operator.exec("--", "/no/such/command"), 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_exec_hands_back_when_it_is_interrupted(operator: Operator, number: int) -> None:
    started = operator.start("--", "sleep", "100")
    until(lambda: len(operator.claimed()) == 3, 60, "all members are claimed")
    assert all(by.startswith("exec/") for by in operator.claimed().values()), "not under a runner's name"
    until(lambda: _children(started.pid, "sleep"), 30, "the command runs")
    os.killpg(started.pid, number)
    started.communicate(timeout=60)
    assert started.returncode not in (0, None)
    assert operator.claimed() == {}


def test_exec_renews_while_the_command_runs_and_ends_it_when_its_claim_is_lost(operator: Operator) -> None:
    started = operator.start("--", "sleep", "100")
    until(lambda: len(operator.claimed()) == 3, 60, "all members are claimed")
    name = operator.worker()

    def lease() -> str:
        return str(operator.members()[name]["adapter_detail"]["lease_expires_at"])

    first = lease()
    until(lambda: lease() > first, 30, "the lease is renewed")
    operator.hold(name, "other-runner")
    operator.expected = {name: "other-runner"}  # type: ignore[attr-defined]
    _, stderr = started.communicate(timeout=60)
    assert started.returncode == 3 and "The claim was lost, so the command was ended." in " ".join(stderr.split())


def _children(pid: int, command: str) -> list[str]:
    found = []
    for one in Path("/proc").glob("[0-9]*/stat"):
        try:
            parts = one.read_text().rsplit(")", 1)
        except OSError:
            continue
        if int(parts[1].split()[1]) == pid and f"({command}" in parts[0]:
            found.append(one.parent.name)
    return found


def test_a_command_is_not_given_more_claims_than_its_environment_can_hold() -> None:
    largest = manual.ManualClaims({UUID(int=2**127 + number): 2**40 for number in range(manual.MAX_MEMBERS)})
    ends(subprocess.run(["true"], env=largest.environment, check=False, capture_output=True, text=True), 0)
    many = cluster(*(serving(2) for _ in range(manual.MAX_MEMBERS)))
    with pytest.raises(RequestError, match="--members"):
        manual._chosen(many, lambda alive: alive)


def test_the_inventory_has_numbers_only_from_exec() -> None:
    assert manual.read_claims(None) == {}
    member = "c0000000-0000-0000-0000-000000000000"
    assert {str(one): fence for one, fence in manual.read_claims(f'{{"{member}": 3}}').items()} == {member: 3}
    for wrong in ("[]", "3", '{"x": 1}', "{", f'{{"{member}": null}}'):
        with pytest.raises(IntentError, match="use exec"):
            manual.read_claims(wrong)
