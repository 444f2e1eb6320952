"""A shared runtime on the sandbox platform, served by a runner with simulated hosts."""

from typing import Any
from uuid import UUID

from runner.loop import run as loop
from runner.loop.shared import Summary
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm.app import SLURM
from tests.platform_process import Doc, Project
from tests.tenant import Tenant

# What a connection needs to be dialled by a play.
KEY = "ssh-ed25519 " + "A" * 68
ALLOWED = {"submit": True, "partitions": ["main"]}
ANN = {"subject": "oidc|ann", "username": "ann", "uid": 20001, "ssh_keys": []}


def dialable(project: Project, first: int = 1) -> None:
    for number, allocation_id in enumerate(project.allocation_ids):
        connection = {"host": f"192.0.2.{first + number}", "port": 22, "username": "ops", "host_keys": [KEY]}
        project.platform.control.put_allocation(project.project_id, allocation_id, connection=connection, gpus=0)


def runner_settings(tenant: Tenant, **changes: Any) -> Settings:
    role = tenant.platform.control.create_runtime_approle(tenant.runtime["id"])
    values: dict[str, Any] = {
        "base_url": tenant.platform.base_url,
        "org_id": tenant.org_id,
        "shared_runtime_id": tenant.runtime["id"],
        "key_id": tenant.key["key_id"],
        "client_secret": tenant.key["client_secret"],
        "VAULT_ADDR": tenant.platform.base_url,
        "VAULT_ROLE_ID": role["role_id"],
        "VAULT_SECRET_ID": role["secret_id"],
        "retry_seconds": 0,
        "api_patience_seconds": 5,
    }
    return Settings(**{**values, **changes})


def work(tenant: Tenant, **changes: Any) -> Summary:
    own = runner_settings(tenant, **changes)
    with Client(own) as client:
        done = loop.run(client, own, SLURM)
    assert done.problems == []
    return done


def account(project: Project) -> str:
    return f"p_{UUID(project.project_id).hex[:12]}"


def read(tenant: Tenant, path: str = "") -> Doc:
    found: Doc = tenant.admin.get(path or tenant.path).json()
    return found


def change(tenant: Tenant, path: str, **body: Any) -> Doc:
    answer = tenant.admin.patch(path, body)
    assert answer.status_code == 200, answer.text
    found: Doc = answer.json()
    return found
