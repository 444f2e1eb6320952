"""Requests of a person, through the public API and with the person's own token."""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from pydantic import ValidationError

from runner.intent.errors import first_problem
from runner.model.errors import RequestError
from runner.model.names import host_name
from runner.model.platform import Allocation, AppInstance, Member, Operation
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm.cluster_config import Config

T = TypeVar("T")


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
) -> AppInstance:
    allocations = client.allocations()
    first = find_allocation(allocations, controller)
    others = [find_allocation(allocations, worker).id for worker in workers]
    if settings.access_credential_id is None:
        raise RequestError(
            "GPUAAS_ACCESS_CREDENTIAL_ID is not set: the deploy must name the ssh credential of its hosts"
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
        "access_credential_id": str(settings.access_credential_id),
    }
    if settings.service_account_id:
        body["operator_service_account_id"] = str(settings.service_account_id)
    if name:
        body["name"] = name
    return client.create_instance(body, key=uuid.uuid4().hex)


def read_users(path: Path) -> list[dict[str, Any]]:
    """The list of a file, checked as the runner will check it, so that a mistake is found before anything is asked."""
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
) -> Operation:
    body: dict[str, Any] = {"operation": verb, "component_key": component_key, "parameters": parameters}
    if members:
        known = client.members(instance.id)
        body["member_ids"] = [str(find_member(known, one).id) for one in members]
    if allocations:
        listed = client.allocations()
        body["allocation_ids"] = [str(find_allocation(listed, one).id) for one in allocations]
    return client.create_operation(instance.id, body, key=uuid.uuid4().hex)


def request_of_instance(client: Client, instance: AppInstance, verb: str, parameters: dict[str, Any]) -> Operation:
    body = {"operation": verb, "parameters": parameters}
    return client.create_operation(instance.id, body, key=uuid.uuid4().hex, of_instance=True)


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
        if _uuid(access_credential) is None:
            raise RequestError(f"{access_credential!r} is not the id of an access credential")
        body["access_credential_id"] = access_credential
    if settings or unset or users is not None:
        body["config"] = _changed(instance, settings, unset, users)
    return client.patch_instance(instance, body, key=uuid.uuid4().hex)


def _changed(
    instance: AppInstance, settings: dict[str, Any], unset: Sequence[str], users: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """The whole `config` with these changes: the platform takes it as a whole."""
    config = dict(instance.config or {})
    slurm = {key: value for key, value in (config.get("slurm") or {}).items() if _spelt(key) not in map(_spelt, unset)}
    absent = [name for name in unset if _spelt(name) not in map(_spelt, config.get("slurm") or {})]
    if absent:
        present = ", ".join(sorted(slurm)) or "none"
        raise RequestError(f"{', '.join(absent)} is not set in the instance's config; these settings are: {present}")
    slurm = {key: value for key, value in slurm.items() if _spelt(key) not in map(_spelt, settings)} | settings
    config["slurm"] = slurm
    if users is not None:
        config["users"] = users
    return config


def _spelt(key: str) -> str:
    """Slurm does not tell MaxJobCount from maxjobcount, so neither do we."""
    return key.lower()


def operations(client: Client, instance: AppInstance, **filters: str | None) -> list[Operation]:
    """Those of the instance and those of its members, in order of creation."""
    found = [*client.instance_operations(instance.id, **filters), *client.member_operations(instance.id, **filters)]
    return sorted(found, key=lambda one: (str(one.created_at), str(one.id)))


def cancel(client: Client, instance: AppInstance, text: str) -> Operation:
    listed = operations(client, instance, status="accepted,running")
    found = [one for one in listed if str(one.id).startswith(text)]
    chosen = _only(found, text, "open operation", [f"{one.id} {one.operation}" for one in listed])
    return client.patch_operation(instance.id, chosen, {"status": "cancelled"}, key=uuid.uuid4().hex)


def find_instance(client: Client, settings: Settings, text: str | None) -> AppInstance:
    """By id, by the start of an id, by name; without a text, the only one there is."""
    if text and (whole := _uuid(text)):
        return client.instance(whole)
    alive = [one for one in client.instances(app_slug=settings.app_slug) if one.status != "deleted"]
    found = [one for one in alive if not text or str(one.id).startswith(text) or one.name == text]
    return _only(found, text, "instance", [f"{one.id} {one.name or ''}" for one in alive])


def find_allocation(allocations: Sequence[Allocation], text: str) -> Allocation:
    found = [
        one
        for one in allocations
        if str(one.id).startswith(text) or text in (one.name, (one.connection or {}).get("hostname"))
    ]
    return _only(found, text, "allocation", [str(one.id) for one in allocations])


def find_member(members: Sequence[Member], text: str) -> Member:
    found = [
        one
        for one in members
        if one.status != "deleted"
        and (
            str(one.id).startswith(text) or host_name(one) == text or one.adapter_detail.get("worker_hostname") == text
        )
    ]
    return _only(found, text, "member", [f"{one.id} {one.component_key}" for one in members])


def _only(found: list[T], text: str | None, kind: str, known: list[str]) -> T:
    if len(found) == 1:
        return found[0]
    listing = "".join(f"\n  {one}" for one in known) or " none"
    if not found:
        raise RequestError(f"no {kind} {text or ''} in this project. Choose one of:{listing}")
    raise RequestError(f"{text or 'the request'} matches {len(found)} {kind}s. Choose one of:{listing}")


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
