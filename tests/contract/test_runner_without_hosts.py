"""Ticks that must touch no host: the error is in the right record, and nothing stays claimed."""

import json
from typing import Any

import pytest

from tests.commands import ends
from tests.platform_process import Doc, Platform, Project
from tests.runner_process import answer, environment, gpuaas_slurm

GOOD_KEY = "ssh-ed25519 " + "A" * 68


def everything(project: Project, instance_id: str) -> tuple[Doc, list[Doc], list[Doc]]:
    base = f"{project.path}/app-instances/{instance_id}"
    get = project.operator.get
    return (
        get(base).json(),
        get(f"{base}/members").json()["items"],
        get(f"{base}/member-operations").json()["items"],
    )


def assert_nothing_claimed(members: list[Doc], operations: list[Doc]) -> None:
    assert all(operation["status"] != "running" for operation in operations)
    assert all(not member["adapter_detail"].get("claimed_by") for member in members)


def test_plan_shows_the_whole_deploy_and_writes_nothing(platform: Platform, project: Project) -> None:
    for allocation_id in project.allocation_ids:
        connection = {"host": "gs-x", "port": 22, "username": "ops", "host_keys": [GOOD_KEY]}
        platform.control.put_allocation(project.project_id, allocation_id, connection=connection)
    made = project.deploy()
    before = everything(project, made["id"])
    steps = answer(environment(project), "plan")
    assert [step["step"] for step in steps][-1] == "run playbooks/deploy.yml"
    assert sum(step["step"] == "create member" for step in steps) == 2
    assert all(step["why"] for step in steps)
    assert steps[-1]["rule"] == "bring up the controller"
    assert {step["rule"] for step in steps if step["step"] == "create member"} == {"carry out worker operations"}
    assert everything(project, made["id"]) == before


@pytest.mark.parametrize(
    ("status", "connection", "code"),
    [
        ("released", None, "allocation_not_active"),
        ("failed", None, "allocation_not_active"),
        ("active", {"host": "gs-x", "port": 22, "username": "ops", "host_keys": ["a key"]}, "connection_invalid"),
        (
            "active",
            {"host": "x; rm -rf /", "port": 22, "username": "ops", "host_keys": [GOOD_KEY]},
            "connection_invalid",
        ),
        ("active", {"host": "{{ 7*7 }}", "port": 22, "username": "ops", "host_keys": [GOOD_KEY]}, "connection_invalid"),
        ("active", {"host": "gs-x", "port": 22, "username": "$(id)", "host_keys": [GOOD_KEY]}, "connection_invalid"),
    ],
)
def test_a_controller_that_cannot_be_reached_as_recorded_fails_the_deploy_at_once(
    platform: Platform, project: Project, status: str, connection: Any, code: str
) -> None:
    first = project.allocation_ids[0]
    made = project.deploy()
    platform.control.put_allocation(project.project_id, first, status=status, connection=connection)
    since = platform.control.requests()["last"]
    done = gpuaas_slurm(environment(project), "run")
    ends(done, 1)
    called = [row["path"] for row in platform.control.requests(since)["requests"]]
    assert not [path for path in called if path.endswith("/deliveries")], "without the ssh key no host is reached"
    instance, members, operations = everything(project, made["id"])
    assert (instance["status"], instance["health"]) == ("failed", "unhealthy")
    assert instance["status_detail"]["reasons"][0]["code"] == code
    assert [member["adapter_detail"]["last_adapter_error"]["code"] for member in members] == [code]
    assert [(operation["status"], operation["error"]["code"]) for operation in operations] == [("failed", code)]
    assert_nothing_claimed(members, operations)
    events = project.operator.get(f"{project.path}/app-instances/{made['id']}/events").json()["items"]
    (failed,) = [event for event in events if event["type"] == "apps.instance.failed"]
    assert failed["correlation_id"] == made["correlation_id"]
    assert {"org_id", "project_id", "app_slug", "app_instance_id"} <= set(failed["data"])


def test_a_second_tick_after_a_failure_writes_nothing_more(platform: Platform, project: Project) -> None:
    project.deploy()
    variables = environment(project)
    ends(gpuaas_slurm(variables, "run"), 1)
    since = platform.control.requests()["last"]
    ends(gpuaas_slurm(variables, "run"), 0)
    later = platform.control.requests(since)["requests"]
    assert {row["method"] for row in later if "token" not in row["path"]} == {"GET"}


