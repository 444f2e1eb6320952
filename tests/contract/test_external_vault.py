"""The platform keeps and delivers credentials through a Vault that is not its own: a second process here.

With VAULT_ADDR and VAULT_TOKEN it is the Vault of that address. In it the platform has mounts of its own name only.
"""

import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import hvac
import pytest

from runner.act.vault import SecretsError, Vault
from runner.model.platform import Delivery
from runner.slurm.app import SLURM
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.other_vault import OtherVault
from sandbox.platform import process
from sandbox.platform.app import DATABASE_FILE
from sandbox.platform.control_client import ControlError
from tests.commands import ends
from tests.platform_process import Platform, Project, start_platform, stop_platform
from tests.runner_process import gpuaas_slurm, settings
from tests.vault_under_test import GIVEN

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----canary-5f2e-----END OPENSSH PRIVATE KEY-----"


@dataclass(frozen=True)
class Other:
    address: str
    token: str

    @property
    def admin(self) -> hvac.Client:
        return hvac.Client(url=self.address, token=self.token)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    if GIVEN.get("VAULT_ADDR") and GIVEN.get("VAULT_TOKEN"):
        yield Other(GIVEN["VAULT_ADDR"].rstrip("/"), GIVEN["VAULT_TOKEN"])
        return
    state = tmp_path_factory.mktemp("other-vault")
    found = process.start(state)
    yield Other(found.base_url, found.admin_token)
    process.stop(state)


