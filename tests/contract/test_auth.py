"""Identity, ownership and permission."""

import uuid

import jwt
import pytest

from tests.platform_process import ApiClient, Platform, Project, action_keys, our_manifest
from tests.waits import until

KEYS = our_manifest()["action_keys"]


def refusal(client: ApiClient, path: str) -> tuple[int, str]:
    answer = client.get(path)
    return answer.status_code, answer.json()["code"]


def test_call_without_token_is_refused(platform: Platform, project: Project) -> None:
    assert refusal(ApiClient(platform.base_url, None), f"{project.path}/app-instances") == (401, "token_missing")


@pytest.mark.parametrize("token", ["x", "a.b.c", "ä", jwt.encode({"sub": "x"}, "k" * 32, headers={"kid": "none"})])
def test_a_token_without_a_signature_is_refused(platform: Platform, project: Project, token: str) -> None:
    answer = ApiClient(platform.base_url, None).http.get(
        f"{project.path}/app-instances", headers={b"authorization": f"Bearer {token}".encode()}
    )
    assert (answer.status_code, answer.json()["code"]) == (401, "token_invalid")


def test_an_expired_token_is_refused_as_expired(platform: Platform, project: Project) -> None:
    path = f"{project.path}/app-instances"
    short, long = (
        ApiClient(
            platform.base_url,
            platform.control.operator_token(project.project_id, name, action_keys("operator"), ttl_seconds=seconds),
        )
        for name, seconds in (("short", 1), ("long", 3600))
    )
    until(lambda: short.get(path).status_code != 200, 5, "the token of one second expires")
    assert refusal(short, path) == (401, "token_expired")
    assert long.get(path).status_code == 200


def test_a_token_has_the_stated_claims_and_the_set_lifetime(platform: Platform, project: Project) -> None:
    claims = jwt.decode(project.fetch_token(), options={"verify_signature": False})
    assert claims["sub"] == project.service_account["service_account_id"]
    assert (claims["actor_type"], claims["project_id"]) == ("service_account", project.project_id)
    assert set(claims) == {"sub", "actor_type", "org_id", "project_id", "scope", "aud", "iss", "iat", "exp", "jti"}
    assert claims["exp"] - claims["iat"] == 900


@pytest.mark.parametrize("wrong", ["service_account_id", "key_id", "client_secret"])
def test_wrong_part_of_a_service_account_key_gets_no_token_and_no_hint(project: Project, wrong: str) -> None:
    body = {**project.service_account, wrong: str(uuid.uuid4())}
    answer = ApiClient(project.platform.base_url, None).post("/auth/service-account/token", body, idempotency_key=None)
    assert answer.status_code == 401
    assert answer.json()["code"] == "token_invalid"
    assert body["client_secret"] not in answer.text


def test_revoked_key_gets_no_token_while_its_sibling_does(project: Project) -> None:
    account = project.service_account
    second = project.platform.control.add_account_key(account["service_account_id"])
    project.platform.control.revoke_account_key(account["service_account_id"], account["key_id"])
    refused = ApiClient(project.platform.base_url, None).post(
        "/auth/service-account/token", account, idempotency_key=None
    )
    assert refused.status_code == 401
    assert project.fetch_token(**second)


def test_disabled_service_account_is_refused_at_once(project: Project) -> None:
    client = project.adapter
    project.platform.control.change_service_account(project.service_account["service_account_id"], active=False)
    assert refusal(client, f"{project.path}/allocations") == (401, "token_invalid")


def test_tokens_survive_a_rotation_of_the_signing_key(project: Project) -> None:
    before = project.adapter
    project.platform.control.rotate_signing_keys()
    after = project.adapter
    kids = {jwt.get_unverified_header(str(client.token))["kid"] for client in (before, after)}
    assert len(kids) == 2
    assert [client.get(f"{project.path}/allocations").status_code for client in (before, after)] == [200, 200]


def test_immediate_rotation_ends_every_older_token(project: Project) -> None:
    before = project.adapter
    project.platform.control.rotate_signing_keys(immediate=True)
    assert refusal(before, f"{project.path}/allocations") == (401, "token_invalid")
    assert project.adapter.get(f"{project.path}/allocations").status_code == 200


def test_another_project_is_closed_whether_it_exists_or_not(platform: Platform, project: Project) -> None:
    other = platform.project()
    theirs = other.deploy()
    for path in (
        f"{other.path}/app-instances",
        f"{other.path}/app-instances/{theirs['id']}",
        f"{other.path}/allocations/{other.allocation_ids[0]}",
        f"/projects/{uuid.uuid4()}/app-instances",
    ):
        assert refusal(project.adapter, path) == (403, "ownership_required")


