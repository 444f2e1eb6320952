"""The sandbox's commands for a tenant: more projects with hosts of their own, people, administrator and operator."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sandbox.cli import app
from sandbox.fleet.enrolment import enrol, register_hosts
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.hosts import Host, HostSpec
from sandbox.platform.process import Running
from tests.platform_process import ROOT, ApiClient, Doc, Platform, our_manifest


class NoHosts:
    """In place of podman: two hosts that run, and the key that each lets in."""

    keys: dict[str, str]

    def __init__(self) -> None:
        self.keys = {}

    def current(self) -> list[Host]:
        return [_host(number) for number in (1, 2)]

    def get(self, name: str) -> Host:
        return next(host for host in self.current() if host.name == name)

    def authorize(self, key: str, hosts: list[Host]) -> None:
        self.keys |= {host.name: key for host in hosts}


def _host(number: int) -> Host:
    return Host(HostSpec(f"gs-{number}", "bookworm"), f"c{number}", f"m{number}", "running", f"192.0.2.{number}", "k")


@pytest.fixture
def hosts(platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NoHosts]:
    """A fleet `demo` that is up on the tests' platform."""
    made = NoHosts()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    admin_token = (platform.state / "admin.token").read_text().strip()
    monkeypatch.setattr(Fleet, "_platform", lambda _: Running(platform.base_url, 1, admin_token))
    monkeypatch.setattr(Fleet, "_hosts", lambda _: made)
    fleet = Fleet("demo")
    enrolment = enrol(platform.control, ROOT / "app", None)
    register_hosts(platform.control, enrolment, made.current()).save(fleet._record)
    yield made
    # A fleet allows every artifact; other tests on this platform count on the former rule.
    platform.control.put_artifact_rule("sandbox-allows", scope="global", effect="allow", artifact="slurm")


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output
    return done.output


def variables(*arguments: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(run(*arguments, "--json"))
    return found


def active(platform: Platform, values: dict[str, str]) -> list[str]:
    client = ApiClient(platform.base_url, values["GPUAAS_OPERATOR_TOKEN"])
    items = client.get(f"/projects/{values['GPUAAS_PROJECT_ID']}/allocations?status=active").json()["items"]
    return [one["name"] for one in items]


def test_a_further_project_is_in_the_same_tenant_with_its_own_hosts_and_key(platform: Platform, hosts: NoHosts) -> None:
    run("tenant", "project", "blue", "--hosts", "gs-2")
    first, second = variables("env"), variables("env", "--project", "blue")
    assert {one.org_id for one in Fleet("demo").projects.all().values()} == {Fleet("demo")._enrolment().org_id}
    assert not any("GPUAAS_ORG_ID" in one for one in (first, second)), "it would exclude the project"
    assert (active(platform, first), active(platform, second)) == (["gs-1"], ["gs-2"])
    assert list(hosts.keys) == ["gs-2"]
    assert "already" in run("tenant", "project", "blue", code=1)
    assert "belongs to project 'blue'" in run("tenant", "project", "red", "--hosts", "gs-2", code=1)
    assert "known: blue" in run("env", "--project", "green", code=1)


def test_a_shell_that_changes_its_identity_keeps_nothing_of_the_former(platform: Platform, hosts: NoHosts) -> None:
    """The settings of one identity beside those of another are refused: a runner has one scope."""
    for command, names in (
        (("env",), {"GPUAAS_PROJECT_ID", "GPUAAS_SERVICE_ACCOUNT_ID"}),
        (("tenant", "admin"), {"GPUAAS_ORG_ID"}),
    ):
        lines = run(*command).splitlines()
        gone = {line.removeprefix("unset ") for line in lines if line.startswith("unset ")}
        exported = set(variables(*command))
        assert names <= exported and "GPUAAS_SHARED_RUNTIME_ID" in gone and not gone & exported
        assert {"GPUAAS_PROJECT_ID", "GPUAAS_ORG_ID"} <= gone | exported


def test_an_administrator_shares_a_runtime_that_its_operator_reads(platform: Platform, hosts: NoHosts) -> None:
    run("tenant", "project", "blue", "--hosts", "gs-2")
    run("tenant", "people", "u-1=ann", "u-2", "--project", "blue")
    first, blue, admin = variables("env"), variables("env", "--project", "blue"), variables("tenant", "admin")
    client = ApiClient(platform.base_url, admin["GPUAAS_OPERATOR_TOKEN"])
    allocations = client.get(f"/projects/{first['GPUAAS_PROJECT_ID']}/allocations")
    assert allocations.status_code == 403
    owned = ApiClient(platform.base_url, first["GPUAAS_OPERATOR_TOKEN"])
    machine = owned.get(f"/projects/{first['GPUAAS_PROJECT_ID']}/allocations?status=active").json()["items"][0]["id"]
    platform.control.put_credential(
        first["GPUAAS_PROJECT_ID"], first["GPUAAS_ACCESS_CREDENTIAL_ID"], username="login", private_key="k"
    )
    manifest = our_manifest()
    body: Doc = {
        "app_slug": manifest["app_slug"],
        "app_version": manifest["version"],
        "owner_project_id": first["GPUAAS_PROJECT_ID"],
        "placement_intent": {"mode": "split", "controller_allocation_id": machine, "worker_allocation_ids": []},
        "access_credential_id": first["GPUAAS_ACCESS_CREDENTIAL_ID"],
    }
    runtimes = f"/orgs/{admin['GPUAAS_ORG_ID']}/shared-app-runtimes"
    made = client.post(runtimes, body)
    assert made.status_code == 201, made.text
    path = f"{runtimes}/{made.json()['id']}"
    assert client.post(f"{path}/attachments", {"project_id": blue["GPUAAS_PROJECT_ID"]}).status_code == 201

    values = variables("tenant", "operator", made.json()["id"])
    key = {
        "shared_runtime_id": values["GPUAAS_SHARED_RUNTIME_ID"],
        "key_id": values["GPUAAS_KEY_ID"],
        "client_secret": values["GPUAAS_CLIENT_SECRET"],
    }
    token: Any = ApiClient(platform.base_url, None).post(
        "/auth/shared-runtime-operator/token", key, idempotency_key=None
    )
    (attachment,) = (
        ApiClient(platform.base_url, token.json()["access_token"]).get(f"{path}/attachments").json()["items"]
    )
    assert [(one["subject"], one["username"]) for one in attachment["identities"]] == [("u-1", "ann"), ("u-2", None)]
    assert "shared_runtime_not_found" in run("tenant", "operator", "nothing", code=1)