@pytest.fixture(scope="module")
def elsewhere(other: Other, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform that keeps its secrets in the other Vault."""
    platform = start_platform(tmp_path_factory.mktemp("platform"))
    platform.control.use_vault(other.address, other.token, f"sandbox-test-{uuid.uuid4().hex[:8]}")
    yield platform
    platform.control.release_vault()
    stop_platform(platform)


@pytest.fixture
def tenant(elsewhere: Platform) -> Project:
    project = elsewhere.project()
    elsewhere.control.put_credential(project.project_id, project.credential_id, username="ops", private_key=KEY)
    return project


def deliver(project: Project) -> Delivery:
    path = f"{project.path}/access-credentials/{project.credential_id}/deliveries"
    answer = project.adapter.post(path, {})
    assert answer.status_code == 201, answer.text
    assert "canary" not in answer.text
    return Delivery.model_validate(answer.json())


def runner(project: Project, other: Other) -> Vault:
    mount = project.platform.control.other_vault()["mount"]
    own = settings(project, VAULT_ADDR=other.address, vault_mount=mount, vault_approle_mount=mount)
    return Vault(own, SLURM.runtime_secrets)


def test_a_key_is_delivered_through_the_other_vault_and_once(tenant: Project, other: Other) -> None:
    delivery = deliver(tenant)
    assert delivery.vault_addr == other.address
    assert runner(tenant, other).unwrap_private_key(delivery) == KEY
    with pytest.raises(SecretsError) as error:
        runner(tenant, other).unwrap_private_key(delivery)
    assert error.value.code == "wrapping_token_spent"


def test_a_key_that_was_replaced_is_delivered_new(tenant: Project, other: Other) -> None:
    new = KEY.replace("5f2e", "9a9a")
    tenant.platform.control.put_credential(tenant.project_id, tenant.credential_id, username="ops", private_key=new)
    assert runner(tenant, other).unwrap_private_key(deliver(tenant)) == new


def test_runtime_secrets_are_made_in_the_other_vault_and_deleted_there(tenant: Project, other: Other) -> None:
    vault, instance = runner(tenant, other), uuid.uuid4()
    made = vault.runtime_secret(instance, "munge_key")
    assert vault.runtime_secret(instance, "munge_key") == made
    assert vault.runtime_secret(instance, "munge_key", "stage") != made
    assert vault.runtime_secret(instance, "munge_key", "promote") != made
    vault.delete_secrets(instance)
    assert vault.kept_names(instance) == frozenset()


def test_a_login_reaches_no_other_project_and_no_key_in_custody(tenant: Project, other: Other) -> None:
    foreign = settings(tenant, VAULT_ADDR=other.address).model_copy(update={"project_id": uuid.uuid4()})
    mount = tenant.platform.control.other_vault()["mount"]
    own = foreign.model_copy(update={"vault_mount": mount, "vault_approle_mount": mount})
    with pytest.raises(SecretsError) as error:
        Vault(own, SLURM.runtime_secrets).runtime_secret(uuid.uuid4(), "munge_key")
    assert error.value.code == "vault_denied"


def test_nothing_of_it_is_in_the_platforms_own_stand_in(tenant: Project) -> None:
    deliver(tenant)
    with sqlite3.connect(tenant.platform.state / DATABASE_FILE) as database:
        assert database.execute("SELECT count(*) FROM vault_kv").fetchone() == (0,)
    assert b"canary" not in (tenant.platform.state / DATABASE_FILE).read_bytes()


def test_a_platform_that_keeps_secrets_already_does_not_move_to_a_third(tenant: Project, other: Other) -> None:
    with pytest.raises(ControlError, match="409"):
        tenant.platform.control.use_vault("http://127.0.0.1:9", other.token, "another")


def test_a_vault_that_is_away_is_an_error_of_the_platform_and_gives_no_key(other: Other, tmp_path: Path) -> None:
    state = tmp_path / "gone"
    gone, platform = process.start(state), start_platform(tmp_path / "platform")
    try:
        platform.control.use_vault(gone.base_url, gone.admin_token, "sandbox-test")
        project = platform.project()
        process.stop(state)
        path = f"{project.path}/access-credentials/{project.credential_id}/deliveries"
        answer = project.adapter.post(path, {})
        assert (answer.status_code, answer.json()["code"]) == (503, "service_unavailable")
    finally:
        process.stop(state)
        stop_platform(platform)


def test_what_the_platform_made_in_the_other_vault_goes_with_it(other: Other, tmp_path: Path) -> None:
    platform, name = start_platform(tmp_path), f"sandbox-test-{uuid.uuid4().hex[:8]}"
    before = set(other.admin.sys.list_mounted_secrets_engines()["data"])
    try:
        platform.control.use_vault(other.address, other.token, name)
        platform.control.create_approle(platform.project().project_id)
        assert set(other.admin.sys.list_mounted_secrets_engines()["data"]) == {*before, f"{name}/"}
        platform.control.release_vault()
    finally:
        stop_platform(platform)
    assert set(other.admin.sys.list_mounted_secrets_engines()["data"]) == before
    assert not [one for one in other.admin.sys.list_policies()["data"]["policies"] if one.startswith(name)]


def test_a_fleet_with_another_vault_says_so_to_runners_and_leaves_nothing_there(other: Other) -> None:
    fleet = Fleet(f"vault-{uuid.uuid4().hex[:6]}")
    before = set(other.admin.sys.list_mounted_secrets_engines()["data"])
    try:
        fleet.ensure([], vault=OtherVault(other.address, other.token))
        given = fleet.env()
        login = hvac.Client(url=given["VAULT_ADDR"])
        role = {"role_id": given["VAULT_ROLE_ID"], "secret_id": given["VAULT_SECRET_ID"]}
        login.auth.approle.login(**role, mount_point=given["GPUAAS_VAULT_APPROLE_MOUNT"])
        assert given["VAULT_ADDR"] == other.address and login.token
        assert f"{given['GPUAAS_VAULT_MOUNT']}/" in other.admin.sys.list_mounted_secrets_engines()["data"]
    finally:
        fleet.down()
    assert set(other.admin.sys.list_mounted_secrets_engines()["data"]) == before


def test_another_vault_without_a_token_for_it_is_refused(other: Other) -> None:
    ran = gpuaas_slurm({}, "sandbox", "up", "--name", "never-made", "--vault", other.address)
    ends(ran, 2)
    assert "VAULT_TOKEN" in ran.stderr
