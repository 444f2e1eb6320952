"""The platform's Vault, called with hvac over HTTP as a runner does."""

import time
import uuid

import hvac
import pytest
from hvac import exceptions

from tests.platform_process import Platform, Project

SECRET = "canary-private-key"


def deliver(project: Project) -> dict[str, str]:
    project.platform.control.put_credential(
        project.project_id, project.credential_id, username="login", private_key=SECRET
    )
    answer = project.adapter.post(f"{project.path}/access-credentials/{project.credential_id}/deliveries", {})
    assert answer.status_code == 201
    assert SECRET not in answer.text
    delivery: dict[str, str] = answer.json()
    assert set(delivery) == {"vault_addr", "wrapping_token", "expires_at", "username"}
    return delivery


def test_delivery_is_unwrapped_once_and_never_again(project: Project) -> None:
    delivery = deliver(project)
    client = hvac.Client(url=delivery["vault_addr"], token=delivery["wrapping_token"])
    assert client.sys.unwrap()["data"] == {"username": "login", "private_key": SECRET}
    with pytest.raises(exceptions.InvalidRequest, match="wrapping token is not valid or does not exist"):
        client.sys.unwrap()


def test_unwrapping_anothers_token_needs_a_login(project: Project, vault: hvac.Client) -> None:
    delivery = deliver(project)
    with pytest.raises(exceptions.InvalidRequest, match="missing client token"):
        _without_login(delivery["vault_addr"]).sys.unwrap(token=delivery["wrapping_token"])
    assert vault.sys.unwrap(token=delivery["wrapping_token"])["data"]["private_key"] == SECRET


def _without_login(address: str) -> hvac.Client:
    client = hvac.Client(url=address)
    client.token = None  # not one that hvac may have found in a home directory
    return client


def test_wrapping_token_opens_nothing_else(project: Project) -> None:
    client = hvac.Client(url=project.platform.base_url, token=deliver(project)["wrapping_token"])
    assert not client.is_authenticated()


def test_looking_at_a_wrapping_token_does_not_use_it_up(project: Project) -> None:
    delivery = deliver(project)
    client = hvac.Client(url=delivery["vault_addr"], token=delivery["wrapping_token"])
    found = client.write("sys/wrapping/lookup", token=delivery["wrapping_token"])
    assert 0 < found["data"]["creation_ttl"] <= 120
    assert client.sys.unwrap()["data"]["private_key"] == SECRET


def test_wrapping_token_left_alone_expires(project: Project) -> None:
    control = project.platform.control
    control.change_settings(delivery_ttl_seconds=1)
    try:
        delivery = deliver(project)
    finally:
        control.change_settings(delivery_ttl_seconds=120)
    client = hvac.Client(url=delivery["vault_addr"])
    deadline = time.monotonic() + 5
    with pytest.raises(exceptions.InvalidRequest):
        while time.monotonic() < deadline:
            client.write("sys/wrapping/lookup", token=delivery["wrapping_token"])
            time.sleep(0.1)
    client.token = delivery["wrapping_token"]
    with pytest.raises(exceptions.InvalidRequest):
        client.sys.unwrap()


@pytest.mark.parametrize("status", ["revoked", "rotated"])
def test_credential_that_is_no_longer_current_is_not_delivered(project: Project, status: str) -> None:
    project.platform.control.set_credential_status(project.project_id, project.credential_id, status)
    answer = project.adapter.post(f"{project.path}/access-credentials/{project.credential_id}/deliveries", {})
    assert (answer.status_code, answer.json()["code"]) == (409, f"access_credential_{status}")


def test_credential_goes_to_service_accounts_only(project: Project) -> None:
    answer = project.operator.post(f"{project.path}/access-credentials/{project.credential_id}/deliveries", {})
    assert (answer.status_code, answer.json()["code"]) == (403, "ownership_required")
    unknown = project.adapter.post(f"{project.path}/access-credentials/{uuid.uuid4()}/deliveries", {})
    assert unknown.json()["code"] == "access_credential_not_found"


def test_secret_appears_in_no_audit_row_and_no_log(project: Project) -> None:
    deliver(project)
    assert SECRET not in str(project.platform.control.audit())
    assert SECRET not in str(project.platform.control.requests())
    assert SECRET not in (project.platform.state / "platform.log").read_text()


