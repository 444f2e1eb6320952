"""The example app on the sandbox platform, with hosts that say what they are to say: every merge runs it."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from examples.web_farm.farm import WEB_FARM
from runner.act import play_secrets
from runner.loop import run as loop
from runner.loop.shared import Summary
from runner.platform.client import Client
from tests.contract.shared_runtime import KEY
from tests.platform_process import ROOT, Doc, Platform, Project
from tests.runner_process import settings

APP = ROOT / "examples" / "web_farm" / "app"


class Hosts:
    """In place of ansible-runner: every host does what its playbook is for, and every web member answers."""

    def __init__(self) -> None:
        self.played: list[str] = []

    def run(self, *, playbook: str, inventory: Doc, limit: str, event_handler: Callable[[Doc], bool], **_: Any) -> Any:
        assert playbook.startswith(str(APP.parent)), "the app's own playbooks"
        name = playbook.rpartition("/")[2].removesuffix(".yml")
        self.played.append(name)
        event_handler({"event": "playbook_on_start", "event_data": {"playbook_uuid": "run"}})
        for host in limit.split(","):
            variables = inventory["all"]["hosts"][host]
            balances = variables["gpuaas_component_key"] == "balancer" and name != "decommission"
            answers = dict.fromkeys(variables.get("farm_work", {}).get("webs", []), 200) if balances else None
            phase = "removed" if name in ("remove", "decommission") and not balances else "serving"
            result = {"member_report": {"phase": phase, "detail": {"host_touched": True}, "snapshot": answers}}
            data = {"playbook_uuid": "run", "host": host, "task_action": "member_report", "res": result}
            event_handler({"event": "runner_on_ok", "event_data": data})
        return SimpleNamespace(status="successful", rc=0, stats={})


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    made = Hosts()
    monkeypatch.setattr("ansible_runner.run", made.run)
    monkeypatch.setattr(play_secrets, "access", lambda *_: contextlib.nullcontext(play_secrets.Access({})))
    return made


@pytest.fixture
def project(platform: Platform) -> Project:
    platform.control.register_app(yaml.safe_load((APP / "manifest.yaml").read_text()))
    platform.control.put_artifact_rule("farm", scope="global", effect="allow", artifact="web-farm")
    keys = yaml.safe_load((APP / "action-keys.yaml").read_text())
    listed = {who: [one["key"] for one in keys[who]] for who in ("service_account", "operator")}
    made = platform.project(adapter_keys=listed["service_account"], operator_keys=listed["operator"])
    for number, one in enumerate(made.allocation_ids, 1):
        connection = {"host": f"198.51.100.{number}", "port": 22, "username": "ops", "host_keys": [KEY]}
        platform.control.put_allocation(made.project_id, one, connection=connection, gpus=0)
    return made


def deploy(project: Project, webs: int = 1) -> Doc:
    balancer, *others = project.allocation_ids
    body = {
        "app_slug": "web-farm",
        "app_version": "0.1.0",
        "placement_intent": {"balancer_allocation_id": balancer, "web_allocation_ids": others[:webs]},
        "config": {"page": "hello"},
        "access_credential_id": project.credential_id,
    }
    answer = project.operator.post(f"{project.path}/app-instances", body)
    assert answer.status_code == 201, answer.text
    made: Doc = answer.json()
    return made


def tick(project: Project) -> Summary:
    own = settings(project, app_slug="web-farm")
    with Client(own) as client:
        return loop.run(client, own, WEB_FARM)


def operation(project: Project, made: Doc, kind: str, body: Doc) -> None:
    answer = project.operator.post(f"{project.path}/app-instances/{made['id']}/{kind}", body)
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("webs", [0, 2])
def test_a_farm_comes_up_and_goes_with_the_keys_that_it_lists(project: Project, hosts: Hosts, webs: int) -> None:
    made = deploy(project, webs)
    assert tick(project).problems == []
    shown = project.shown(made)
    assert (shown["status"], shown["health"]) == ("running", "healthy"), shown["status_detail"]
    assert shown["access"] == {"url": "http://198.51.100.1:8080/"}
    assert [one["status"] for one in project.shown(made, "/members")] == ["ready"] * (webs + 1)
    operation(project, made, "operations", {"operation": "decommission"})
    assert tick(project).problems == []
    assert project.shown(made)["status"] == "deleted"
    assert {one["status"] for one in project.shown(made, "/members")} == {"deleted"}
    assert [one["status"] for one in project.shown(made, "/operations")] == ["succeeded"]
    assert hosts.played == ["converge", "decommission"]


def test_a_farm_that_the_platform_deletes_is_taken_down_without_an_operation(project: Project, hosts: Hosts) -> None:
    made = deploy(project)
    tick(project)
    answer = project.operator.call("DELETE", f"{project.path}/app-instances/{made['id']}")
    assert answer.status_code == 202, answer.text
    assert tick(project).problems == []
    assert project.shown(made)["status"] == "deleted"
    assert hosts.played == ["converge", "decommission"]


def test_without_an_entitlement_no_host_is_touched(project: Project, hosts: Hosts, platform: Platform) -> None:
    made = deploy(project)
    platform.control.put_entitlement(project.project_id, "web-farm", status="disabled")
    tick(project)
    assert (project.shown(made)["status"], hosts.played) == ("failed", [])
    assert {one["code"] for one in project.shown(made)["status_detail"]["reasons"]} == {"not_entitled"}
