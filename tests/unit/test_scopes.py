"""One client serves a project or one shared runtime: only paths, names and the identity differ."""

import os
from typing import Any
from uuid import UUID

import httpx
import pytest

from runner.act.vault import Vault
from runner.model.errors import RequestError
from runner.model.platform import Allocation, AppInstance
from runner.model.scope import ProjectScope, RuntimeScope, TenantScope
from runner.observe import left_over
from runner.platform import wire
from runner.platform.client import Client
from runner.settings import Settings, SettingsError, load
from runner.slurm.app import SLURM
from runner.slurm.settings import SlurmSettings

ORG, RUNTIME, OWNER, OTHER = (UUID(int=number) for number in (1, 2, 3, 4))
SHARED = RuntimeScope(ORG, RUNTIME)
OURS = ProjectScope(OWNER)
BELOW = f"/api/v1/orgs/{ORG}/shared-app-runtimes/{RUNTIME}"
RECORD: dict[str, Any] = {
    "id": str(RUNTIME),
    "org_id": str(ORG),
    "owner_project_id": str(OWNER),
    "app_slug": "slurm-reference",
    "status": "running",
    "correlation_id": "c",
}
WORKER = {"id": str(UUID(int=9)), "shared_runtime_id": str(RUNTIME), "component_key": "worker", "status": "ready"}
KEY: dict[str, Any] = {"key_id": "k", "client_secret": "s"}


def settings(**values: Any) -> Settings:
    return Settings(**{"base_url": "http://platform.invalid", **values})


def runtime_settings(**values: Any) -> Settings:
    return settings(org_id=ORG, shared_runtime_id=RUNTIME, **KEY, **values)


class Answers:
    """A platform that answers each path from a table, and records what it was asked."""

    def __init__(self, **bodies: Any) -> None:
        self.bodies, self.asked = bodies, list[tuple[str, str]]()
        self.sent: list[bytes] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, request.url.path))
        self.sent.append(request.content)
        if request.url.path.startswith("/api/v1/auth"):
            return httpx.Response(200, json={"access_token": "t", "expires_in": 600})
        found = self.bodies.get(request.url.path.rpartition("/")[2])
        return httpx.Response(200, json=found if found is not None else {"items": [], "next_cursor": None})


def client(own: Settings, answers: Answers) -> Client:
    made = Client(own)
    made._transport._http = httpx.Client(base_url="http://platform.invalid", transport=httpx.MockTransport(answers))
    return made


@pytest.mark.parametrize(
    ("path", "below_project", "below_runtime"),
    [
        (wire.members, f"app-instances/{RUNTIME}/members", "workers"),
        (wire.member_operations, f"app-instances/{RUNTIME}/member-operations", "worker-operations"),
        (wire.instance_operations, f"app-instances/{RUNTIME}/operations", "operations"),
        (wire.events, f"app-instances/{RUNTIME}/events", "events"),
        (wire.resolutions, f"app-instances/{RUNTIME}/artifact-resolutions", "artifact-resolutions"),
        (wire.deliveries, f"access-credentials/{RUNTIME}/deliveries", f"access-credentials/{RUNTIME}/deliveries"),
    ],
)
def test_each_path_of_a_project_has_one_below_the_runtime(path: Any, below_project: str, below_runtime: str) -> None:
    assert path(OURS, RUNTIME) == f"/api/v1/projects/{OWNER}/{below_project}"
    assert path(SHARED, RUNTIME) == f"{BELOW}/{below_runtime}"
    assert wire.route(path(SHARED, RUNTIME)) != "other"


def test_allocations_of_a_runtime_are_below_it() -> None:
    assert wire.allocations(OURS) == f"/api/v1/projects/{OWNER}/allocations"
    assert wire.allocations(SHARED) == f"{BELOW}/allocations"
    with pytest.raises(RequestError, match="GPUAAS_SHARED_RUNTIME_ID is not set"):
        wire.allocations(TenantScope(ORG))


