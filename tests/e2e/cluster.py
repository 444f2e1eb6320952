"""A fleet with our app on it, as the end-to-end tests and the benchmark look at it: from the API and from the hosts."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import httpx
import hvac

from sandbox.fleet import usage
from sandbox.fleet.fleet import Fleet
from tests.commands import Call, begin, ends
from tests.e2e.evidence import FleetEvidence
from tests.leases import end_leases, holder
from tests.platform_process import ROOT, ApiClient, Doc
from tests.post_mortem import watched
from tests.runner_process import COMMAND, answer, gpuaas_slurm, inherited
from tests.waits import remember_answer
from tests.waits import until as until

T = TypeVar("T")
BIN = Path(sys.executable).parent


@contextlib.contextmanager
def fleet_named(prefix: str) -> Iterator[Fleet]:
    """A fleet of its own that is gone afterwards; whatever was done with it, every call was in the contract."""
    fleet = Fleet(f"{prefix}-{uuid.uuid4().hex[:6]}")
    with watched(FleetEvidence(fleet)):
        yield fleet
        fleet.control().clear_faults()  # all of them were met
        assert fleet.control().violations() == []


class Runner(subprocess.Popen[str]):
    """A runner to be interrupted. Its output is kept like that of every command."""

    call: Call

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        try:
            stdout, stderr = super().communicate(input, timeout)
        except subprocess.TimeoutExpired as error:
            self.call.end(f"no end within {error.timeout:.0f} s", error.stdout, error.stderr)
            raise
        self.call.end(self.returncode, stdout, stderr)
        return stdout, stderr


@dataclass
class Cluster:
    """One app instance: what was asked for, what the API reports about it, and the hosts it runs on."""

    fleet: Fleet
    instance_id: str
    variables: dict[str, str] = field(repr=False)  # secrets are in it, and pytest shows what a test was given
    ran: "subprocess.CompletedProcess[str] | None" = None
    seen: "list[Sighting]" = field(default_factory=list)
    own_process: bool = False  # its commands start as a person starts them

    def changed(self, **changes: str) -> "Cluster":
        """The same cluster, served by runners with other settings."""
        return replace(self, variables={**self.variables, **changes})

    @property
    def suite(self) -> str:
        """The Debian of the controller's host, which is the fleet's first."""
        return self.fleet.hosts()[0].spec.suite

    # -- the API, read with the operator's token ------------------------------------------------------------

    @property
    def path(self) -> str:
        return f"/projects/{self.variables['GPUAAS_PROJECT_ID']}/app-instances/{self.instance_id}"

    @functools.cached_property
    def api(self) -> ApiClient:
        return ApiClient(self.variables["GPUAAS_BASE_URL"], self.variables["GPUAAS_OPERATOR_TOKEN"])

    def end_leases(self) -> None:
        """What a killed runner held is free at once, as if its leases had run out."""
        given = {
            name: self.variables[f"GPUAAS_{name.upper()}"] for name in ("service_account_id", "key_id", "client_secret")
        }
        login = ApiClient(self.variables["GPUAAS_BASE_URL"], None)
        answer = login.post("/auth/service-account/token", given, idempotency_key=None)
        answer.raise_for_status()
        end_leases(ApiClient(self.variables["GPUAAS_BASE_URL"], answer.json()["access_token"]), self.path)

    def instance(self) -> Doc:
        return self._get("")

    def members(self) -> list[Doc]:
        return list(self._get("/members")["items"])

    def operations(self) -> list[Doc]:
        return list(self._get("/member-operations")["items"])

    def events(self) -> list[Doc]:
        return list(self._get("/events")["items"])

    def controller(self) -> Doc:
        return next(one for one in self.members() if one["component_key"] == "controller")

    def workers(self) -> dict[str, Doc]:
        """Workers by the host they are on; the fleet names an allocation after its host."""
        listed = self.api.get(f"/projects/{self.variables['GPUAAS_PROJECT_ID']}/allocations").json()["items"]
        host_of = {one["id"]: one["name"] for one in listed}
        return {host_of[one["allocation_id"]]: one for one in self.members() if one["component_key"] == "worker"}

    def _get(self, what: str) -> Doc:
        answer = self.api.get(self.path + what)
        answer.raise_for_status()
        found: Doc = answer.json()
        return found

    # -- the commands -----------------------------------------------------------------------------------------

    def command(self, *arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
        return gpuaas_slurm({**self.variables, **changes}, *arguments, own_process=self.own_process)

    def run(self, **changes: str) -> "subprocess.CompletedProcess[str]":
        return self.command("run", "--instance", self.instance_id, "--json", **changes)

    def add(self, *hosts: str) -> Doc:
        """Ask for more workers; gives back the operation."""
        made: Doc = answer(self.variables, "op", "add", self.instance_id, "--allocations", ",".join(hosts))
        return made

    def start_run(self, *arguments: str, **changes: str) -> Runner:
        """A runner of this instance, or as asked, that leads its own process group, as under a service manager."""
        arguments = arguments or ("run", "--instance", self.instance_id, "--json")
        call = begin(["gpuaas-slurm", *arguments], self.variables)
        runner = Runner(
            [COMMAND, *arguments],
            env={**inherited(), **self.variables, **changes},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        runner.call = call
        return runner

    # -- the hosts --------------------------------------------------------------------------------------------

    def on(self, host: str, *argv: str) -> str:
        """Output of a command that root runs on a host; it must succeed."""
        done = self.fleet.exec(host, argv)
        remember_answer(f"{host}: {' '.join(argv)}: {done.stdout.strip()}")
        ends(done, 0, why=f"on {host}")
        return done.stdout.strip()

    @property
    def controller_host(self) -> str:
        return str(self.controller()["adapter_detail"]["controller_hostname"])

    def process(self, host: str, unit: str) -> str:
        """Which process a unit is, and since when: the same text means that it was never restarted."""
        shown = self.on(host, "systemctl", "show", unit, "--property=MainPID,ActiveEnterTimestampMonotonic")
        assert "MainPID=0" not in shown, f"{unit} does not run on {host}"
        return shown

    def runs_a_job_on_every_worker(self) -> None:
        """Every worker takes a job and it is that worker that runs it; the one check after every change."""
        hosts = sorted(host for host, worker in self.workers().items() if _takes_jobs(worker))
        assert hosts
        output = self.on(self.controller_host, "srun", f"--nodes={len(hosts)}", "--immediate=30", "hostname")
        assert sorted(output.split()) == hosts


def _takes_jobs(worker: Doc) -> bool:
    """One that a person drained is a worker still, but takes none."""
    return worker["status"] == "ready" and "DRAIN" not in (worker["adapter_detail"]["node_state"] or "")


def by_hand(cluster: Cluster, *command: str) -> "subprocess.CompletedProcess[str]":
    """A command in the project's directory, with the settings a person has exported."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **cluster.variables, "PATH": path, "ANSIBLE_NOCOLOR": "1"}
    call = begin(command, cluster.variables)
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    call.end(done.returncode, done.stdout, done.stderr)
    return done


