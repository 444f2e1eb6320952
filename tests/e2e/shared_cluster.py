"""A shared runtime on a fleet: what its tenant's administrator, its runner and the users of its projects do and see."""

import functools
import json
import shlex
import subprocess
from dataclasses import dataclass, field
from uuid import UUID

from sandbox.fleet import usage
from sandbox.fleet.fleet import Fleet
from tests.commands import begin, ends
from tests.e2e.cluster import Cluster, until
from tests.platform_process import ApiClient, Doc
from tests.runner_process import COMMAND, answer, gpuaas_slurm, inherited


@dataclass
class SharedCluster(Cluster):
    """`variables` are those of the runtime's operator identity; people use the administrator's."""

    admin: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> str:
        return f"/orgs/{self.variables['GPUAAS_ORG_ID']}/shared-app-runtimes/{self.instance_id}"

    @functools.cached_property
    def api(self) -> ApiClient:
        return ApiClient(self.admin["GPUAAS_BASE_URL"], self.admin["GPUAAS_OPERATOR_TOKEN"])

    def members(self) -> list[Doc]:
        return list(self._get("/workers")["items"])

    def operations(self) -> list[Doc]:
        return list(self._get("/worker-operations")["items"])

    def workers(self) -> dict[str, Doc]:
        host_of = {one["id"]: one["name"] for one in self._get("/allocations")["items"]}
        return {host_of[one["allocation_id"]]: one for one in self.members() if one["component_key"] == "worker"}

    def command(self, *arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
        """An upgrade of three hosts in one run takes more than the usual five minutes where others use the machine."""
        return gpuaas_slurm({**self.variables, **changes}, *arguments, timeout=900)

    # -- what the administrator does --

    def shared(self, *arguments: str, code: int = 0) -> str:
        done = gpuaas_slurm(self.admin, "shared", *arguments)
        ends(done, code)
        return done.stdout + done.stderr

    def ask(self, verb: str, *arguments: str) -> Doc:
        asked: Doc = answer(self.admin, "op", verb, self.instance_id, *arguments)
        return asked

    def outcome(self, asked: Doc) -> Doc:
        """The operation as it is now, of the runtime or of its workers."""
        listed = [*self.operations(), *self._get("/operations")["items"]]
        return next(one for one in listed if one["id"] == asked["id"])

    def carry_out(self, verb: str, *arguments: str, **changes: str) -> Doc:
        """An operation that runs to its success; gives it as it ended."""
        asked = self.ask(verb, *arguments)

        def ended() -> bool:
            ends(self.run(**changes), 0)
            return bool(self.outcome(asked)["status"] == "succeeded")

        until(ended, 600, f"{verb} succeeds", every=1)
        return self.outcome(asked)

    def who(self, project: str) -> Doc:
        """The project's last row of `shared who`."""
        found: list[Doc] = answer(self.admin, "shared", "who")["projects"]
        return [one for one in found if one["project"] == project][-1]

    def jobs(self) -> list[Doc]:
        """The documented command: which project and identity each job belongs to."""
        rows = self.on("gs-1", "sacct", "-aP", "--starttime=2020-01-01", "--format=JobID,Account,User,State,JobName")
        call = begin(["gpuaas-slurm", "shared", "jobs"], self.admin)
        environment = {**inherited(), **self.admin}
        argv = [COMMAND, "shared", "jobs"]
        done = subprocess.run(argv, input=rows, env=environment, capture_output=True, text=True, check=False)
        call.end(done.returncode, done.stdout, done.stderr)
        found: list[Doc] = json.loads(ends(done, 0).stdout)
        return found

    # -- what users do --

    def as_user(self, user: str, *argv: str, host: str = "gs-1") -> "subprocess.CompletedProcess[str]":
        return self.fleet.exec(host, ["runuser", "--login", user, "-c", f"cd /tmp && {shlex.join(argv)}"])

    def may_submit(self, user: str) -> bool:
        """Tried: accepted, or refused at once with a sentence."""
        done = self.as_user(user, "sbatch", "--parsable", "--output=/dev/null", "--hold", "--time=5", "--wrap=true")
        if done.returncode == 0:
            self.on("gs-1", "scancel", done.stdout.strip())
            return True
        assert "submission failed" in done.stderr, done.stderr
        return False

    def start(self, user: str, host: str) -> str:
        """A job of the user that runs until `let_go`."""
        held = "until [ -e /tmp/go-$SLURM_JOB_ID ]; do sleep 0.2; done"
        options = ("--parsable", "--output=/dev/null", "--time=60", f"--nodelist={host}")
        job = ends(self.as_user(user, "sbatch", *options, f"--wrap={held}"), 0).stdout.strip()
        until(lambda: self.state(job) == "RUNNING", 60, f"job {job} runs")
        return job

    def let_go(self, job: str, host: str) -> None:
        self.on(host, "touch", f"/tmp/go-{job}")
        until(lambda: self.state(job) == "COMPLETED", 60, f"job {job} ends", seen=lambda: self.state(job))

    def state(self, job: str) -> str:
        shown = self.on("gs-1", "sacct", "-XnP", f"--jobs={job}", "--starttime=2020-01-01", "--format=State")
        return (shown.splitlines() or [""])[-1]


def account(project: str) -> str:
    return f"p_{UUID(project).hex[:12]}"


def deploy_shared(fleet: Fleet, controller: str, workers: str) -> tuple[SharedCluster, str]:
    """What the administrator types, and what it prints; nothing happens on a host yet."""
    own, admin = fleet.env(), {**fleet.administrator_env(), "GPUAAS_LOG_FORMAT": "json"}
    ids = [fleet.allocation_id(host) for host in (controller, *workers.split(","))]
    asked = (
        *("shared", "deploy", "--owner", own["GPUAAS_PROJECT_ID"], "--controller", ids[0]),
        *("--workers", ",".join(ids[1:]), "--access-credential", own["GPUAAS_ACCESS_CREDENTIAL_ID"], "--json"),
    )
    done = gpuaas_slurm(admin, *asked)
    made = json.loads(ends(done, 0).stdout)
    usage.record(cluster=1)
    runner = {**fleet.runtime_env(made["id"]), "GPUAAS_LOG_FORMAT": "json", "GPUAAS_RETRY_SECONDS": "0"}
    return SharedCluster(fleet, made["id"], runner, admin=admin), done.stderr
