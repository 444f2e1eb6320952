"""Where the platform keeps secrets, and from where it delivers them: its own stand-in, or a Vault or OpenBao.

Of another Vault it uses mounts and policies of its own only, under this sandbox's name, and `release` removes them.
"""

import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import hvac
import requests
from hvac import exceptions

from sandbox.platform import clock, vault, vault_kv, wrapping
from sandbox.platform.errors import ApiError
from sandbox.platform.store import Doc, Tx

# What a runner's login may do: as deploy/vault-policy.json has it.
READ_AND_WRITE, DELETE = ["create", "read", "update"], ["delete"]
TIMEOUT_SECONDS = 10


class Custody(Protocol):
    def keep(self, path: str, secret: Doc) -> None:
        """Keep a secret outside every project's prefix."""

    def kept(self, path: str) -> Doc | None: ...

    def delivery(self, secret: Doc, ttl: int, origin: str) -> Doc:
        """The secret, wrapped for one reader: address, token and end of it."""

    def project_role(self, project_id: str) -> Doc:
        """A new AppRole login that reaches the secrets of one project only."""

    def runtime_role(self, org_id: str, runtime_id: str) -> Doc: ...


@dataclass(frozen=True)
class Own:
    tx: Tx

    def keep(self, path: str, secret: Doc) -> None:
        vault_kv.write(self.tx, path, secret, cas=None)

    def kept(self, path: str) -> Doc | None:
        found = vault_kv.latest(self.tx, path)
        return found.data if found else None

    def delivery(self, secret: Doc, ttl: int, origin: str) -> Doc:
        token, expires = wrapping.wrap(self.tx, secret, ttl)
        return {"vault_addr": origin, "wrapping_token": token, "expires_at": clock.stamp(expires)}

    def project_role(self, project_id: str) -> Doc:
        return vault.create_project_role(self.tx, project_id)

    def runtime_role(self, org_id: str, runtime_id: str) -> Doc:
        return vault.create_runtime_role(self.tx, org_id, runtime_id)


@dataclass(frozen=True)
class Another:
    """A Vault that is not the sandbox's."""

    tx: Tx
    address: str
    token: str = field(repr=False)
    name: str  # of the KV v2 mount and of the AppRole mount

    @property
    def _client(self) -> hvac.Client:
        client = hvac.Client(url=self.address, timeout=TIMEOUT_SECONDS)
        client.token = self.token
        return client

    def prepare(self) -> None:
        """Make the mounts. One that is there belongs to another program, since every sandbox has a name of its own."""
        with _as_errors(self.address):
            self._client.sys.enable_secrets_engine("kv", path=self.name, options={"version": "2"})
            self._client.sys.enable_auth_method("approle", path=self.name)

    def release(self) -> None:
        """Remove what was made: the mounts with everything in them, and the policies."""
        client = self._client
        with _as_errors(self.address):
            for policy in self._policies():
                client.sys.delete_policy(policy)
            client.sys.disable_auth_method(self.name)
            client.sys.disable_secrets_engine(self.name)

    def _policies(self) -> list[str]:
        return list(json.loads(self.tx.setting("vault_policies", "[]")))

    def _note(self, policy: str) -> None:
        """Before it is made, so that none is forgotten."""
        self.tx.set_setting("vault_policies", json.dumps(sorted({*self._policies(), policy})))

    def keep(self, path: str, secret: Doc) -> None:
        with _as_errors(self.address):
            self._client.secrets.kv.v2.create_or_update_secret(path=path, secret=secret, mount_point=self.name)

    def kept(self, path: str) -> Doc | None:
        try:
            with _as_errors(self.address):
                read = self._client.secrets.kv.v2.read_secret_version
                found = read(path=path, mount_point=self.name, raise_on_deleted_version=True)
        except exceptions.InvalidPath:
            return None
        return dict(found["data"]["data"])

    def delivery(self, secret: Doc, ttl: int, origin: str) -> Doc:  # noqa: ARG002 - it is not the platform that delivers
        with _as_errors(self.address):
            wrapped = self._client.sys.wrap(secret, ttl=ttl)["wrap_info"]["token"]
        expires = clock.stamp(clock.now() + timedelta(seconds=ttl))
        return {"vault_addr": self.address, "wrapping_token": wrapped, "expires_at": expires}

    def project_role(self, project_id: str) -> Doc:
        prefix = f"projects/{project_id}/"
        return self._role(f"project-{project_id}", f"{prefix}app-instances/*") | {"prefix": prefix}

    def runtime_role(self, org_id: str, runtime_id: str) -> Doc:
        path = f"orgs/{org_id}/shared-app-runtimes/{runtime_id}"
        return self._role(f"shared-runtime-{runtime_id}", path) | {"path": path}

    def _role(self, role: str, path: str) -> Doc:
        client, policy = self._client, f"{self.name}-{role}"
        rules: Doc = {
            f"{self.name}/data/{path}": {"capabilities": READ_AND_WRITE},
            f"{self.name}/metadata/{path}": {"capabilities": DELETE},
        }
        approle: Any = client.auth.approle
        with _as_errors(self.address):
            self._note(policy)
            client.sys.create_or_update_policy(policy, json.dumps({"path": rules}))
            approle.create_or_update_approle(role, token_policies=[policy], mount_point=self.name)
            return {
                "role_id": approle.read_role_id(role, mount_point=self.name)["data"]["role_id"],
                "secret_id": approle.generate_secret_id(role, mount_point=self.name)["data"]["secret_id"],
                "mount": self.name,
            }


class _as_errors:  # noqa: N801 - used as a with statement reads
    """A Vault that does not answer, or refuses the platform's token, is an error of the platform."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, exceptions.InvalidPath):
            return
        if isinstance(error, exceptions.VaultError | requests.RequestException):
            problem = f"the Vault at {self._address} does not keep the platform's secrets now ({type(error).__name__})"
            raise ApiError(503, "service_unavailable", problem) from None


def use(tx: Tx, address: str, token: str, name: str) -> Another:
    """Keep secrets in another Vault from now on. The token stays in the sandbox's private database."""
    for key, value in (("vault_address", address.rstrip("/")), ("vault_token", token), ("vault_name", name)):
        tx.set_setting(key, value)
    found = another(tx)
    assert found is not None
    return found


def another(tx: Tx) -> Another | None:
    address = tx.setting("vault_address", "")
    return Another(tx, address, tx.setting("vault_token", ""), tx.setting("vault_name", "")) if address else None


def of(tx: Tx) -> Custody:
    return another(tx) or Own(tx)
