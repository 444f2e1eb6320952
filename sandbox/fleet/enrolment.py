"""Registration of a fleet with the platform, and the credentials that the platform returns."""

import json
import time
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import yaml

from sandbox.fleet import places
from sandbox.fleet.hosts import LOGIN_USER, SSH_PORT, Host
from sandbox.fleet.keys import KeyPair
from sandbox.platform.control_client import ControlClient

_DAY = 24 * 3600
_OPERATOR_TOKEN_SECONDS = 7 * _DAY


@dataclass(frozen=True)
class Enrolment:
    """A project on the platform with the credentials to use it. Kept in one file that only its owner can read."""

    org_id: str
    project_id: str
    service_account_id: str
    key_id: str
    client_secret: str = field(repr=False)
    operator_token: str = field(repr=False)
    operator_token_expires: float
    vault_role_id: str
    vault_secret_id: str = field(repr=False)
    access_credential_id: str
    # Public part of the key that logs in to the hosts; empty until the hosts and the platform have their parts.
    login_key: str = ""
    allocations: tuple[str, ...] = ()
    # Names of the hosts of a further project; the first project has those that no other has.
    hosts: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: Path) -> Self | None:
        if not path.exists():
            return None
        values: dict[str, Any] = json.loads(path.read_text())
        lists = {name: tuple(values.get(name, ())) for name in ("allocations", "hosts")}
        return cls(**{**values, **lists})

    def save(self, path: Path) -> None:
        places.write_private(path, json.dumps(asdict(self), indent=2) + "\n")

    def allocation_id(self, host: Host) -> str:
        """A machine's allocation. A host that was created again under an old name gets a new allocation."""
        return str(uuid.uuid5(uuid.UUID(self.project_id), host.machine))

    def env(self) -> dict[str, str]:
        """The settings of runner and operator, as environment variables. A tenant's id is not one of a project."""
        return {
            "GPUAAS_PROJECT_ID": self.project_id,
            "GPUAAS_SERVICE_ACCOUNT_ID": self.service_account_id,
            "GPUAAS_KEY_ID": self.key_id,
            "GPUAAS_CLIENT_SECRET": self.client_secret,
            "GPUAAS_OPERATOR_TOKEN": self.operator_token,
            "GPUAAS_ACCESS_CREDENTIAL_ID": self.access_credential_id,
            "VAULT_ROLE_ID": self.vault_role_id,
            "VAULT_SECRET_ID": self.vault_secret_id,
        }


def enrol(
    control: ControlClient,
    app_directory: Path,
    enrolled: Enrolment | None,
    *,
    name: str = "sandbox",
    org_id: str | None = None,
) -> Enrolment:
    """Register the app, and create the project and its principals unless they exist; without org_id, a tenant too."""
    manifest = _yaml(app_directory / "manifest.yaml")
    control.register_app(manifest)
    # Apps may install from the hosts' own package sources. A deny at any level still wins.
    control.put_artifact_rule("sandbox-allows", scope="global", effect="allow", artifact="*")
    keys = _yaml(app_directory / "action-keys.yaml")
    adapter_keys = [entry["key"] for entry in keys["service_account"]]
    operator_keys = _person_keys(app_directory)
    if enrolled is None:
        project = control.create_project(name, org_id)
        account = control.create_service_account(project["project_id"], "adapter", adapter_keys)
        role = control.create_approle(project["project_id"])
        enrolled = Enrolment(
            org_id=project["org_id"],
            project_id=project["project_id"],
            service_account_id=account["service_account_id"],
            key_id=account["key_id"],
            client_secret=account["client_secret"],
            operator_token="",
            operator_token_expires=0,
            vault_role_id=role["role_id"],
            vault_secret_id=role["secret_id"],
            access_credential_id=str(uuid.uuid4()),
        )
    else:
        # A newer checkout may need other keys than the one that made this sandbox.
        control.change_service_account(enrolled.service_account_id, action_keys=adapter_keys)
    if enrolled.operator_token_expires - time.time() > _DAY:
        return enrolled
    token = control.operator_token(enrolled.project_id, "operator", operator_keys, _OPERATOR_TOKEN_SECONDS)
    return replace(enrolled, operator_token=token, operator_token_expires=time.time() + _OPERATOR_TOKEN_SECONDS)


def _person_keys(app_directory: Path) -> list[str]:
    """The sandbox's people own what they operate: they may also read the catalog, publish and delete."""
    own = {entry["key"] for entry in _yaml(app_directory / "action-keys.yaml")["operator"]}
    return sorted(own | set(_yaml(app_directory / "manifest.yaml")["action_keys"].values()))


def administrator_env(control: ControlClient, app_directory: Path, org_id: str) -> dict[str, str]:
    """A new token of an administrator of the tenant, as environment variables."""
    keys = _person_keys(app_directory)
    token = control.administrator_token(org_id, "administrator", keys, _OPERATOR_TOKEN_SECONDS)
    return {"GPUAAS_ORG_ID": org_id, "GPUAAS_OPERATOR_TOKEN": token}


def runtime_env(control: ControlClient, app_directory: Path, runtime_id: str) -> dict[str, str]:
    """A new key of a shared runtime's operator identity, and its Vault role, as environment variables."""
    keys = [entry["key"] for entry in _yaml(app_directory / "action-keys.yaml")["service_account"]]
    key, role = control.create_runtime_operator(runtime_id, keys), control.create_runtime_approle(runtime_id)
    return {
        "GPUAAS_SHARED_RUNTIME_ID": runtime_id,
        "GPUAAS_KEY_ID": key["key_id"],
        "GPUAAS_CLIENT_SECRET": key["client_secret"],
        "VAULT_ROLE_ID": role["role_id"],
        "VAULT_SECRET_ID": role["secret_id"],
    }


def store_login_key(control: ControlClient, enrolment: Enrolment, key: KeyPair) -> Enrolment:
    """Give the private part to the platform; the fleet itself keeps only the public part."""
    control.put_credential(
        enrolment.project_id, enrolment.access_credential_id, username=LOGIN_USER, private_key=key.private
    )
    return replace(enrolment, login_key=key.public)


def register_hosts(control: ControlClient, enrolment: Enrolment, hosts: list[Host]) -> Enrolment:
    """Offer every host as an active allocation at its present address; release those of machines that are gone."""
    current = {enrolment.allocation_id(host): host for host in hosts}
    for allocation_id, host in current.items():
        control.put_allocation(
            enrolment.project_id,
            allocation_id,
            status="active",
            name=host.name,
            sku="sandbox.container",
            region="sandbox",
            gpus=host.spec.gpus.count,
            connection={
                "host": host.address,
                "port": SSH_PORT,
                "username": LOGIN_USER,
                "host_keys": [host.host_key],
                "hostname": host.name,
            },
        )
    for gone in set(enrolment.allocations) - set(current):
        control.set_allocation_status(enrolment.project_id, gone, "released")
    return replace(enrolment, allocations=tuple(sorted(current)))


def _yaml(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found
