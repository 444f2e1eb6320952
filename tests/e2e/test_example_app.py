"""The example app of docs/onboarding.md on hosts, from an empty environment to hosts that are as they were."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from sandbox.fleet.fleet import Fleet
from sandbox.fleet.hosts import LOGIN_USER
from sandbox.fleet.keys import KeyPair
from sandbox.platform.control_client import ControlClient
from tests.commands import ends, recorded
from tests.e2e.cluster import fleet_named, until
from tests.platform_process import ROOT, ApiClient, Doc
from tests.runner_process import inherited

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("farm")]

APP = ROOT / "examples" / "web_farm" / "app"
ASK = "import urllib.request as u; r = u.urlopen('http://127.0.0.1:8080/'); print(r.headers['X-Web-Farm'], r.read())"
BREAK_APT = "mkdir /root/apt && mv /etc/apt/sources.list* /root/apt/ && rm -rf /var/lib/apt/lists/*"
PAGE = "served {{ 7 * 6 }} times"  # text of a person, which no play may evaluate


@recorded
def run_farm(variables: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The farm's own command, with these settings and no other."""
    argv = [sys.executable, "-m", "examples.web_farm", *arguments]
    environment = {**inherited(), **variables}
    return subprocess.run(argv, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)


@dataclass
class Farm:
    """One farm: what was asked for, what the API reports about it, and the hosts it runs on."""

    fleet: Fleet
    variables: dict[str, str] = field(repr=False)
    instance_id: str = ""
    before: dict[str, str] = field(default_factory=dict)  # what each host had before anything was done

    @property
    def api(self) -> ApiClient:
        return ApiClient(self.variables["GPUAAS_BASE_URL"], self.variables["GPUAAS_OPERATOR_TOKEN"])

    @property
    def control(self) -> ControlClient:
        return self.fleet.control()

    @property
    def project(self) -> str:
        return self.variables["GPUAAS_PROJECT_ID"]

    @property
    def path(self) -> str:
        return f"/projects/{self.project}/app-instances/{self.instance_id}"

    def deploy(self, balancer: str, *webs: str) -> None:
        body = {
            "app_slug": "web-farm",
            "app_version": "0.1.0",
            "placement_intent": {
                "balancer_allocation_id": self.fleet.allocation_id(balancer),
                "web_allocation_ids": [self.fleet.allocation_id(one) for one in webs],
            },
            "config": {"page": PAGE},
            "access_credential_id": self.variables["GPUAAS_ACCESS_CREDENTIAL_ID"],
        }
        self.instance_id = self.made(f"/projects/{self.project}/app-instances", body)["id"]

    def made(self, path: str, body: Doc) -> Doc:
        answer = self.api.post(path, body)
        assert answer.status_code == 201, answer.text
        found: Doc = answer.json()
        return found

    def request(self, operation: str, **more: Any) -> Doc:
        return self.made(f"{self.path}/member-operations", {"operation": operation, "component_key": "web", **more})

    def add(self, *hosts: str) -> Doc:
        return self.request("add", allocation_ids=[self.fleet.allocation_id(one) for one in hosts])

    def run(self, **changes: str) -> "subprocess.CompletedProcess[str]":
        return run_farm({**self.variables, **changes}, "run")

    def get(self, what: str = "") -> Any:
        answer = self.api.get(self.path + what)
        answer.raise_for_status()
        return answer.json()["items"] if what else answer.json()

    def ended(self, operation: Doc) -> Doc:
        found: Doc = next(one for one in self.get("/member-operations") if one["id"] == operation["id"])
        return found

    def member_on(self, host: str) -> Doc:
        """The newest member on a host."""
        found = [one for one in self.get("/members") if one["allocation_id"] == self.fleet.allocation_id(host)]
        return max(found, key=lambda one: str(one["created_at"]))

    def on(self, host: str, *argv: str) -> str:
        done = self.fleet.exec(host, argv)
        ends(done, 0, why=f"on {host}")
        return done.stdout.strip()

    def served_by(self) -> set[str]:
        """The web members that answer through the balancer, each of them by its host's name."""
        answers = [self.on("gs-1", "python3", "-c", ASK).split(" ", 1) for _ in range(6)]
        assert {page for _, page in answers} == {repr(f"{PAGE}\n".encode())}
        return {host for host, _ in answers}

    def picture(self, host: str) -> str:
        """Packages, accounts, enabled units and listening ports of a host."""
        look = "dpkg-query -W -f '${Package} ${Status}\\n'; getent passwd; ls /etc/systemd/system/*.wants; ls /etc /srv"
        return self.on(host, "sh", "-c", look)


