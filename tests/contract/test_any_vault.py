"""The runner's calls to Vault, made to the sandbox's stand-in or to the Vault given by VAULT_ADDR.

pytest prints which one. The runner's login has the policy in deploy/vault-policy.json and no other right.
"""

import base64
import http.client
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
from hvac import exceptions

from runner.act.vault import SecretsError, Vault
from runner.slurm.app import SLURM
from tests.vault_under_test import VaultUnderTest

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----canary-1c0d-----END OPENSSH PRIVATE KEY-----"


@pytest.fixture
def instance_id() -> UUID:
    return uuid4()


@pytest.fixture
def path(some_vault: VaultUnderTest, instance_id: UUID) -> str:
    return f"projects/{some_vault.project_id}/app-instances/{instance_id}"


def runner(some_vault: VaultUnderTest, **settings: Any) -> Vault:
    return Vault(some_vault.settings(**(settings or some_vault.role())), SLURM.runtime_secrets)


def refusal(vault: Vault, instance_id: UUID) -> SecretsError:
    with pytest.raises(SecretsError) as error:
        vault.runtime_secret(instance_id, "munge_key")
    return error.value


def test_each_secret_is_made_once_from_random_bytes_and_kept(some_vault: VaultUnderTest, instance_id: UUID) -> None:
    made = {name: runner(some_vault).runtime_secret(instance_id, name) for name in SLURM.runtime_secrets}
    assert {name: runner(some_vault).runtime_secret(instance_id, name) for name in SLURM.runtime_secrets} == made
    assert len(base64.b64decode(made["munge_key"])) == 128
    assert len(base64.b64decode(made["jwt_key"])) == 32
    assert len(set(made.values())) == len(made)


def test_runners_that_ask_at_once_get_the_same_secret(some_vault: VaultUnderTest, instance_id: UUID) -> None:
    asking = [runner(some_vault) for _ in range(4)]
    start = threading.Barrier(len(asking))

    def ask(vault: Vault) -> str:
        start.wait()
        return vault.runtime_secret(instance_id, "munge_key")

    with ThreadPoolExecutor(len(asking)) as pool:
        assert len(set(pool.map(ask, asking))) == 1


def test_a_secret_is_replaced_in_the_steps_stage_and_promote(some_vault: VaultUnderTest, instance_id: UUID) -> None:
    vault = runner(some_vault)
    old, coming = (vault.runtime_secret(instance_id, "munge_key", step) for step in ("current", "stage"))
    assert vault.runtime_secret(instance_id, "munge_key") == old != coming
    assert vault.runtime_secret(instance_id, "munge_key", "promote") == coming
    assert vault.runtime_secret(instance_id, "munge_key") == coming


def test_deleting_secrets_leaves_no_version_and_can_be_repeated(
    some_vault: VaultUnderTest, instance_id: UUID, path: str
) -> None:
    vault = runner(some_vault)
    for step in ("current", "stage", "promote"):
        vault.runtime_secret(instance_id, "munge_key", step)
    vault.delete_secrets(instance_id)
    vault.delete_secrets(instance_id)
    with pytest.raises(exceptions.InvalidPath):
        some_vault.admin.secrets.kv.v2.read_secret_metadata(path=path, mount_point=some_vault.mount)


def test_secrets_that_a_person_deleted_are_not_created_again(
    some_vault: VaultUnderTest, instance_id: UUID, path: str
) -> None:
    vault, kv = runner(some_vault), some_vault.admin.secrets.kv.v2
    before = vault.runtime_secret(instance_id, "munge_key")
    kv.delete_latest_version_of_secret(path=path, mount_point=some_vault.mount)
    error = refusal(vault, instance_id)
    assert (error.code, error.klass) == ("secrets_deleted", "intervention") and "undelete" in error.message
    kv.undelete_secret_versions(path=path, versions=[1], mount_point=some_vault.mount)
    assert vault.runtime_secret(instance_id, "munge_key") == before


def test_a_delivery_is_unwrapped_once_and_the_second_time_is_an_alarm(
    some_vault: VaultUnderTest, instance_id: UUID
) -> None:
    delivery, vault = some_vault.deliver(KEY), runner(some_vault)
    assert vault.unwrap_private_key(delivery) == KEY
    assert vault.runtime_secret(instance_id, "munge_key"), "the runner's own login is not disturbed"
    with pytest.raises(SecretsError) as error:
        vault.unwrap_private_key(delivery)
    assert (error.value.code, error.value.klass) == ("wrapping_token_spent", "intervention")
    assert "canary" not in str(error.value) and delivery.wrapping_token not in str(error.value)