def test_check_and_set_lets_one_writer_win(vault: hvac.Client, project: Project) -> None:
    kv, path = vault.secrets.kv.v2, f"projects/{project.project_id}/app-instances/x"
    assert kv.create_or_update_secret(path=path, secret={"k": "1"}, cas=0)["data"]["version"] == 1
    with pytest.raises(exceptions.InvalidRequest, match="check-and-set parameter did not match"):
        kv.create_or_update_secret(path=path, secret={"k": "2"}, cas=0)
    assert kv.create_or_update_secret(path=path, secret={"k": "2"}, cas=1)["data"]["version"] == 2
    read = kv.read_secret_version(path=path, raise_on_deleted_version=True)
    assert (read["data"]["data"], read["data"]["metadata"]["version"]) == ({"k": "2"}, 2)
    assert kv.read_secret_version(path=path, version=1, raise_on_deleted_version=True)["data"]["data"] == {"k": "1"}
    kv.patch(path=path, secret={"j": "3"})
    assert kv.read_secret_version(path=path, raise_on_deleted_version=True)["data"]["data"] == {"k": "2", "j": "3"}


def test_secrets_are_listed_deleted_and_destroyed(vault: hvac.Client, project: Project) -> None:
    kv, folder = vault.secrets.kv.v2, f"projects/{project.project_id}/app-instances"
    for name in ("a", "b", "c/d"):
        kv.create_or_update_secret(path=f"{folder}/{name}", secret={"k": name})
    assert kv.list_secrets(path=folder)["data"]["keys"] == ["a", "b", "c/"]
    kv.delete_latest_version_of_secret(path=f"{folder}/a")
    gone = kv.read_secret_version(path=f"{folder}/a", raise_on_deleted_version=False)
    assert gone["data"]["data"] is None
    assert gone["data"]["metadata"]["deletion_time"]
    with pytest.raises(exceptions.InvalidPath):
        kv.read_secret_version(path=f"{folder}/a", raise_on_deleted_version=True)
    assert kv.create_or_update_secret(path=f"{folder}/a", secret={}, cas=1)["data"]["version"] == 2
    assert kv.read_secret_metadata(path=f"{folder}/a")["data"]["current_version"] == 2
    kv.delete_metadata_and_all_versions(path=f"{folder}/a")
    with pytest.raises(exceptions.InvalidPath):
        kv.read_secret_metadata(path=f"{folder}/a")


@pytest.mark.parametrize(
    "path",
    [
        "projects/{other}/app-instances/x",
        "platform/access-credentials/{credential}",
        "projects/{own}/../../platform/access-credentials/{credential}",
        "projects",
    ],
)
def test_role_reaches_no_secret_outside_its_project(vault: hvac.Client, project: Project, path: str) -> None:
    where = path.format(other=uuid.uuid4(), own=project.project_id, credential=project.credential_id)
    with pytest.raises(exceptions.Forbidden, match="permission denied"):
        vault.secrets.kv.v2.list_secrets(path=where)
    raw = vault.session.get(f"{vault.url}/v1/secret/data/{where}", headers={"X-Vault-Token": vault.token})
    assert raw.status_code in (403, 404)
    assert "private_key" not in raw.text


def test_login_needs_the_right_secret_id_and_ends_with_revoke(platform: Platform, project: Project) -> None:
    role = platform.control.create_approle(project.project_id)
    client = hvac.Client(url=platform.base_url, namespace="team")
    with pytest.raises(exceptions.InvalidRequest, match="invalid role or secret ID"):
        client.auth.approle.login(role_id=role["role_id"], secret_id="wrong")
    client.auth.approle.login(role_id=role["role_id"], secret_id=role["secret_id"])
    assert client.is_authenticated()
    assert client.auth.token.lookup_self()["data"]["ttl"] > 3000
    client.auth.token.revoke_self()
    with pytest.raises(exceptions.Forbidden):
        client.auth.token.lookup_self()


def test_vault_reports_healthy_and_unsealed(platform: Platform) -> None:
    client = hvac.Client(url=platform.base_url)
    assert client.sys.read_health_status(method="GET")["sealed"] is False
    assert client.sys.is_sealed() is False


def test_unknown_vault_path_answers_as_vault_does(vault: hvac.Client) -> None:
    with pytest.raises(exceptions.InvalidPath, match="no handler for route"):
        vault.adapter.get("/v1/elsewhere/x")