def principal(fleet: Fleet) -> dict[str, str]:
    """From an empty environment to a runner's settings: everything that an app team is given, and nothing else."""
    control, given = fleet.control(), fleet.env()
    keys = yaml.safe_load((APP / "action-keys.yaml").read_text())
    control.register_app(yaml.safe_load((APP / "manifest.yaml").read_text()))
    project = given["GPUAAS_PROJECT_ID"]
    account = control.create_service_account(project, "farm", [one["key"] for one in keys["service_account"]])
    token = control.operator_token(project, "farm-operator", [one["key"] for one in keys["operator"]])
    role = control.create_approle(project)
    return {
        "GPUAAS_BASE_URL": given["GPUAAS_BASE_URL"],
        "GPUAAS_PROJECT_ID": project,
        "GPUAAS_SERVICE_ACCOUNT_ID": account["service_account_id"],
        "GPUAAS_KEY_ID": account["key_id"],
        "GPUAAS_CLIENT_SECRET": account["client_secret"],
        "GPUAAS_OPERATOR_TOKEN": token,
        "GPUAAS_ACCESS_CREDENTIAL_ID": given["GPUAAS_ACCESS_CREDENTIAL_ID"],
        "GPUAAS_LOG_FORMAT": "json",
        "GPUAAS_RETRY_SECONDS": "0",
        "VAULT_ADDR": given["VAULT_ADDR"],
        "VAULT_ROLE_ID": role["role_id"],
        "VAULT_SECRET_ID": role["secret_id"],
    }


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    """gs-1 for the balancer, gs-2 for its first web member, gs-3 and gs-4 in reserve. No host has nginx."""
    with fleet_named("e2e-farm") as fleet:
        fleet.up(hosts=4, suite="trixie")
        made = Farm(fleet, principal(fleet))
        made.before = {host.name: made.picture(host.name) for host in fleet.hosts()}
        yield made


def test_a_deploy_brings_up_the_balancer_and_its_first_web_members(farm: Farm) -> None:
    farm.deploy("gs-1", "gs-2")
    ends(farm.run(), 0)
    instance = farm.get()
    assert (instance["status"], instance["health"]) == ("running", "healthy"), instance["status_detail"]
    assert {one["status"] for one in farm.get("/members")} == {"ready"}
    assert farm.served_by() == {"gs-2"}
    types = [one["type"] for one in farm.get("/events")]
    assert (types[0], types[-1]) == ("apps.instance.requested", "apps.instance.running")
    assert {one["correlation_id"] for one in farm.get("/events")} == {instance["correlation_id"]}


def test_an_add_joins_the_others_and_a_second_run_changes_nothing(farm: Farm) -> None:
    operation = farm.add("gs-3")
    ends(farm.run(), 0)
    assert farm.ended(operation)["status"] == "succeeded"
    assert farm.served_by() == {"gs-2", "gs-3"}
    since = farm.control.requests()["last"]
    ends(farm.run(GPUAAS_OBSERVE_SECONDS="3600"), 0)
    made = [one["method"] for one in farm.control.requests(since)["requests"] if "/auth/" not in one["path"]]
    assert set(made) == {"GET"}


