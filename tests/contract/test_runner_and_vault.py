"""Faults of Vault and of deliveries: each has a code and a class, and no message holds a secret."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import structlog

from runner.act import play_secrets
from runner.act.vault import SPENT, SecretsError, Vault
from runner.loop import run as loop
from runner.model.platform import Delivery
from runner.platform.client import Client
from runner.slurm.app import SLURM
from tests.platform_process import Project
from tests.runner_process import settings

CANARY = "-----BEGIN OPENSSH PRIVATE KEY-----canary-7f3a-----END OPENSSH PRIVATE KEY-----"


@pytest.fixture
def delivery(project: Project) -> Delivery:
    control = project.platform.control
    control.put_credential(project.project_id, project.credential_id, username="ops", private_key=CANARY)
    with Client(settings(project)) as client:
        return client.deliver_credential(UUID(project.credential_id))


def vault(project: Project, **changes: Any) -> Vault:
    return Vault(settings(project, **changes), SLURM.runtime_secrets)


def test_a_spent_wrapping_token_is_an_alarm_and_not_retried(project: Project, delivery: Delivery) -> None:
    assert vault(project).unwrap_private_key(delivery) == CANARY  # another party used the token first
    with pytest.raises(SecretsError, match="break-in") as error:
        vault(project).unwrap_private_key(delivery)
    assert (error.value.code, error.value.klass) == ("wrapping_token_spent", "intervention")
    assert "canary" not in str(error.value) and delivery.wrapping_token not in str(error.value)


@pytest.mark.parametrize(
    ("action", "options", "code", "klass"),
    [
        ("status", {"status": 503, "body": {"errors": ["Vault is sealed"]}}, "vault_sealed", "retryable"),
        ("drop", {}, "vault_unreachable", "retryable"),
        ("hang", {"seconds": 2}, "vault_unreachable", "retryable"),
        ("status", {"status": 403, "body": {"errors": ["permission denied"]}}, "vault_denied", "intervention"),
        ("status", {"status": 500, "body": {"errors": ["no"]}}, "vault_unreachable", "retryable"),
    ],
)
def test_each_fault_of_vault_has_a_code_and_a_class(
    project: Project, delivery: Delivery, action: str, options: dict[str, Any], code: str, klass: str
) -> None:
    project.platform.control.inject_fault(action, r"^/v1/", times=100, **options)
    asked = vault(project, api_timeout_seconds=0.5)
    with pytest.raises(SecretsError) as error:
        asked.unwrap_private_key(delivery)
    assert (error.value.code, error.value.klass) == (code, klass)
    assert delivery.wrapping_token not in str(error.value)
    with pytest.raises(SecretsError) as error:
        asked.runtime_secret(UUID(int=5), "munge_key")
    assert (error.value.code, error.value.klass) == (code, klass)


def test_a_wrong_login_names_the_settings_and_not_their_values(project: Project) -> None:
    wrong = vault(project, VAULT_SECRET_ID="canary-secret-id")
    with pytest.raises(SecretsError, match="VAULT_SECRET_ID") as error:
        wrong.runtime_secret(UUID(int=5), "munge_key")
    assert error.value.code == "vault_login_refused" and "canary" not in str(error.value)


def test_a_token_file_that_cannot_be_used_is_a_code_with_setting_and_file(project: Project, tmp_path: Path) -> None:
    file = tmp_path / "token"
    for text, mode, klass in (
        (None, 0, "retryable"),
        ("canary", 0o644, "intervention"),
        ("a b", 0o600, "intervention"),
    ):
        if text is not None:
            file.write_text(text)
            file.chmod(mode)
        asked = vault(project, VAULT_ROLE_ID=None, VAULT_SECRET_ID=None, VAULT_TOKEN_FILE=file)
        with pytest.raises(SecretsError) as error:
            asked.runtime_secret(UUID(int=5), "munge_key")
        assert (error.value.code, error.value.klass) == ("vault_login_unusable", klass)
        assert "VAULT_TOKEN_FILE" in str(error.value) and str(file) in str(error.value)
        assert "canary" not in str(error.value)


def test_a_delivery_through_another_vault_is_refused_before_it_is_asked(project: Project, delivery: Delivery) -> None:
    elsewhere = delivery.model_copy(update={"vault_addr": "http://vault.invalid"})
    with pytest.raises(SecretsError) as error:
        vault(project).unwrap_private_key(elsewhere)
    assert error.value.code == "vault_address_mismatch"
    assert vault(project).unwrap_private_key(delivery) == CANARY, "the token was not spent"


@pytest.mark.parametrize(("status", "text"), [("rotated", "replaced by a newer one"), ("revoked", "revoked")])
def test_a_rotated_or_revoked_credential_is_not_delivered(project: Project, status: str, text: str) -> None:
    own = settings(project)
    with Client(own) as client:
        instance = client.instance(UUID(project.deploy()["id"]))
        project.platform.control.set_credential_status(project.project_id, project.credential_id, status)
        with pytest.raises(SecretsError, match=text) as error, play_secrets.access(client, own, SLURM, instance):
            pass
    assert (error.value.code, error.value.klass) == ("credential_unavailable", "intervention")


def test_a_login_that_ends_in_the_middle_of_a_play_is_renewed_once(project: Project, tmp_path: Path) -> None:
    control, instance_id = project.platform.control, UUID(int=5)
    with play_secrets.secret_server(tmp_path, vault(project, api_timeout_seconds=10), instance_id) as path:
        before = play_secrets.fetch_secret(str(path), str(instance_id), "munge_key")
        control.expire_vault_tokens(project.project_id)
        since = control.requests()["last"]
        assert play_secrets.fetch_secret(str(path), str(instance_id), "munge_key") == before
    asked = [(row["path"], row["status"]) for row in control.requests(since)["requests"]]
    assert [status for path, status in asked if "/data/" in path] == [403, 200]
    assert sum("approle/login" in path for path, _ in asked) == 1


def test_a_login_that_cannot_be_renewed_is_vault_denied(project: Project) -> None:
    asked = vault(project)
    asked.runtime_secret(UUID(int=5), "munge_key")
    project.platform.control.expire_vault_tokens(project.project_id)
    project.platform.control.create_approle(project.project_id)  # a new secret_id: ours is no longer good
    with pytest.raises(SecretsError, match="VAULT_SECRET_ID") as error:
        asked.runtime_secret(UUID(int=5), "munge_key")
    assert (error.value.code, error.value.klass) == ("vault_login_refused", "intervention")


def test_a_spent_wrapping_token_shows_in_log_record_and_exit_code(
    dialable: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = dialable.platform.control.put_credential
    put(dialable.project_id, dialable.credential_id, username="ops", private_key=CANARY)
    made, own = dialable.deploy(workers=0), settings(dialable)
    deliver = Client.deliver_credential

    def intercepted(client: Client, *arguments: Any, **more: Any) -> Delivery:
        delivery = deliver(client, *arguments, **more)
        assert Vault(own, SLURM.runtime_secrets).unwrap_private_key(delivery) == CANARY
        return delivery

    monkeypatch.setattr(Client, "deliver_credential", intercepted)
    with structlog.testing.capture_logs() as logs, Client(own) as client:
        summary = loop.run(client, own, SLURM)
    assert [line["error_code"] for line in logs if line["log_level"] == "error"] == [SPENT]
    assert summary.problems and SPENT in summary.problems[0], "this is what makes the exit code 2"
    path = f"{dialable.path}/app-instances/{made['id']}/members"
    (controller,) = dialable.operator.get(path).json()["items"]
    error = controller["adapter_detail"]["last_adapter_error"]
    assert (controller["status"], error["code"], error["class"]) == ("failed", SPENT, "intervention")
    assert controller["adapter_detail"]["attempt"] == 1