def in_vault(cluster: Cluster, put: dict[str, str] | None = None) -> dict[str, str]:
    """The secrets that are kept for the cluster, after others were put in their place if any are given."""
    variables = cluster.variables
    vault = hvac.Client(url=variables["VAULT_ADDR"])
    vault.auth.approle.login(role_id=variables["VAULT_ROLE_ID"], secret_id=variables["VAULT_SECRET_ID"])
    kv, path = vault.secrets.kv.v2, f"projects/{variables['GPUAAS_PROJECT_ID']}/app-instances/{cluster.instance_id}"
    if put is not None:
        kv.create_or_update_secret(path=path, secret=put)
    return dict(kv.read_secret_version(path=path, raise_on_deleted_version=True)["data"]["data"])


def deploy(fleet: Fleet, controller: str, workers: str = "", *more: str, **changes: str) -> Cluster:
    """What a person types; nothing happens on a host yet."""
    variables = {**fleet.env(), "GPUAAS_LOG_FORMAT": "json", **changes}
    listed = ["--workers", workers] if workers else []
    made: Mapping[str, str] = answer(variables, "deploy", "--controller", controller, *listed, *more)
    usage.record(cluster=1)
    return Cluster(fleet, made["id"], variables)


@dataclass(frozen=True)
class Sighting:
    """What a person who polls the API saw at one moment: the instance, and status and phase of each member."""

    status: str
    health: str
    members: tuple[tuple[str, str, str], ...]

    def of(self, member_id: str) -> tuple[str, str] | None:
        return next(((status, phase) for one, status, phase in self.members if one == member_id), None)


class Poller:
    """A client that polls the API while the runner works, and records every change."""

    def __init__(self, *clusters: Cluster) -> None:
        self._clusters = clusters
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._look()  # what was there before anything began
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            with contextlib.suppress(httpx.HTTPError):
                self._look()

    def _look(self) -> None:
        for cluster in self._clusters:
            instance = cluster.instance()
            members = tuple(
                # A member that the platform made has no detail until the adapter gives it one.
                sorted(
                    (one["id"], one["status"], one["adapter_detail"].get("phase", "requested"))
                    for one in cluster.members()
                )
            )
            sighting = Sighting(instance["status"], instance["health"], members)
            if not cluster.seen or cluster.seen[-1] != sighting:
                cluster.seen.append(sighting)


def distinct(values: list[T]) -> list[T]:
    """Without repetitions of neighbours."""
    return [value for place, value in enumerate(values) if place == 0 or values[place - 1] != value]


def log_lines(text: str) -> list[Doc]:
    """A runner's JSON log."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def kill(process: "subprocess.Popen[str]") -> None:
    """End it with SIGKILL: it writes nothing more and hands nothing back."""
    process.send_signal(signal.SIGKILL)
    process.communicate()


def nothing_is_claimed(cluster: Cluster) -> None:
    now = datetime.now(UTC)
    for operation in cluster.operations():
        until_when = operation["lease_expires_at"]
        assert operation["status"] != "running" or datetime.fromisoformat(until_when) <= now
    assert [one for one in cluster.members() if holder(one)] == []


def happened_once(cluster: Cluster, *, workers: int) -> None:
    """A scenario with interruptions ends like one without: no second member, no second event."""
    instance = cluster.instance()
    assert (instance["status"], instance["health"]) == ("running", "healthy"), instance["status_detail"]
    assert sorted(one["component_key"] for one in cluster.members()) == ["controller", *["worker"] * workers]
    assert {one["status"] for one in cluster.members()} == {"ready"}
    assert [one["type"] for one in cluster.events()] == ["apps.instance.requested", "apps.instance.running"]
    nothing_is_claimed(cluster)
    cluster.runs_a_job_on_every_worker()
