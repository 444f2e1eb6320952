"""Workers that a project contributes to a shared cluster: runner, platform and hosts together, in order.

The project's machines are opened by its own credential and by no other. Users try as themselves, never as root.
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sandbox.fleet.fleet import Fleet
from sandbox.fleet.images import SUITES
from tests.commands import ends
from tests.e2e.cluster import fleet_named, until
from tests.platform_process import ApiClient, Doc
from tests.runner_process import answer, gpuaas_slurm

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("tenant")]

START, RESERVED, GIVEN, OPEN = "gs-1", "gs-2", "gs-3", "gs-4"
FOREIGN_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8y7O0l4YnFQe1oVh1xG8wVd1c7eQyM0z5mQz3xT9aB somebody@else"
KEYS = "/root/.ssh/authorized_keys"


@dataclass
class Shared:
    """A tenant with a runtime, and two projects: blue has machines, red has none."""

    fleet: Fleet
    org_id: str
    runtime_id: str
    admin: dict[str, str]
    operator: dict[str, str]
    projects: dict[str, dict[str, str]]

    @property
    def path(self) -> str:
        return f"/orgs/{self.org_id}/shared-app-runtimes/{self.runtime_id}"

    def items(self, what: str) -> list[Doc]:
        found = ApiClient(self.admin["GPUAAS_BASE_URL"], self.admin["GPUAAS_OPERATOR_TOKEN"]).get(f"{self.path}/{what}")
        found.raise_for_status()
        listed: list[Doc] = found.json()["items"]
        return listed

    def runtime(self) -> Doc:
        client = ApiClient(self.admin["GPUAAS_BASE_URL"], self.admin["GPUAAS_OPERATOR_TOKEN"])
        shown: Doc = client.get(self.path).json()
        return shown

    def reasons(self) -> dict[str, str]:
        return {one["code"]: one["message"] for one in self.runtime()["status_detail"].get("reasons", [])}

    def id_of(self, project: str) -> str:
        return self.projects[project]["GPUAAS_PROJECT_ID"]

    def account(self, project: str) -> str:
        return f"p_{self.id_of(project).replace('-', '')[:12]}"

    def run(self, code: int = 0) -> None:
        """One pass of the runner."""
        ends(gpuaas_slurm({**self.operator, "GPUAAS_OBSERVE_SECONDS": "0"}, "run", "--json", timeout=600), code)

    def as_project(self, project: str, *arguments: str) -> Any:
        ids = ("--org", self.org_id, "--runtime", self.runtime_id)
        return answer(self.projects[project], "shared", *arguments, *ids)

    def contribute(self, host: str, project: str = "blue") -> Doc:
        allocation = self.allocation(host)
        credential = self.projects[project]["GPUAAS_ACCESS_CREDENTIAL_ID"]
        made: Doc = self.as_project(
            project, "contribute", "--allocations", allocation, "--access-credential", credential
        )
        return made

    def allocation(self, host: str) -> str:
        blue = self.fleet.projects.get("blue")
        return blue.allocation_id(next(one for one in self.fleet.hosts() if one.name == host))

    def operation(self, operation_id: str) -> Doc:
        return next(one for one in self.items("worker-operations") if one["id"] == operation_id)

    def awaits_end(self, operation_id: str) -> None:
        def ended() -> bool:
            self.run()
            return bool(self.operation(operation_id)["status"] == "succeeded")

        until(ended, 400, "the operation has succeeded")

    def worker(self, host: str) -> Doc:
        """The newest on the host."""
        found = [one for one in self.items("workers") if one["allocation_id"] == self.allocation(host)]
        return max(found, key=lambda one: one["created_at"])

    def on(self, host: str, command: str) -> str:
        return ends(self.fleet.exec(host, ["sh", "-c", command]), 0, why=f"on {host}").stdout.strip()

    def try_as(self, user: str, command: str) -> tuple[bool, str]:
        done = self.fleet.exec(START, ["runuser", "-l", user, "-c", f"cd /tmp && {command}"])
        return done.returncode == 0, done.stdout + done.stderr

    def submit(self, user: str, *options: str, wrap: str = "sleep 3000") -> str:
        line = shlex.join(["sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={wrap}"])
        accepted, output = self.try_as(user, line)
        assert accepted, output
        return output.strip().splitlines()[-1]

    def state(self, job: str) -> str:
        return self.on(START, f"squeue --noheader --format='%T %N' --jobs={job} 2>/dev/null || true")

    def processes(self) -> list[str]:
        show = "systemctl show --property=MainPID slurmctld slurmdbd"
        return [self.on(START, show), self.on(RESERVED, "systemctl show --property=MainPID slurmd")]


@pytest.fixture(scope="module", params=SUITES)
def tenant(request: pytest.FixtureRequest) -> Iterator[Shared]:
    with fleet_named(f"e2e-contributed-{request.param}") as fleet:
        fleet.up(hosts=4, suite=request.param, warm=True)
        fleet.add_project("blue", [GIVEN, OPEN])
        fleet.add_project("red")
        fleet.set_people([{"subject": "idp|bob", "username": "bob"}], "blue")
        fleet.set_people([{"subject": "idp|cat", "username": "cat"}], "red")
        owner, admin = fleet.env(), fleet.administrator_env()
        made = answer(
            admin,
            *("shared", "deploy", "--owner", owner["GPUAAS_PROJECT_ID"]),
            *("--controller", fleet.allocation_id(START), "--workers", fleet.allocation_id(RESERVED)),
            *("--access-credential", owner["GPUAAS_ACCESS_CREDENTIAL_ID"]),
        )
        operator = {**fleet.runtime_env(made["id"]), "GPUAAS_LOG_FORMAT": "json"}
        projects = {name: fleet.env(name) for name in ("blue", "red")}
        yield Shared(fleet, admin["GPUAAS_ORG_ID"], made["id"], admin, operator, projects)


def test_a_shared_runtime_is_deployed_and_projects_are_attached(tenant: Shared) -> None:
    tenant.run()
    assert (tenant.runtime()["status"], tenant.runtime()["health"]) == ("running", "healthy"), tenant.reasons()
    for project, more in {"blue": ["--may-contribute"], "red": []}.items():
        answer(tenant.admin, "shared", "attach", tenant.id_of(project), *more)
    answer(tenant.admin, "shared", "allow", tenant.id_of("blue"), "--partition", "own")
    answer(tenant.admin, "shared", "allow", tenant.id_of("red"), "--partition", "main")
    tenant.run()
    assert {one["status"] for one in tenant.items("attachments")} == {"active"}


def test_a_project_without_consent_is_refused_by_the_platform(tenant: Shared) -> None:
    done = gpuaas_slurm(
        tenant.projects["red"],
        *("shared", "contribute", "--allocations", tenant.allocation(GIVEN)),
        *("--access-credential", tenant.projects["red"]["GPUAAS_ACCESS_CREDENTIAL_ID"]),
        *("--org", tenant.org_id, "--runtime", tenant.runtime_id),
    )
    assert done.returncode != 0 and "active with may_contribute" in done.stderr


def test_a_contributed_machine_joins_with_the_credential_of_its_project(tenant: Shared) -> None:
    asked = tenant.contribute(GIVEN)
    tenant.run()
    shown = tenant.operation(asked["id"])
    assert shown["status"] == "succeeded", shown
    worker = tenant.worker(GIVEN)
    assert (worker["status"], worker["source_project_id"]) == ("ready", tenant.id_of("blue")), worker
    assert tenant.on(START, f"sinfo --noheader --partition={tenant.account('blue')} --format=%N") == GIVEN
    assert tenant.on(START, "sinfo --noheader --partition=main --format=%N") == RESERVED
    assert tenant.on(START, f"scontrol show node {GIVEN} | grep -o ActiveFeatures=.*").endswith(tenant.account("blue"))
    # Its machine was offered one key: the project's own.
    offered = tenant.on(GIVEN, "journalctl --unit=ssh --no-pager --output=cat | grep -c 'Failed publickey' || true")
    assert offered == "0"


def test_users_of_the_project_run_there_and_no_other_does(tenant: Shared) -> None:
    tenant.run()
    blue = tenant.account("blue")
    accepted, output = tenant.try_as("bob", f"srun -p {blue} hostname")
    assert accepted and GIVEN in output
    for user, line in (("cat", f"-p {blue}"), ("cat", f"-p {blue} -A {blue}"), ("bob", "-p main")):
        accepted, output = tenant.try_as(user, f"sbatch --output=/dev/null {line} --wrap=true")
        assert not accepted and "rror" in output, (user, line, output)
    job = tenant.submit("cat", wrap="hostname")
    until(lambda: tenant.state(job) == "", 60, "the other project's job ran on the reserved worker")
    assert tenant.on(START, f"sacct -n -X -P -j {job} --format=State,NodeList") == f"COMPLETED|{RESERVED}"


def test_a_host_with_another_way_to_root_is_refused_and_named(tenant: Shared) -> None:
    tenant.on(OPEN, f"mkdir -p /root/.ssh && echo '{FOREIGN_KEY}' >{KEYS}")
    tenant.on(OPEN, "echo 'backup ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/backup")
    tenant.on(OPEN, "useradd --non-unique --uid 0 toor")
    before = tenant.processes()
    asked = tenant.contribute(OPEN)
    tenant.run(code=1)
    error = tenant.worker(OPEN)["adapter_detail"]["last_adapter_error"]
    assert error["code"] == "foreign_root_access"
    for named in ("somebody@else", "sudo lets user backup in", "user toor has uid 0"):
        assert named in error["message"], error
    assert tenant.operation(asked["id"])["status"] == "failed"
    assert tenant.on(OPEN, "ls /etc/munge/munge.key 2>/dev/null || true") == "", "it got no key"
    assert tenant.processes() == before, "a further worker changes no daemon"


def test_a_trusted_project_may_contribute_it_and_health_lists_the_ways(tenant: Shared) -> None:
    answer(tenant.admin, "shared", "contributor", tenant.id_of("blue"), "--trusted")
    removed = answer(
        tenant.projects["blue"],
        *("shared", "withdraw", "--members", tenant.worker(OPEN)["id"]),
        *("--org", tenant.org_id, "--runtime", tenant.runtime_id),
    )
    tenant.run()
    assert tenant.operation(removed["id"])["status"] == "succeeded"
    assert "munge_key_exposed" not in tenant.reasons(), "the refused host never had the key"
    asked = tenant.contribute(OPEN)
    tenant.run()
    assert tenant.operation(asked["id"])["status"] == "succeeded", tenant.operation(asked["id"])
    assert "user toor has uid 0" in tenant.worker(OPEN)["adapter_detail"]["foreign_root"]
    assert "toor" in tenant.reasons()["foreign_root_trusted"] and tenant.runtime()["health"] == "healthy"


def test_a_withdrawal_waits_for_the_jobs_and_then_cleans_the_host(tenant: Shared) -> None:
    blue = tenant.account("blue")
    job = tenant.submit("bob", "-p", blue, f"--nodelist={GIVEN}", wrap="sleep 40")
    until(lambda: tenant.state(job) == f"RUNNING {GIVEN}", 60, "the job runs on the contributed worker")
    asked = tenant.as_project("blue", "withdraw", "--members", tenant.worker(GIVEN)["id"])
    tenant.run()
    assert tenant.worker(GIVEN)["status"] == "draining" and tenant.state(job) == f"RUNNING {GIVEN}"
    tenant.awaits_end(asked["id"])
    assert tenant.on(START, f"sacct -n -X -P -j {job} --format=State") == "COMPLETED"
    gone = tenant.worker(GIVEN)
    assert (gone["status"], gone["adapter_detail"]["host_cleaned"]) == ("deleted", True)
    assert tenant.on(GIVEN, "ls /etc/munge/munge.key /etc/gpuaas-slurm 2>/dev/null || true") == ""
    delivered = ApiClient(tenant.operator["GPUAAS_BASE_URL"], operator_token(tenant)).post(
        f"{tenant.path}/access-credentials/{gone['access_credential_id']}/deliveries", {}
    )
    assert delivered.status_code == 201, "its other machine is still in the cluster"


def test_the_exposed_key_is_named_until_it_is_rotated(tenant: Shared) -> None:
    tenant.run()
    shown = tenant.reasons()
    assert tenant.id_of("blue") in shown["munge_key_exposed"] and tenant.runtime()["health"] == "degraded", shown
    answer(tenant.admin, "op", "rotate-credentials", tenant.runtime_id)
    tenant.run()
    tenant.run()
    assert "munge_key_exposed" not in tenant.reasons() and tenant.runtime()["health"] == "healthy", tenant.reasons()
    accepted, output = tenant.try_as("bob", f"srun -p {tenant.account('blue')} hostname")
    assert accepted and OPEN in output


def test_after_the_last_worker_the_partition_stays_and_is_closed(tenant: Shared) -> None:
    blue = tenant.account("blue")
    waiting = tenant.submit("bob", "-p", blue, "--begin=now+1hour")
    asked = tenant.as_project("blue", "withdraw", "--members", tenant.worker(OPEN)["id"])
    tenant.awaits_end(asked["id"])
    tenant.run()
    shown = tenant.on(START, f"scontrol --oneliner show partition {blue}")
    assert "AllowAccounts=gpuaas_closed" in shown and "TotalNodes=0" in shown
    assert tenant.state(waiting).startswith("PENDING"), "its waiting job was not ended"
    accepted, output = tenant.try_as("bob", f"sbatch --output=/dev/null -p {blue} --wrap=true")
    assert not accepted and "rror" in output
    done = ApiClient(tenant.operator["GPUAAS_BASE_URL"], operator_token(tenant)).post(
        f"{tenant.path}/access-credentials/{tenant.projects['blue']['GPUAAS_ACCESS_CREDENTIAL_ID']}/deliveries", {}
    )
    assert done.status_code == 404, "the grant of its credential has ended"


def operator_token(tenant: Shared) -> str:
    given = {
        "shared_runtime_id": tenant.runtime_id,
        "key_id": tenant.operator["GPUAAS_KEY_ID"],
        "client_secret": tenant.operator["GPUAAS_CLIENT_SECRET"],
    }
    login = ApiClient(tenant.operator["GPUAAS_BASE_URL"], None)
    made = login.post("/auth/shared-runtime-operator/token", given, idempotency_key=None)
    made.raise_for_status()
    return str(json.loads(made.text)["access_token"])