def test_another_vault_address_is_an_error_in_the_controllers_record(platform: Platform, project: Project) -> None:
    platform.control.put_allocation(
        project.project_id,
        project.allocation_ids[0],
        connection={"host": "gs-x", "port": 22, "username": "ops", "host_keys": [GOOD_KEY]},
    )
    made = project.deploy(workers=0)
    variables = environment(project, GPUAAS_MAX_ATTEMPTS="1", VAULT_ADDR="http://127.0.0.1:9")
    done = gpuaas_slurm(variables, "run")
    ends(done, 0)  # no operation was asked for, so none failed
    _, (controller,), operations = everything(project, made["id"])
    error = controller["adapter_detail"]["last_adapter_error"]
    assert controller["status"] == "failed"
    assert error["code"] == "vault_address_mismatch"
    assert_nothing_claimed([controller], operations)


def test_settings_that_are_wrong_are_named_and_nothing_runs(project: Project) -> None:
    done = gpuaas_slurm(environment(project, GPUAAS_LEASE_SECONDS="soon", GPUAAS_PROJECT_ID="x"), "run")
    ends(done, 2)
    assert "GPUAAS_LEASE_SECONDS" in done.stderr and "GPUAAS_PROJECT_ID" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["run"], ["plan"], ["status"], ["get", "instances"]])
def test_wrong_credentials_are_one_message_and_exit_code_2(project: Project, command: list[str]) -> None:
    variables = environment(project, GPUAAS_CLIENT_SECRET="wrong", GPUAAS_OPERATOR_TOKEN="wrong")
    done = gpuaas_slurm(variables, *command)
    ends(done, 2)
    assert "GPUAAS_" in done.stderr and "Traceback" not in done.stderr


def test_an_instance_of_another_project_is_refused(platform: Platform, project: Project) -> None:
    foreign = platform.project().deploy()
    done = gpuaas_slurm(environment(project), "run", "--instance", foreign["id"])
    ends(done, 2)
    assert "Traceback" not in done.stderr, done.stderr


def test_log_lines_carry_the_ids_of_the_instance(project: Project) -> None:
    made = project.deploy()
    done = gpuaas_slurm(environment(project, GPUAAS_LOG_FORMAT="json"), "run")
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert lines
    for line in lines:
        assert line["correlation_id"] == made["correlation_id"]
        for name in ("org_id", "project_id", "app_slug", "app_instance_id"):
            assert line[name] == made.get(name, made["id"])


def test_operator_verbs_ask_through_the_public_api_and_answer_with_json(project: Project) -> None:
    variables = environment(project)
    first, second = project.allocation_ids[:2]
    made = answer(variables, "deploy", "--controller", first, "--workers", second, "--name", "mine")
    assert made["placement_intent"] == {
        "mode": "split",
        "controller_allocation_id": first,
        "worker_allocation_ids": [second],
    }
    (listed,) = answer(variables, "get", "instances")
    assert listed["id"] == made["id"]
    (member,) = answer(variables, "get", "members")
    asked = answer(variables, "op", "drain", "mine", "--members", member["id"], "-p", "reason=maintenance")
    assert (asked["operation"], asked["member_ids"]) == ("drain", [member["id"]])
    assert len(answer(variables, "get", "operations")) == 2
    assert len(answer(variables, "get", "allocations")) == len(project.allocation_ids)
    (shown,) = answer(variables, "status")
    assert shown["members"][0]["id"] == member["id"]


def test_same_node_placement_is_asked_for_explicitly(project: Project) -> None:
    first = project.allocation_ids[0]
    made = answer(environment(project), "deploy", "--controller", first, "--same-node")
    assert made["placement_intent"]["mode"] == "same_node"
    assert made["placement_intent"]["worker_allocation_ids"] == [first]


def test_an_allocation_that_does_not_exist_is_a_clear_error(project: Project) -> None:
    done = gpuaas_slurm(environment(project), "deploy", "--controller", "nope")
    ends(done, 2)
    assert "no allocation nope" in done.stderr, done.stderr


def test_configure_ignores_the_case_of_settings_and_names_those_not_set(
    project: Project,
) -> None:
    made, variables = project.deploy(), environment(project)

    def configure(*options: str) -> Any:
        return answer(variables, "configure", made["id"], *options)["config"]

    assert configure("--slurm", "MinJobAge=60", "--slurm", "KillWait=9") == {"slurm": {"MinJobAge": 60, "KillWait": 9}}
    assert configure("--slurm", "minjobage=70", "--unset", "killwait") == {"slurm": {"minjobage": 70}}
    for options, message in ((("--unset", "KillWait"), "KillWait is not set"), ((), "nothing to change")):
        refused = gpuaas_slurm(variables, "configure", made["id"], *options)
        ends(refused, 2)
        assert message in refused.stderr, refused.stderr
