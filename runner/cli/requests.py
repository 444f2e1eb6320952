"""Requests that commands send to the platform for a person."""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from runner import context
from runner.cli.options import given_id
from runner.intent.errors import first_problem
from runner.model import cause
from runner.model.errors import NotFound, RequestError
from runner.model.platform import AppInstance, InstanceStatus, MemberStatus, Operation
from runner.observe.find import find_allocation, find_member, only
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm.app import SLURM
from runner.slurm.cluster_config import Config, change_config

CREDENTIAL = "an access credential"


def deploy(
    client: Client,
    settings: Settings,
    *,
    controller: str,
    workers: Sequence[str],
    same_node: bool,
    name: str | None,
    config: dict[str, Any],
    app_version: str,
    access_credential: str | None = None,
    operator_account: str | None = None,
    key: str | None = None,
) -> AppInstance:
    credential = given_id(access_credential, CREDENTIAL) if access_credential else settings.access_credential_id
    account = given_id(operator_account, "a service account") if operator_account else settings.service_account_id
    allocations = client.allocations()
    first = find_allocation(allocations, controller)
    others = [find_allocation(allocations, worker).id for worker in workers]
    if credential is None:
        raise RequestError(
            "the deploy must name the ssh credential of its hosts: pass --access-credential, or set"
            " GPUAAS_ACCESS_CREDENTIAL_ID"
        )
    if same_node and first.id not in others:
        others.insert(0, first.id)
    body: dict[str, Any] = {
        "app_slug": settings.app_slug,
        "app_version": app_version,
        "placement_intent": {
            "mode": "same_node" if same_node else "split",
            "controller_allocation_id": str(first.id),
            "worker_allocation_ids": [str(one) for one in others],
        },
        "config": config,
        "access_credential_id": str(credential),
    }
    if account:
        body["operator_service_account_id"] = str(account)
    if name:
        body["name"] = name
    try:
        return client.create_instance(body, key=key or uuid.uuid4().hex)
    except NotFound as refusal:
        if refusal.code != "app_version_not_found":
            raise
        raise not_offered(client, settings.app_slug, app_version) from None


def not_offered(client: Client, app_slug: str, app_version: str) -> RequestError:
    offered = ", ".join(client.app(app_slug).versions)
    return RequestError(
        f"the catalog has no version {app_version} of {app_slug}. It offers: {offered}. Nothing was changed"
    )


def read_users(path: Path) -> list[dict[str, Any]]:
    """The list of users in a file, checked as the runner checks it, so that a mistake is found before the request."""
    try:
        listed = json.loads(path.read_text())
        Config.model_validate({"users": listed})
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise RequestError(f"{path}: {first_problem(error)}") from None
    except ValueError as error:
        raise RequestError(f"{path} is not JSON: {error}") from None
    return list(listed)


def request(
    client: Client,
    instance: AppInstance,
    verb: str,
    *,
    component_key: str,
    members: Sequence[str] = (),
    allocations: Sequence[str] = (),
    parameters: dict[str, Any],
    key: str | None = None,
) -> Operation:
    body: dict[str, Any] = {"operation": verb, "component_key": component_key, "parameters": parameters}
    if members:
        choices = client.members(instance.id)
        body["member_ids"] = [str(find_member(choices, one, SLURM).id) for one in members]
    if allocations:
        listed = client.allocations()
        body["allocation_ids"] = [str(find_allocation(listed, one).id) for one in allocations]
    return client.create_operation(instance.id, body, key=key or uuid.uuid4().hex)


def request_of_instance(
    client: Client, instance: AppInstance, verb: str, parameters: dict[str, Any], key: str | None = None
) -> Operation:
    body = {"operation": verb, "parameters": parameters}
    return client.create_operation(instance.id, body, key=key or uuid.uuid4().hex, of_instance=True)


def configure(
    client: Client,
    instance: AppInstance,
    settings: dict[str, Any],
    unset: Sequence[str],
    app_version: str | None,
    users: list[dict[str, Any]] | None = None,
    access_credential: str | None = None,
) -> AppInstance:
    """Write the desired configuration of an existing cluster; the runner applies it."""
    body: dict[str, Any] = {"app_version": app_version} if app_version else {}
    if access_credential is not None:
        body["access_credential_id"] = given_id(access_credential, CREDENTIAL)
    if settings or unset or users is not None:
        body["config"] = change_config(instance.config or {}, settings, unset, users)
    with context.bound(cause.of_instance(instance)):
        try:
            return client.patch_instance(instance, body, key=uuid.uuid4().hex)
        except NotFound as refusal:
            if app_version is None or refusal.code != "app_version_not_found":
                raise
            raise not_offered(client, instance.app_slug, app_version) from None


def operations(client: Client, instance: AppInstance, **filters: str | None) -> list[Operation]:
    """Operations on the instance and on its members, in order of creation."""
    found = [*client.instance_operations(instance.id, **filters), *client.member_operations(instance.id, **filters)]
    return sorted(found, key=lambda one: (str(one.created_at), str(one.id)))


def allocation_uses(client: Client, settings: Settings) -> dict[UUID | None, str]:
    """The component keys that each allocation of the project serves as."""
    uses: dict[UUID | None, str] = {}
    for one in client.instances(app_slug=settings.app_slug):
        for member in client.members(one.id) if one.status != InstanceStatus.DELETED else []:
            if member.status not in (MemberStatus.DELETED, MemberStatus.FAILED):
                uses[member.allocation_id] = f"{uses.get(member.allocation_id, '')} {member.component_key}".strip()
    return uses


def cancel(client: Client, instance: AppInstance, text: str) -> Operation:
    listed = operations(client, instance, status="accepted,running")
    found = [one for one in listed if str(one.id).startswith(text)]
    chosen = only(found, text, "open operation", listed, lambda one: f"{one.id} {one.operation}")
    with context.bound(cause.of_operation(chosen)):
        return client.patch_operation(instance.id, chosen, {"status": "cancelled"}, key=uuid.uuid4().hex)