def test_the_login_reaches_no_other_project(some_vault: VaultUnderTest, instance_id: UUID) -> None:
    error = refusal(runner(some_vault, project_id=uuid4(), **some_vault.role()), instance_id)
    assert (error.code, error.klass) == ("vault_denied", "intervention")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"VAULT_SECRET_ID": "canary-secret-id"}, "VAULT_SECRET_ID"),
        ({"VAULT_ROLE_ID": "canary-role-id"}, "VAULT_ROLE_ID"),
    ],
)
def test_a_wrong_login_names_the_setting_and_shows_no_value(
    some_vault: VaultUnderTest, instance_id: UUID, wrong: dict[str, str], named: str
) -> None:
    error = refusal(runner(some_vault, **{**some_vault.role(), **wrong}), instance_id)
    assert error.code == "vault_login_refused" and named in error.message and "canary" not in error.message


def test_an_unknown_approle_mount_is_an_error_with_a_code(some_vault: VaultUnderTest, instance_id: UUID) -> None:
    error = refusal(runner(some_vault, vault_approle_mount="nowhere", **some_vault.role()), instance_id)
    assert error.code in ("vault_login_refused", "vault_denied") and error.klass == "intervention"


@pytest.mark.parametrize("missing", [{}, {"VAULT_ROLE_ID": "role"}])
def test_without_a_login_the_settings_for_one_are_named(
    some_vault: VaultUnderTest, instance_id: UUID, missing: dict[str, str]
) -> None:
    error = refusal(Vault(some_vault.settings(**missing), SLURM.runtime_secrets), instance_id)
    assert error.code == "vault_login_missing" and "VAULT_SECRET_ID" in error.message


def keep(file: Path, text: str, mode: int = 0o640) -> Path:
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_token_that_an_agent_keeps_in_a_file_is_read_at_each_use(
    some_vault: VaultUnderTest, instance_id: UUID, tmp_path: Path
) -> None:
    first, second = some_vault.token(), some_vault.token()
    vault = runner(some_vault, VAULT_TOKEN_FILE=keep(tmp_path / "token", first))
    made = vault.runtime_secret(instance_id, "munge_key")
    some_vault.admin.auth.token.revoke(first)
    assert refusal(vault, instance_id).code == "vault_denied"
    keep(tmp_path / "token", f"{second}\n")
    assert vault.runtime_secret(instance_id, "munge_key") == made


def test_a_secret_id_in_a_file_logs_in(some_vault: VaultUnderTest, instance_id: UUID, tmp_path: Path) -> None:
    role = some_vault.role()
    file = keep(tmp_path / "secret-id", role["VAULT_SECRET_ID"], 0o400)
    vault = runner(some_vault, VAULT_ROLE_ID=role["VAULT_ROLE_ID"], VAULT_SECRET_ID_FILE=file)
    assert vault.runtime_secret(instance_id, "munge_key")


@pytest.fixture
def agent(some_vault: VaultUnderTest) -> Iterator[str]:
    """Works like a Vault Agent with auto-auth: a request without a token is forwarded with the agent's token."""
    token, upstream = some_vault.token(), urlsplit(some_vault.address)
    if upstream.scheme != "http":
        pytest.skip("this agent supports plain HTTP only")

    class Forward(BaseHTTPRequestHandler):
        def answer(self) -> None:
            connection = http.client.HTTPConnection(upstream.netloc, timeout=10)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            headers.setdefault("X-Vault-Token", token)
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            connection.request(self.command, self.path, content, headers)
            answer = connection.getresponse()
            body = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            connection.close()

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - the base class's names

        def log_message(self, *_: Any) -> None:
            """No log on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Forward) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_through_an_agent_no_login_is_needed_and_deliveries_name_vault_itself(
    some_vault: VaultUnderTest, instance_id: UUID, agent: str
) -> None:
    vault = runner(some_vault, VAULT_AGENT_ADDR=agent)
    assert vault.unwrap_private_key(some_vault.deliver(KEY)) == KEY
    assert vault.runtime_secret(instance_id, "munge_key") == runner(some_vault).runtime_secret(instance_id, "munge_key")


def test_an_agents_address_as_vault_addr_is_refused_and_spends_no_token(some_vault: VaultUnderTest, agent: str) -> None:
    delivery = some_vault.deliver(KEY)
    with pytest.raises(SecretsError, match="VAULT_AGENT_ADDR") as error:
        runner(some_vault, VAULT_ADDR=agent).unwrap_private_key(delivery)
    assert error.value.code == "vault_address_mismatch"
    spelled = delivery.model_copy(update={"vault_addr": delivery.vault_addr.replace("http", "HTTP", 1) + "/"})
    assert runner(some_vault).unwrap_private_key(spelled) == KEY, "the same address, spelled differently"