def test_instance_of_another_project_does_not_exist_under_ones_own(platform: Platform, project: Project) -> None:
    theirs = platform.project().deploy()
    unknown = project.adapter.get(f"{project.path}/app-instances/{uuid.uuid4()}")
    foreign = project.adapter.get(f"{project.path}/app-instances/{theirs['id']}")
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json()["code"] == unknown.json()["code"] == "app_instance_not_found"


def test_project_header_must_name_the_tokens_project(platform: Platform, project: Project) -> None:
    assert project.operator.get("/apps", x_project_id=project.project_id).status_code == 200
    answer = project.operator.get("/apps", x_project_id=str(uuid.uuid4()))
    assert (answer.status_code, answer.json()["code"]) == (403, "ownership_required")


@pytest.mark.parametrize("missing", sorted(set(KEYS.values())))
def test_each_missing_action_key_closes_its_calls_and_is_named(platform: Platform, missing: str) -> None:
    everything = sorted(set(KEYS.values()))
    project = platform.project(operator_keys=[key for key in everything if key != missing])
    instance = platform.project().deploy() if missing != "scheduler.instance.create" else {"id": str(uuid.uuid4())}
    base = f"{project.path}/app-instances/{instance['id']}"
    body = {
        "app_slug": our_manifest()["app_slug"],
        "app_version": "1",
        "placement_intent": {},
        "access_credential_id": str(uuid.uuid4()),
    }
    answer = {
        "scheduler.catalog.read": lambda: project.operator.get("/apps"),
        "scheduler.instance.read": lambda: project.operator.get(f"{project.path}/app-instances"),
        "scheduler.instance.create": lambda: project.operator.post(f"{project.path}/app-instances", body),
        "scheduler.instance.update": lambda: project.operator.post(f"{base}/operations", {"operation": "stop"}),
        "scheduler.instance.delete": lambda: project.operator.call("DELETE", base),
        "scheduler.node.read": lambda: project.operator.get(f"{base}/members"),
        "scheduler.node.operate": lambda: project.operator.post(
            f"{base}/member-operations", {"operation": "add", "component_key": "worker"}
        ),
    }[missing]()
    assert (answer.status_code, answer.json()["code"]) == (403, "insufficient_permissions")
    assert answer.json()["details"]["required"] == [missing]


def test_published_keys_suffice_for_the_adapter_and_exclude_deploying(project: Project) -> None:
    instance = project.deploy()
    base = f"{project.path}/app-instances/{instance['id']}"
    adapter = project.adapter
    for path in ("", "/members", "/member-operations", "/operations", "/events", "/artifact-resolutions"):
        assert adapter.get(base + path).status_code == 200
    assert adapter.call("DELETE", base).json()["details"]["required"] == ["scheduler.instance.delete"]


def test_state_is_written_by_the_instances_service_account_only(platform: Platform, project: Project) -> None:
    instance = project.deploy()
    base = f"{project.path}/app-instances/{instance['id']}"
    by_person = project.operator.patch(base, {"health": "healthy"})
    assert (by_person.status_code, by_person.json()["code"]) == (403, "ownership_required")
    assert project.adapter.patch(base, {"health": "healthy"}).status_code == 200


def test_operators_write_config_and_the_adapter_writes_status(project: Project) -> None:
    base = f"{project.path}/app-instances/{project.deploy()['id']}"
    change = {"config": {"slurm": {"MinJobAge": 120}}}
    by_adapter = project.adapter.patch(base, change)
    assert (by_adapter.status_code, by_adapter.json()["code"]) == (403, "ownership_required")
    mixed = project.operator.patch(base, change | {"status": "running"})
    assert (mixed.status_code, mixed.json()["code"]) == (403, "ownership_required")
    assert project.operator.patch(base, change).json()["config"] == change["config"]


def test_a_changed_config_must_fit_the_apps_schema_and_catalog(project: Project) -> None:
    base = f"{project.path}/app-instances/{project.deploy()['id']}"
    for body, status, code in (
        ({"config": {"nonsense": 1}}, 400, "validation_error"),
        ({"config": {"slurm": {"Bad Key": "1"}}}, 400, "validation_error"),
        ({"app_version": "0.0.0"}, 404, "app_version_not_found"),
    ):
        refused = project.operator.patch(base, body)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
    read = project.operator.get(base)
    written = project.operator.patch(base, {"config": {"slurm": {"KillWait": 10}}}, if_match=read.headers["etag"])
    assert written.status_code == 200
    stale = project.operator.patch(base, {"config": {}}, if_match=read.headers["etag"])
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")


def test_an_instance_that_is_deleting_takes_no_new_config(project: Project) -> None:
    base = f"{project.path}/app-instances/{project.deploy()['id']}"
    project.operator.call("DELETE", base)
    refused = project.operator.patch(base, {"config": {}})
    assert (refused.status_code, refused.json()["code"]) == (409, "invalid_transition")