def test_a_runtimes_records_are_read_as_those_of_an_instance() -> None:
    answers = Answers(workers={"items": [WORKER], "next_cursor": None}, **{str(RUNTIME): RECORD})
    with client(runtime_settings(), answers) as api:
        (instance,), (worker,) = api.instances(app_slug="slurm-reference"), api.members(RUNTIME)
    assert (instance.is_shared, instance.owner_project_id, worker.app_instance_id) == (True, OWNER, RUNTIME)
    assert api.scope.has_instance(instance) and not OURS.has_instance(instance)
    # The operator may read its own runtime and not list others.
    assert ("GET", BELOW) in answers.asked and ("GET", BELOW.rpartition("/")[0]) not in answers.asked


def test_a_worker_of_another_runtime_is_not_ours() -> None:
    foreign = {**WORKER, "shared_runtime_id": str(OTHER)}
    with client(runtime_settings(), Answers(workers={"items": [foreign], "next_cursor": None})) as api:
        found = api.members(RUNTIME)
    assert found == [] and len(found.unreadable) == 1


def test_a_runtimes_operator_asks_for_its_own_kind_of_token() -> None:
    answers = Answers()
    with client(runtime_settings(), answers) as api:
        api.members(RUNTIME)
    assert answers.asked[0] == ("POST", "/api/v1/auth/shared-runtime-operator/token")
    assert answers.sent[0] == f'{{"shared_runtime_id":"{RUNTIME}","key_id":"k","client_secret":"s"}}'.encode()


def test_a_project_asks_for_the_token_of_its_service_account() -> None:
    answers = Answers()
    with client(settings(project_id=OWNER, service_account_id=OTHER, **KEY), answers) as api:
        api.instances(app_slug="slurm-reference")
    assert answers.asked[0] == ("POST", "/api/v1/auth/service-account/token")
    assert answers.sent[0] == f'{{"service_account_id":"{OTHER}","key_id":"k","client_secret":"s"}}'.encode()


def test_an_allocation_of_another_project_is_only_a_runtimes() -> None:
    foreign = Allocation(id=UUID(int=7), project_id=OTHER, status="active")
    assert SHARED.has_allocation(foreign) and not OURS.has_allocation(foreign)


def test_a_host_marked_for_a_project_instance_is_not_called_left_over_by_a_runtime() -> None:
    answers = Answers()
    with client(runtime_settings(), answers) as api:
        assert not left_over._is_gone(api, OTHER)
    assert answers.asked == []


def test_each_scope_has_its_own_path_for_secrets() -> None:
    vault: dict[str, Any] = {"vault_addr": "http://vault.invalid", "vault_token": "t"}
    assert Vault(settings(project_id=OWNER, **vault), SLURM.runtime_secrets)._path(RUNTIME) == (
        f"projects/{OWNER}/app-instances/{RUNTIME}"
    )
    assert Vault(runtime_settings(**vault), SLURM.runtime_secrets)._path(RUNTIME) == (
        f"orgs/{ORG}/shared-app-runtimes/{RUNTIME}"
    )


def test_fields_of_a_runtime_are_not_shown_of_a_projects_records() -> None:
    own = {**RECORD, "project_id": str(OWNER)}
    del own["owner_project_id"]
    shown = AppInstance.model_validate(own).model_dump(mode="json")
    assert "owner_project_id" not in shown and shown["project_id"] == str(OWNER)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "GPUAAS_PROJECT_ID: is not set"),
        ({"GPUAAS_SHARED_RUNTIME_ID": str(RUNTIME)}, "GPUAAS_SHARED_RUNTIME_ID: Value error, needs GPUAAS_ORG_ID"),
        ({"GPUAAS_ORG_ID": str(ORG), "GPUAAS_PROJECT_ID": str(OWNER)}, "excludes GPUAAS_ORG_ID"),
        (
            {
                "GPUAAS_ORG_ID": str(ORG),
                "GPUAAS_SHARED_RUNTIME_ID": str(RUNTIME),
                "GPUAAS_SERVICE_ACCOUNT_ID": str(OWNER),
            },
            "GPUAAS_SERVICE_ACCOUNT_ID: Value error, is of a project",
        ),
    ],
)
def test_a_runner_serves_a_project_or_a_runtime(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], problem: str
) -> None:
    for name in [one for one in os.environ if one.startswith(("GPUAAS_", "VAULT_"))]:
        monkeypatch.delenv(name)
    for name, value in {"GPUAAS_BASE_URL": "http://127.0.0.1:1", **given}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as error:
        load(SlurmSettings)
    (problem_shown,) = error.value.problems
    assert problem in problem_shown
