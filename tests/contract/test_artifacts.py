"""Artifact policy of the platform: a denial is reported with the rule's name, and no host is touched."""

import json
import uuid
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from runner.act.vault import SecretsError, Vault
from runner.platform.client import Client
from runner.slurm.app import SLURM
from sandbox.fleet.keys import KeyPair
from tests.commands import EXEC
from tests.contract.simulated_hosts import Hosts, work
from tests.platform_process import Doc, Project
from tests.runner_process import answer, environment, gpuaas_slurm, settings

DENY = {"scope": "global", "effect": "deny", "artifact": "slurm", "reason": "recalled by its maker"}
CANARY = "canary-package-9c2e"


@pytest.fixture
def rule(dialable: Project, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Put a rule, which is deleted after the test."""
    control = dialable.platform.control

    def put(name: str, **fields: Any) -> str:
        owner = dialable.project_id if fields["scope"] == "project" else None
        control.put_artifact_rule(name, owner_id=owner, **fields)
        request.addfinalizer(lambda: control.delete_artifact_rule(name))
        return name

    return put


def add_worker(project: Project, made: Doc) -> None:
    body = {"operation": "add", "component_key": "worker", "allocation_ids": [project.allocation_ids[3]]}
    path = f"{project.path}/app-instances/{made['id']}/member-operations"
    assert project.operator.post(path, body).status_code == 201


def asked(project: Project, since: int) -> list[Doc]:
    rows: list[Doc] = project.platform.control.requests(since)["requests"]
    return [row for row in rows if row["path"].endswith("/artifact-resolutions")]


def test_a_deny_names_its_rule_touches_no_host_and_is_final(
    dialable: Project, hosts: Hosts, rule: Callable[..., str]
) -> None:
    rule("slurm-recalled", **DENY)
    made = dialable.deploy(workers=2)
    assert work(dialable) == []
    assert hosts.runs == []
    instance = dialable.shown(made)
    assert instance["status"] == "failed"
    members = dialable.shown(made, "/members")
    for member in members:
        error = member["adapter_detail"]["last_adapter_error"]
        assert (member["status"], error["code"], error["class"]) == ("failed", "artifact_denied", "intervention")
        assert "global rule slurm-recalled" in error["message"] and "recalled by its maker" in error["message"]
        assert not member["adapter_detail"].get("claimed_by")
    (operation,) = dialable.shown(made, "/member-operations")
    assert (operation["status"], operation["error"]["code"]) == ("failed", "artifact_denied")
    mark = dialable.platform.control.requests()["last"]
    assert work(dialable) == []
    assert asked(dialable, mark) == [] and hosts.runs == [], "not asked again without a new operation"
    explained = gpuaas_slurm(environment(dialable), "explain", made["correlation_id"])
    assert "slurm-recalled" in explained.stdout


def test_a_later_deny_stops_only_joins_and_a_new_operation_asks_again(
    dialable: Project, hosts: Hosts, rule: Callable[..., str]
) -> None:
    made = dialable.deploy(workers=1)
    assert work(dialable) == work(dialable) == []
    before = len(hosts.runs)
    name = rule("frozen", **(DENY | {"scope": "project"}))
    add_worker(dialable, made)
    assert work(dialable) == []
    assert len(hosts.runs) == before
    assert dialable.shown(made)["status"] == "running"
    assert sorted(one["status"] for one in dialable.shown(made, "/members")) == ["failed", "ready", "ready"]
    refused = dialable.shown(made, "/member-operations")[-1]
    assert (refused["status"], refused["error"]["code"]) == ("failed", "artifact_denied")
    dialable.platform.control.delete_artifact_rule(name)
    add_worker(dialable, made)
    assert work(dialable) == []
    assert sorted(one["status"] for one in dialable.shown(made, "/members")) == ["deleted", "ready", "ready", "ready"]


def test_a_join_asks_once_and_a_quiet_tick_not_at_all(dialable: Project, hosts: Hosts) -> None:
    made = dialable.deploy(workers=1)
    mark = dialable.platform.control.requests()["last"]
    assert work(dialable) == work(dialable) == []
    assert [row["method"] for row in asked(dialable, mark)] == ["POST"]
    add_worker(dialable, made)
    mark = dialable.platform.control.requests()["last"]
    assert work(dialable) == work(dialable) == []
    assert len(asked(dialable, mark)) == 1


def test_an_unknown_policy_decision_is_a_deny(dialable: Project, hosts: Hosts) -> None:
    odd = {"decision": "ask_again", "rule": {"id": "new-kind"}, "source": None}
    dialable.platform.control.inject_fault("status", "artifact-resolutions", status=201, body=odd)
    made = dialable.deploy(workers=0)
    assert work(dialable) == [] and hosts.runs == []
    (controller,) = dialable.shown(made, "/members")
    error = controller["adapter_detail"]["last_adapter_error"]
    assert (error["code"], error["class"]) == ("artifact_decision_unknown", "intervention")


def test_a_missing_policy_is_a_deny_until_the_setting_says_otherwise(dialable: Project, hosts: Hosts) -> None:
    gone = {"code": "not_found", "message": "no such path"}
    dialable.platform.control.inject_fault("status", "artifact-resolutions", status=404, body=gone, times=2)
    first = dialable.deploy(workers=0)
    assert work(dialable) == [] and hosts.runs == []
    (controller,) = dialable.shown(first, "/members")
    error = controller["adapter_detail"]["last_adapter_error"]
    assert error["code"] == "artifact_policy_missing" and "GPUAAS_ARTIFACT_POLICY=none" in error["message"]
    mark = dialable.platform.control.requests()["last"]
    second = dialable.deploy(workers=0, begin=1)
    assert work(dialable, artifact_policy="none") == []
    assert dialable.shown(second)["status"] == "running"
    assert [row["status"] for row in asked(dialable, mark)] == [404], "the policy is asked anyway"


@pytest.mark.parametrize("effect", ["allow", "deny"])
def test_the_setting_none_is_refused_where_the_platform_answers(
    dialable: Project, hosts: Hosts, rule: Callable[..., str], effect: str
) -> None:
    if effect == "deny":
        rule("slurm-recalled", **DENY)
    made = dialable.deploy(workers=0)
    (problem,) = work(dialable, artifact_policy="none")
    assert "artifact_policy_present" in problem and "Unset GPUAAS_ARTIFACT_POLICY" in problem and hosts.runs == []
    (controller,) = dialable.shown(made, "/members")
    assert controller["status"] == "reconciling" and not controller["adapter_detail"].get("claimed_by")
    ran = gpuaas_slurm(environment(dialable, GPUAAS_ARTIFACT_POLICY="none"), *EXEC, "--", "true")
    assert ran.returncode == 2 and "GPUAAS_ARTIFACT_POLICY is none" in ran.stderr
    if effect == "allow":
        assert work(dialable) == [], "once the setting is right the deploy goes on"
        assert dialable.shown(made)["status"] == "running"


def test_a_command_by_hand_gets_the_policy_answer_and_no_secret(
    dialable: Project, hosts: Hosts, rule: Callable[..., str]
) -> None:
    key = KeyPair.generate().private
    control = dialable.platform.control
    control.put_credential(dialable.project_id, dialable.credential_id, username="ops", private_key=key)
    made = dialable.deploy(workers=0)
    assert work(dialable) == []
    shows = (
        *EXEC,
        "--instance",
        made["id"],
        "--",
        "sh",
        "-c",
        'printf %s "$GPUAAS_PACKAGE_SOURCE"',
    )

    def package_source() -> Any:
        ran = gpuaas_slurm(environment(dialable), *shows, own_process=True)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    assert package_source() == {"instance": made["id"], "source": None}
    rule("frozen", **(DENY | {"scope": "project"}))
    assert package_source() == {"instance": made["id"], "source": {"denied": "rule frozen"}}
    override = (
        *EXEC,
        "--",
        "ansible-playbook",
        "-e",
        "slurm_package_source=null",
        "playbooks/deploy.yml",
    )
    refused = gpuaas_slurm(environment(dialable), *override)
    assert refused.returncode == 2 and "slurm_package_source" in refused.stderr


def test_a_policy_that_cannot_be_asked_is_asked_again_at_the_next_tick(dialable: Project, hosts: Hosts) -> None:
    made = dialable.deploy(workers=0)
    dialable.platform.control.inject_fault("status", "artifact-resolutions", status=500, times=50)
    (problem,) = work(dialable, api_patience_seconds=0)
    assert "artifact-resolutions" in problem and hosts.runs == []
    (controller,) = dialable.shown(made, "/members")
    assert controller["status"] == "reconciling" and not controller["adapter_detail"].get("claimed_by")
    dialable.platform.control.clear_faults()
    assert work(dialable) == []
    assert dialable.shown(made)["status"] == "running"


def test_plan_shows_that_policy_is_asked_and_does_not_ask(dialable: Project) -> None:
    dialable.deploy(workers=1)
    mark = dialable.platform.control.requests()["last"]
    rows = [row["step"] for row in answer(environment(dialable), "plan")]
    assert "ask policy for a package source" in rows and asked(dialable, mark) == []


def test_a_private_sources_login_is_delivered_once_and_is_in_no_answer(project: Project) -> None:
    credential = str(uuid.uuid4())
    control = project.platform.control
    control.put_credential(project.project_id, credential, username="slurm", password=CANARY)
    own = settings(project)
    vault = Vault(own, SLURM.runtime_secrets)
    with Client(own) as client:
        delivery = client.deliver_credential(UUID(credential))
        assert vault.unwrap_login(delivery) == f"slurm:{CANARY}"
        with pytest.raises(SecretsError) as spent:
            vault.unwrap_login(delivery)
        assert spent.value.code == "wrapping_token_spent"
    assert CANARY not in str(control.requests()) and CANARY not in str(control.audit())


@pytest.mark.parametrize("password", ["two words", "line\nbreak", 'quo"te', "", "x#y"])
def test_a_login_with_whitespace_is_refused_and_not_quoted(project: Project, password: str) -> None:
    credential = str(uuid.uuid4())
    project.platform.control.put_credential(project.project_id, credential, username="slurm", password=password)
    own = settings(project)
    with Client(own) as client, pytest.raises(SecretsError) as error:
        Vault(own, SLURM.runtime_secrets).unwrap_login(client.deliver_credential(UUID(credential)))
    assert error.value.code == "credential_invalid"
    assert not password or password not in error.value.message
