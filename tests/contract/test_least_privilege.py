"""The runner's four action keys suffice; without one of them the error names it."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from runner.model.errors import PlatformError
from runner.platform.contract import DEFAULT
from tests.commands import ends
from tests.contract import simulated_hosts
from tests.contract.simulated_hosts import Hosts
from tests.platform_process import ACTION_KEYS_FILE, ROOT, Doc, Platform, Project, action_keys
from tests.runner_process import answer, environment, gpuaas_slurm

LISTED: list[Doc] = yaml.safe_load(ACTION_KEYS_FILE.read_text())["service_account"]
KEYS = [entry["key"] for entry in LISTED]


def operation_ids() -> dict[tuple[str, str], str]:
    contract = yaml.safe_load((ROOT / "contract" / "openapi.yaml").read_text())
    return {
        (method.upper(), path): operation["operationId"]
        for path, item in contract["paths"].items()
        for method, operation in item.items()
        if isinstance(operation, dict) and "operationId" in operation
    }


def work(project: Project) -> list[str]:
    """Run one tick; returns the problems that the runner would report."""
    try:
        return simulated_hosts.work(project)
    except PlatformError as error:
        return [str(error)]


def seen_at(project: Project, since: int) -> list[Doc]:
    found: list[Doc] = project.platform.control.requests(since)["requests"]
    return found


def test_every_key_states_what_it_is_for_and_what_fails_without_it() -> None:
    for entry in LISTED:
        assert entry["reason"].endswith(".") and entry["without_it"].endswith(".") and entry["calls"]


def test_the_listed_keys_suffice_and_no_call_is_made_that_is_not_listed(dialable: Project, hosts: Hosts) -> None:
    mark = dialable.platform.control.requests()["last"]
    made = dialable.deploy(workers=2)
    assert work(dialable) == work(dialable) == []
    shown = dialable.operator.get(f"{dialable.path}/app-instances/{made['id']}").json()
    assert shown["status"] == "running"
    operation_of = operation_ids()
    listed = {call for entry in LISTED for call in entry["calls"]} | {"issueServiceAccountToken"}
    account = dialable.service_account["service_account_id"]
    calls = [row for row in seen_at(dialable, mark) if row["principal"] in (account, None)]
    assert {operation_of[row["method"], row["template"]] for row in calls} <= listed


def test_an_operators_verbs_work_with_the_listed_keys_alone(platform: Platform) -> None:
    project = platform.project(operator_keys=action_keys("operator"))
    variables, (first, second, *_) = environment(project), project.allocation_ids
    made = answer(variables, "deploy", "--controller", first, "--workers", second, "--name", "mine")
    for what in ("instances", "members", "operations", "allocations"):
        assert answer(variables, "get", what)
    assert answer(variables, "status") and answer(variables, "configure", "mine", "--slurm", "KillWait=9")
    member = answer(variables, "get", "members")[0]["id"]
    asked = [answer(variables, "op", "drain", "mine", "--members", member), answer(variables, "op", "stop", "mine")]
    for one in asked:
        assert answer(variables, "op", "cancel", "mine", one["id"])["status"] == "cancelled"
    ends(gpuaas_slurm(variables, "explain", made["correlation_id"]), 0)


# With a deploy requested: without any one of the keys, nothing of it may reach a host.
@pytest.mark.parametrize("missing", KEYS)
def test_without_a_key_no_host_is_touched_and_the_key_is_named(
    platform: Platform, dialable: Project, hosts: Hosts, missing: str
) -> None:
    made = dialable.deploy(workers=1)
    account = dialable.service_account["service_account_id"]
    platform.control.change_service_account(account, action_keys=[key for key in KEYS if key != missing])
    (problem,) = work(dialable)
    assert missing in problem
    assert hosts.runs == []
    path = f"{dialable.path}/app-instances/{made['id']}"
    (controller,) = dialable.operator.get(f"{path}/members").json()["items"]
    assert not controller["adapter_detail"].get("claimed_by"), "what was claimed is handed back"
    platform.control.change_service_account(account, action_keys=KEYS)
    for _ in range(2):
        assert work(dialable) == []
    assert dialable.operator.get(path).json()["status"] == "running"


def test_without_update_workers_still_join_and_only_the_instance_is_not_written(
    platform: Platform, dialable: Project, hosts: Hosts
) -> None:
    made = dialable.deploy(workers=0)
    assert work(dialable) == []
    path = f"{dialable.path}/app-instances/{made['id']}"
    body = {"operation": "add", "component_key": "worker", "allocation_ids": [dialable.allocation_ids[1]]}
    assert dialable.operator.post(f"{path}/member-operations", body).status_code == 201
    account = dialable.service_account["service_account_id"]
    kept = [key for key in KEYS if key != "scheduler.instance.update"]
    platform.control.change_service_account(account, action_keys=kept)
    problems = work(dialable)
    assert problems and all("scheduler.instance.update" in problem for problem in problems)
    (asked,) = dialable.operator.get(f"{path}/member-operations").json()["items"]
    assert asked["status"] == "succeeded"


@pytest.mark.parametrize("missing", ["scheduler.instance.read"])
def test_the_operator_reads_which_key_is_missing(platform: Platform, missing: str) -> None:
    project = platform.project(adapter_keys=[key for key in KEYS if key != missing])
    done = gpuaas_slurm(environment(project), "run", own_process=True)
    ends(done, 2)
    assert missing in done.stderr and "Traceback" not in done.stderr, done.stderr


# -- and nothing more ----------------------------------------------------------------------------------------


def test_the_runner_needs_no_persons_token_and_uses_none(dialable: Project) -> None:
    mark = dialable.platform.control.requests()["last"]
    dialable.deploy(workers=1)
    dialable.platform.control.set_allocation_status(dialable.project_id, dialable.allocation_ids[0], "released")
    deployed = dialable.platform.control.requests()["last"]
    variables = environment(dialable)
    del variables["GPUAAS_OPERATOR_TOKEN"]
    ends(gpuaas_slurm(variables, "run", own_process=True), 1)
    rows = seen_at(dialable, max(mark, deployed))
    assert rows and {row["principal"] for row in rows} <= {dialable.service_account["service_account_id"], None}
    own = f"/api/v1/projects/{dialable.project_id}/"
    assert all(row["path"].startswith((own, "/api/v1/auth/service-account/token", "/v1/")) for row in rows)


@pytest.mark.parametrize(
    "path", ["/sandbox/v1/audit", "/sandbox/v1/requests", "/api/v1/internal/instances", "/internal"]
)
def test_the_runners_token_opens_no_admin_or_internal_path(project: Project, path: str) -> None:
    headers = {"Authorization": f"Bearer {project.fetch_token()}"}
    answer = httpx.get(f"{project.platform.base_url}{path}", headers=headers, trust_env=False)
    assert answer.status_code in (401, 404)


def test_no_code_of_the_runner_names_an_admin_or_internal_path() -> None:
    names = str(DEFAULT.model_dump())
    assert "app-instances" in names and "internal" not in names and "admin" not in names
    others = [file for file in Path(ROOT / "runner").rglob("*.py") if file.name != "contract.py"]
    assert not [file for file in others if "/api/v1/" in file.read_text()]


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_the_runner_may_not_deploy_or_delete(project: Project, method: str) -> None:
    made = project.deploy(workers=0)
    body: Any = {"app_slug": made["app_slug"], "app_version": made["app_version"], "config": {}}
    body |= {"placement_intent": made["placement_intent"], "access_credential_id": project.credential_id}
    path = f"{project.path}/app-instances" + ("" if method == "POST" else f"/{made['id']}")
    answer = project.adapter.call(method, path, body if method == "POST" else None)
    assert (answer.status_code, answer.json()["code"]) == (403, "insufficient_permissions")


def test_a_runner_pointed_at_another_project_is_refused(platform: Platform, project: Project) -> None:
    other = platform.project()
    other.deploy()
    done = gpuaas_slurm(environment(project, GPUAAS_PROJECT_ID=other.project_id), "run", own_process=True)
    ends(done, 2)
    assert "another project" in done.stderr, done.stderr


def test_operators_hold_no_key_that_only_the_runner_needs_to_write_state() -> None:
    for entry in yaml.safe_load(ACTION_KEYS_FILE.read_text())["operator"]:
        assert not {"updateMember", "createMember", "createCredentialDelivery"} & set(entry["calls"])
    assert set(KEYS) == set(action_keys("service_account"))
