"""Finds records by what a person types: an id, the start of an id, or a name."""

from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

from runner.model.errors import RequestError
from runner.model.names import host_name
from runner.model.platform import Allocation, AppInstance, InstanceStatus, Member, MemberStatus
from runner.platform.client import Client
from runner.settings import Settings

T = TypeVar("T")


def find_instance(client: Client, settings: Settings, text: str | None) -> AppInstance:
    """An instance by id, start of an id or name; without a text, the only one there is."""
    if text and (whole := read_uuid(text)):
        return client.instance(whole)
    alive = [one for one in client.instances(app_slug=settings.app_slug) if one.status != InstanceStatus.DELETED]
    found = [one for one in alive if not text or str(one.id).startswith(text) or one.name == text]
    return only(found, text, "instance", [f"{one.id} {one.name or ''}" for one in alive])


def find_allocation(allocations: Sequence[Allocation], text: str) -> Allocation:
    found = [
        one
        for one in allocations
        if str(one.id).startswith(text) or text in (one.name, (one.connection or {}).get("hostname"))
    ]
    return only(found, text, "allocation", [str(one.id) for one in allocations])


def find_member(members: Sequence[Member], text: str) -> Member:
    found = [
        one
        for one in members
        if one.status != MemberStatus.DELETED
        and (str(one.id).startswith(text) or host_name(one) == text or one.notes.worker_hostname == text)
    ]
    return only(found, text, "member", [f"{one.id} {one.component_key}" for one in members])


def only(found: list[T], text: str | None, kind: str, known: list[str]) -> T:
    """The one record that matches; RequestError lists what there is."""
    if len(found) == 1:
        return found[0]
    listing = "".join(f"\n  {one}" for one in known) or " none"
    if not found:
        raise RequestError(f"no {kind} {text or ''} in this project. Choose one of:{listing}")
    raise RequestError(f"{text or 'the request'} matches {len(found)} {kind}s. Choose one of:{listing}")


def read_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
