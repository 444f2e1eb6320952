"""Runtime secrets by the platform's own issuance where it answers, and by our path in Vault where it does not."""

import base64
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import hvac
import pytest

from runner.act import play_secrets
from runner.act.runtime_secrets import RuntimeSecrets
from runner.act.vault import ISSUED_ELSEWHERE, SecretsError, Vault
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm.app import SLURM
from tests.platform_process import Platform, Project
from tests.runner_process import environment, settings


class Instance:
    """One instance of the project, and a runner's view of its secrets."""

    def __init__(self, project: Project, own: Settings, client: Client) -> None:
        self.project, self.own, self.client = project, own, client
        self.id = UUID(project.deploy()["id"])
        self.vault = Vault(own, SLURM.runtime_secrets)
        self.secrets = RuntimeSecrets(self.vault, client)

    def kept(self) -> dict[str, str]:
        """What is at the instance's own path."""
        given = environment(self.project)
        login = hvac.Client(url=given["VAULT_ADDR"])
        login.auth.approle.login(role_id=given["VAULT_ROLE_ID"], secret_id=given["VAULT_SECRET_ID"])
        path = f"projects/{self.project.project_id}/app-instances/{self.id}"
        return dict(login.secrets.kv.v2.read_secret_version(path=path, raise_on_deleted_version=True)["data"]["data"])

    def issues(self) -> int:
        log = self.project.platform.control.requests()["requests"]
        return sum(one["path"].endswith(f"{self.id}/runtime-secrets") for one in log)

    def refusal(self, step: str = "current") -> SecretsError:
        with pytest.raises(SecretsError) as error:
            self.secrets.runtime_secret(self.id, "munge_key", step)
        return error.value


@pytest.fixture
def instance(project: Project) -> Iterator[Instance]:
    own = settings(project, api_patience_seconds=0)
    with Client(own) as client:
        yield Instance(project, own, client)


@pytest.fixture
def issuing(platform: Platform) -> Iterator[None]:
    platform.control.change_settings(runtime_secret_issue=1)
    yield
    platform.control.change_settings(runtime_secret_issue=0)


@pytest.mark.usefixtures("issuing")
def test_an_issued_secret_is_the_same_for_every_runner_and_not_in_our_path(instance: Instance) -> None:
    first = instance.secrets.runtime_secret(instance.id, "munge_key")
    other = RuntimeSecrets(Vault(instance.own, SLURM.runtime_secrets), instance.client)
    assert other.runtime_secret(instance.id, "munge_key") == first
    assert instance.secrets.runtime_secret(instance.id, "jwt_key") != first
    assert len(base64.b64decode(first)) >= 32
    assert set(instance.kept()) == {ISSUED_ELSEWHERE}


def test_without_issuance_the_secret_is_ours_and_the_platform_is_asked_once(instance: Instance) -> None:
    first = instance.secrets.runtime_secret(instance.id, "munge_key")
    assert instance.kept() == {"munge_key": first}
    instance.secrets.runtime_secret(instance.id, "munge_key")
    instance.secrets.runtime_secret(instance.id, "jwt_key")
    assert instance.issues() == 1


def test_an_instance_with_secrets_of_ours_keeps_them_when_issuance_comes(
    instance: Instance, platform: Platform, project: Project
) -> None:
    first = instance.secrets.runtime_secret(instance.id, "munge_key")
    platform.control.change_settings(runtime_secret_issue=1)
    assert instance.secrets.runtime_secret(instance.id, "munge_key") == first
    assert instance.kept()["munge_key"] == instance.secrets.runtime_secret(instance.id, "munge_key", "promote") == first
    platform.control.change_settings(runtime_secret_issue=0)


def test_an_issuance_that_ends_makes_no_other_secret(instance: Instance, platform: Platform) -> None:
    platform.control.change_settings(runtime_secret_issue=1)
    instance.secrets.runtime_secret(instance.id, "munge_key")
    platform.control.change_settings(runtime_secret_issue=0)
    assert (instance.refusal().code, instance.refusal().klass) == ("secret_issuance_missing", "intervention")
    assert set(instance.kept()) == {ISSUED_ELSEWHERE}


@pytest.mark.usefixtures("issuing")
def test_a_rotation_of_an_issued_secret_is_refused_and_changes_nothing(instance: Instance) -> None:
    before = instance.secrets.runtime_secret(instance.id, "munge_key")
    for step in ("stage", "promote", "drop"):
        assert instance.refusal(step).code == "secret_rotation_unsupported"
    assert instance.secrets.runtime_secret(instance.id, "munge_key") == before


@pytest.mark.usefixtures("issuing")
def test_a_play_by_hand_without_exec_makes_no_second_secret(instance: Instance) -> None:
    instance.secrets.runtime_secret(instance.id, "munge_key")
    with pytest.raises(SecretsError, match="gpuaas-slurm exec") as error:
        instance.vault.runtime_secret(instance.id, "munge_key")
    assert error.value.code == "secret_issued_by_platform"


@pytest.mark.parametrize(("status", "klass"), [(503, "retryable"), (403, "intervention")])
def test_an_issuance_that_fails_is_an_error_and_never_taken_for_none(
    instance: Instance, platform: Platform, status: int, klass: str
) -> None:
    platform.control.inject_fault("status", r"/runtime-secrets$", status=status, times=20)
    assert (instance.refusal().code, instance.refusal().klass) == ("secret_issuance_failed", klass)
    with pytest.raises(hvac.exceptions.InvalidPath):
        instance.kept()


@pytest.mark.usefixtures("issuing")
def test_a_play_gets_an_issued_secret_over_the_socket(instance: Instance, tmp_path: Path) -> None:
    first = instance.secrets.runtime_secret(instance.id, "munge_key")
    with play_secrets.secret_server(tmp_path, instance.secrets, instance.id) as path:
        assert play_secrets.fetch_secret(str(path), str(instance.id), "munge_key") == first
        with pytest.raises(SecretsError, match="secret_rotation_unsupported"):
            play_secrets.fetch_secret(str(path), str(instance.id), "munge_key", "stage")


@pytest.mark.usefixtures("issuing")
def test_an_issued_secret_is_in_no_answer_and_no_audit_row(instance: Instance, platform: Platform) -> None:
    platform.control.keep_bodies(keep=True)
    value = instance.secrets.runtime_secret(instance.id, "munge_key")
    platform.control.keep_bodies(keep=False)
    shown = [one for one in platform.control.requests()["requests"] if "/runtime-secrets" in one["path"]]
    assert shown and value not in str(shown) + str(platform.control.audit())