def test_an_add_of_an_allocation_in_use_is_refused_and_touches_no_host(farm: Farm) -> None:
    operation = farm.add("gs-2")
    ends(farm.run(), 1)
    ended = farm.ended(operation)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "allocation_in_use")
    assert farm.served_by() == {"gs-2", "gs-3"}


def test_an_add_that_fails_on_its_host_says_why_and_disturbs_no_other(farm: Farm) -> None:
    farm.on("gs-4", "sh", "-c", BREAK_APT)
    operation = farm.add("gs-4")
    ends(farm.run(), 1)
    ended, member, instance = farm.ended(operation), farm.member_on("gs-4"), farm.get()
    error = member["adapter_detail"]["last_adapter_error"]
    assert (ended["status"], member["status"]) == ("failed", "failed")
    assert ended["error"]["code"] == error["code"] == "package_not_found", error
    assert (instance["status"], instance["health"]) == ("running", "degraded")
    assert [one["code"] for one in instance["status_detail"]["reasons"]] == ["package_not_found"]
    assert farm.served_by() == {"gs-2", "gs-3"}
    farm.on("gs-4", "sh", "-c", "mv /root/apt/* /etc/apt/ && rmdir /root/apt && apt-get --quiet update")


def test_a_credential_revoked_in_the_middle_of_a_run_opens_no_further_play(farm: Farm) -> None:
    """The run has two plays. The key of the first is in its agent already; the second asks for it and is refused."""
    credential = farm.variables["GPUAAS_ACCESS_CREDENTIAL_ID"]
    removal, joining = farm.request("remove", member_ids=[farm.member_on("gs-3")["id"]]), farm.add("gs-4")
    since = farm.control.requests()["last"]

    def delivered() -> bool:
        return any(one["path"].endswith("/deliveries") for one in farm.control.requests(since)["requests"])

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(farm.run)
        until(delivered, 120, "the key's delivery for the first play", every=0.05)
        farm.control.set_credential_status(farm.project, credential, "revoked")
        ends(running.result(), 1)
    refused = farm.ended(joining)
    assert farm.ended(removal)["status"] == "succeeded"
    assert farm.member_on("gs-3")["status"] == "deleted"
    assert farm.picture("gs-3") == farm.before["gs-3"], "a removed member leaves its host as it was"
    assert (refused["status"], refused["error"]["code"]) == ("failed", "credential_unavailable")
    assert "revoked" in refused["error"]["message"]
    assert "nginx" not in farm.on("gs-4", "ps", "-eo", "args"), "the second play did not begin"
    assert farm.served_by() == {"gs-2"}, "what runs goes on without the credential"


def test_a_rotated_credential_opens_the_machines_again(farm: Farm) -> None:
    key, credential = KeyPair.generate(), str(uuid.uuid4())
    for host in farm.fleet.hosts():
        farm.on(host.name, "sh", "-c", f"echo '{key.public}' > /home/{LOGIN_USER}/.ssh/authorized_keys")
    farm.control.put_credential(farm.project, credential, username=LOGIN_USER, private_key=key.private)
    answer = farm.api.patch(farm.path, {"access_credential_id": credential})
    assert answer.status_code == 200, answer.text
    joining = farm.add("gs-4")
    ends(farm.run(), 0)
    assert farm.ended(joining)["status"] == "succeeded"
    assert farm.served_by() == {"gs-2", "gs-4"}
    assert farm.get()["health"] == "healthy"


def test_a_decommission_leaves_every_host_as_it_was(farm: Farm) -> None:
    farm.made(f"{farm.path}/operations", {"operation": "decommission"})
    ends(farm.run(), 0)
    assert farm.get()["status"] == "deleted"
    assert {one["status"] for one in farm.get("/members")} == {"deleted"}
    assert {host: farm.picture(host) for host in farm.before} == farm.before
    assert [one["type"] for one in farm.get("/events")][-1] == "apps.instance.deleted"
