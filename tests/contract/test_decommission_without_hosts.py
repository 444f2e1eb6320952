"""Instances that are deleted without touching a host: against the platform and its Vault, over HTTP."""

import hvac
import pytest
from hvac import exceptions

from tests.commands import ends
from tests.platform_process import Doc, Project
from tests.runner_process import answer, environment, gpuaas_slurm


def secrets_of(project: Project, instance_id: str) -> str:
    return f"projects/{project.project_id}/app-instances/{instance_id}"


def is_gone(project: Project, made: Doc) -> None:
    instance, members = project.shown(made), project.shown(made, "/members")
    assert instance["status"] == "deleted", instance["status_detail"]
    assert {member["status"] for member in members} == {"deleted"}
    assert not any(member["adapter_detail"].get("claimed_by") for member in members)
    kinds = [event["type"] for event in project.shown(made, "/events")]
    assert kinds.count("apps.instance.deleting") == kinds.count("apps.instance.deleted") == 1


def test_a_decommission_ends_operations_deletes_secrets_and_the_instance(project: Project, vault: hvac.Client) -> None:
    made = project.deploy()
    path = secrets_of(project, made["id"])
    for version in range(3):
        vault.secrets.kv.v2.create_or_update_secret(path=path, secret={"munge_key": f"canary-{version}"}, cas=version)
    variables = environment(project)
    asked = [answer(variables, "op", "decommission", made["id"], "--keep-logs", "--reason", "done") for _ in range(2)]
    done = gpuaas_slurm(variables, "run", "--json")
    ends(done, 1)  # the requested workers never joined
    assert "canary" not in done.stdout + done.stderr
    is_gone(project, made)
    with pytest.raises(exceptions.InvalidPath):
        vault.secrets.kv.v2.read_secret_metadata(path=path)
    (add,) = project.shown(made, "/member-operations")
    assert (add["status"], add["error"]["code"]) == ("failed", "instance_deleting")
    ended = project.shown(made, "/operations")
    assert {one["id"]: one["status"] for one in ended} == {one["id"]: "succeeded" for one in asked}
    assert all(len(one["result"]["members"]) == 1 for one in ended)


def test_a_delete_request_removes_the_instance_without_an_operation(project: Project) -> None:
    made = project.deploy(workers=0)
    answered = project.operator.call("DELETE", f"{project.path}/app-instances/{made['id']}")
    assert answered.status_code == 202, answered.text
    ends(gpuaas_slurm(environment(project), "run"), 0)
    is_gone(project, made)


def test_an_instance_stays_deleting_while_vault_is_away(project: Project) -> None:
    made = project.deploy(workers=0)
    answer(environment(project), "op", "decommission", made["id"])
    done = gpuaas_slurm(environment(project, VAULT_ADDR="http://127.0.0.1:9"), "run")
    ends(done, 0)
    instance = project.shown(made)
    assert instance["status"] == "deleting"
    assert [reason["code"] for reason in instance["status_detail"]["reasons"]] == ["vault_unreachable"]
    shown = gpuaas_slurm(environment(project), "status").stdout
    assert "deleting" in shown and "decommission" in shown and "Vault" in shown
    ends(gpuaas_slurm(environment(project), "run"), 0)
    is_gone(project, made)


def test_invalid_decommission_parameters_are_refused_and_the_deploy_goes_on(project: Project) -> None:
    made = project.deploy(workers=0)
    answer(environment(project), "op", "decommission", made["id"], "-p", "force=1")
    ends(gpuaas_slurm(environment(project), "run"), 1)
    (asked,) = project.shown(made, "/operations")
    assert (asked["status"], asked["error"]["code"]) == ("failed", "parameters_invalid")
    assert project.shown(made)["status"] == "failed", "its deploy went on"
