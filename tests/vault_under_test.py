"""The Vault for the tests: the sandbox's stand-in, or a real one.

With VAULT_ADDR and VAULT_TOKEN in pytest's environment the tests use that Vault or OpenBao. The token must be allowed
to make mounts, policies and AppRoles. The tests make them under their own names and remove them afterwards.
"""

import os
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import hvac
import requests
from hvac import exceptions

from runner.model.platform import Delivery
from runner.settings import Settings

POLICY = Path(__file__).resolve().parents[1] / "deploy" / "vault-policy.json"
# Taken out of the environment, so that no other test uses that Vault.
GIVEN = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("VAULT_")}


class VaultUnderTest:
    """A KV v2 mount, an AppRole login and a policy, in some Vault, for one project."""

    def __init__(self, address: str, token: str, namespace: str | None = None, cacert: str | None = None) -> None:
        self.address, self.project_id = address.rstrip("/"), uuid.uuid4()
        self.mount, self.approle_mount = f"gpuaas-slurm-kv-{self.project_id}", f"gpuaas-slurm-role-{self.project_id}"
        self._policy = f"gpuaas-slurm-{self.project_id}"
        self._base = {"VAULT_ADDR": self.address, "VAULT_NAMESPACE": namespace, "VAULT_CACERT": cacert}
        self.admin = hvac.Client(url=self.address, token=token, namespace=namespace, verify=cacert or True, timeout=30)

    def __enter__(self) -> Self:
        policy = POLICY.read_text().replace("secret/", f"{self.mount}/").replace("PROJECT_ID", str(self.project_id))
        self.admin.sys.enable_secrets_engine("kv", path=self.mount, options={"version": "2"})
        self.admin.sys.enable_auth_method("approle", path=self.approle_mount)
        self.admin.sys.create_or_update_policy(self._policy, policy)
        self.admin.auth.approle.create_or_update_approle(
            "runner", token_policies=[self._policy], token_ttl="10m", mount_point=self.approle_mount
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.admin.sys.disable_auth_method(self.approle_mount)
        self.admin.sys.delete_policy(self._policy)
        self.admin.sys.disable_secrets_engine(self.mount)

    def role(self) -> dict[str, str]:
        """A new AppRole login."""
        approle, mount = self.admin.auth.approle, self.approle_mount
        return {
            "VAULT_ROLE_ID": approle.read_role_id("runner", mount_point=mount)["data"]["role_id"],
            "VAULT_SECRET_ID": approle.generate_secret_id("runner", mount_point=mount)["data"]["secret_id"],
        }

    def token(self) -> str:
        """A token as a Vault Agent would keep it in its file."""
        role, agent = self.role(), hvac.Client(url=self.address, namespace=self._base["VAULT_NAMESPACE"])
        agent.session.verify = self.admin.session.verify
        agent.auth.approle.login(role["VAULT_ROLE_ID"], role["VAULT_SECRET_ID"], mount_point=self.approle_mount)
        return str(agent.token)

    def settings(self, **values: Any) -> Settings:
        """A runner's settings for this Vault, without a login."""
        return Settings(
            **{
                "base_url": "http://127.0.0.1:9",
                "project_id": self.project_id,
                "vault_mount": self.mount,
                "vault_approle_mount": self.approle_mount,
                **{name: value for name, value in self._base.items() if value},
                **values,
            }
        )

    def deliver(self, private_key: str) -> Delivery:
        """Deliver the key as the platform does: wrapped for one reader."""
        wrapped = self.admin.sys.wrap({"username": "ops", "private_key": private_key}, ttl=60)
        return Delivery(
            vault_addr=self.address,
            wrapping_token=wrapped["wrap_info"]["token"],
            expires_at=datetime.now(UTC) + timedelta(seconds=60),
            username="ops",
        )


def given() -> VaultUnderTest | None:
    """The Vault from the environment, if any."""
    if not (GIVEN.get("VAULT_ADDR") and GIVEN.get("VAULT_TOKEN")):
        return None
    return VaultUnderTest(
        GIVEN["VAULT_ADDR"], GIVEN["VAULT_TOKEN"], GIVEN.get("VAULT_NAMESPACE"), GIVEN.get("VAULT_CACERT")
    )


def described() -> str:
    """One line for the results that names the Vault."""
    found = given()
    if found is None:
        unused = " (VAULT_ADDR is set, but no VAULT_TOKEN, so not that one)" if "VAULT_ADDR" in GIVEN else ""
        return f"vault: the sandbox's stand-in{unused}"
    try:
        health = found.admin.sys.read_health_status(method="GET")
    except (exceptions.VaultError, requests.RequestException) as error:
        return f"vault: none answers at {found.address} ({type(error).__name__})"
    version = str(health["version"]) if isinstance(health, dict) else f"(health answers {health.status_code})"
    product = "OpenBao" if version.startswith("2.") and "enterprise" not in health else "Vault"
    return f"vault: {product} {version} at {found.address}, for test_any_vault.py; the stand-in for every other test"
