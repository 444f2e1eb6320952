"""The client against a real platform with every fault that the contract mentions."""

import json
import uuid
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from runner.model.errors import Conflict, Forbidden, NotFound, Unauthenticated, Unavailable
from runner.platform import records
from runner.platform.client import Client
from tests.commands import ends
from tests.platform_process import Platform, Project
from tests.runner_process import environment, gpuaas_slurm, settings

AGAIN = "The platform is busy or broken; the next tick tries again"
pytestmark = pytest.mark.usefixtures("every_request_is_in_the_contract")


@pytest.fixture
def every_request_is_in_the_contract(platform: Platform) -> Iterator[None]:
    platform.control.forget_violations()
    yield
    assert platform.control.violations() == []


@pytest.fixture
def client(project: Project) -> Iterator[Client]:
    with Client(settings(project)) as one:
        yield one


@pytest.mark.parametrize(
    ("action", "options"),
    [
        ("status", {"status": 500}),
        ("status", {"status": 503}),
        ("status", {"status": 429, "headers": {"Retry-After": "0"}}),
        ("garbage", {}),
        ("truncate", {}),
        ("drop", {}),
        ("hang", {"seconds": 3}),
    ],
)
def test_a_platform_that_fails_for_a_while_is_asked_again(
    platform: Platform, project: Project, client: Client, action: str, options: dict[str, object]
) -> None:
    made = project.deploy()
    platform.control.inject_fault(action, r"/app-instances$", method="GET", times=2, **options)
    with capture_logs() as logs:
        assert [str(one.id) for one in client.instances()] == [made["id"]]
    retried = [line["call"] for line in logs if line["event"] == "call retried"]
    # One that hangs a second longer than the time-out is given up; the next one is then answered late, once.
    assert retried == [f"GET /api/v1{project.path}/app-instances"] * 2


def test_patience_ends_with_what_to_do_next(platform: Platform, project: Project) -> None:
    platform.control.inject_fault("status", r"/app-instances$", times=1000, status=503)
    with Client(settings(project, api_patience_seconds=1)) as client, pytest.raises(Unavailable, match=AGAIN):
        client.instances()
    done = ends(gpuaas_slurm(environment(project, GPUAAS_API_PATIENCE_SECONDS="0"), "run"), 2)
    assert AGAIN in " ".join(done.stderr.split())


def test_a_wait_that_is_longer_than_our_patience_is_not_begun(platform: Platform, project: Project) -> None:
    headers = {"Retry-After": "60"}
    platform.control.inject_fault("status", r"/app-instances$", status=429, headers=headers)
    own = settings(project, api_patience_seconds=5)
    with capture_logs() as logs, Client(own) as client, pytest.raises(Unavailable, match=AGAIN):
        client.instances()
    assert [line["event"] for line in logs if line["event"] == "call retried"] == []


def test_a_platform_that_is_not_there_is_named(project: Project) -> None:
    gone = settings(project, base_url="http://127.0.0.1:9", api_patience_seconds=0.5)
    with Client(gone) as client, pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9/.* GPUAAS_BASE_URL"):
        client.instances()
    variables = environment(project, GPUAAS_BASE_URL="http://127.0.0.1:9", GPUAAS_API_PATIENCE_SECONDS="0")
    ends(gpuaas_slurm(variables, "run"), 2)


def test_a_write_that_was_done_but_not_answered_is_not_done_twice(
    platform: Platform, project: Project, client: Client
) -> None:
    made = project.deploy()
    instance = client.instance(uuid.UUID(made["id"]))
    platform.control.inject_fault("apply_then_drop", r"/members$", method="POST", times=1)
    body = {"component_key": "worker", "allocation_id": project.allocation_ids[1], "adapter_detail": {}}
    member = client.create_member(instance.id, body, key="one-logical-write")
    assert [one.id for one in client.members(instance.id) if one.component_key == "worker"] == [member.id]


def test_a_token_that_died_in_mid_run_is_renewed_once(platform: Platform, project: Project, client: Client) -> None:
    client.instances()
    platform.control.rotate_signing_keys(immediate=True)
    before = platform.control.requests()["last"]
    assert client.instances() == []
    rows = platform.control.requests(before)["requests"]
    assert [(row["method"], row["status"]) for row in rows] == [("GET", 401), ("POST", 200), ("GET", 200)]


def test_a_wrong_or_revoked_key_names_the_settings_to_check(project: Project) -> None:
    with Client(settings(project, client_secret="canary-secret")) as client, pytest.raises(Unauthenticated) as error:
        client.instances()
    assert "GPUAAS_CLIENT_SECRET" in str(error.value)
    assert "canary-secret" not in str(error.value)
    done = ends(gpuaas_slurm(environment(project, GPUAAS_CLIENT_SECRET="canary-secret"), "run"), 2)
    assert "GPUAAS_CLIENT_SECRET" in done.stderr and "canary-secret" not in done.stderr
    account, variables = project.service_account, environment(project)
    project.platform.control.revoke_account_key(account["service_account_id"], account["key_id"])
    revoked = ends(gpuaas_slurm(variables, "run"), 2)
    assert "GPUAAS_CLIENT_SECRET" in revoked.stderr


def test_a_missing_action_key_is_named(platform: Platform) -> None:
    project = platform.project(adapter_keys=["scheduler.instance.read"])
    with Client(settings(project)) as client, pytest.raises(Forbidden, match=r"scheduler\.node\.read"):
        client.members(uuid.UUID(project.deploy()["id"]))


def test_an_instance_of_another_project_is_out_of_reach(platform: Platform, project: Project, client: Client) -> None:
    foreign = platform.project().deploy()
    with pytest.raises((Forbidden, NotFound)):
        client.instance(uuid.UUID(foreign["id"]))


def test_a_stale_write_is_a_conflict_and_changes_nothing(project: Project, client: Client) -> None:
    instance = client.instance(uuid.UUID(project.deploy()["id"]))
    (member,) = client.members(instance.id)
    client.patch_member(member, {"adapter_detail": {"n": 1}}, key="first")
    with pytest.raises(Conflict):
        client.patch_member(member, {"adapter_detail": {"n": 2}}, key="second")
    assert client.members(instance.id)[0].adapter_detail == {"n": 1}


def test_every_page_is_read(project: Project, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "PAGE", 1)
    mark = project.platform.control.requests()["last"]
    assert {str(one.id) for one in client.allocations()} == set(project.allocation_ids)
    rows = project.platform.control.requests(mark)["requests"]
    assert sum(row["path"].endswith("/allocations") for row in rows) >= len(project.allocation_ids)


def test_a_bare_list_is_read_too(platform: Platform, project: Project, client: Client) -> None:
    platform.control.inject_fault("status", r"/allocations$", times=1, status=200, body="[]")
    assert client.allocations() == []


def test_one_unreadable_record_does_not_hide_the_others(platform: Platform, project: Project, client: Client) -> None:
    listed = [{"id": "not-a-uuid", "status": "active"}, {"id": str(uuid.UUID(int=5)), "status": "new"}]
    body = json.dumps({"items": listed})
    platform.control.inject_fault("status", r"/allocations$", times=1, status=200, body=body)
    found = client.allocations()
    (read,) = found
    assert (read.id, read.status) == (uuid.UUID(int=5), "new")
    (odd,) = found.unreadable
    assert (odd.kind, odd.id) == ("allocation", "not-a-uuid") and odd.problem.startswith("id: ")
