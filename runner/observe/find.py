"""Finds records by what a person types: an id, the start of an id, or a name."""

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from runner.model.app import App
from runner.model.errors import RequestError
from runner.model.names import host_name
from runner.model.platform import Allocation, AppInstance, InstanceStatus, Member, MemberStatus
from runner.platform.client import Client
from runner.settings import Settings

T = TypeVar("T")


def find_instance(client: Client, settings: Settings, text: str | None) -> AppInstance:
    """An instance by id, start of an id or name; without a text, the only one there is."""
    if text == "":
        raise RequestError("the instance's name or id is empty: name one, as gpuaas-slurm get instances shows it")
    if text and (whole := read_uuid(text)):
        return client.instance(whole)
    candidates = client.instances(app_slug=settings.app_slug)
    alive = [one for one in candidates if one.status != InstanceStatus.DELETED]
    found = [one for one in alive if not text or str(one.id).startswith(text) or one.name == text]
    if text and not found:  # lists show deleted ones too, by the start of their ids
        found = [one for one in candidates if str(one.id).startswith(text)]
    return only(found, text, "instance", alive, lambda one: f"{one.id} {one.name or ''}")


def find_allocation(allocations: Sequence[Allocation], text: str) -> Allocation:
    found = [
        one
        for one in allocations
        if str(one.id).startswith(text) or text in (one.name, (one.connection or {}).get("hostname"))
    ]
    return only(found, text, "allocation", allocations, lambda one: f"{one.id} {one.name or ''}")


def find_member(members: Sequence[Member], text: str, app: App) -> Member:
    """A member by id, start of an id, name in the inventory or its host's own name."""
    alive = [one for one in members if one.status != MemberStatus.DELETED]
    found = [one for one in alive if str(one.id).startswith(text) or text in (host_name(one), app.hostname(one))]
    return only(found, text, "member", alive, lambda one: f"{one.id} {app.hostname(one) or one.component_key}")


def only(found: Sequence[T], text: str | None, kind: str, candidates: Sequence[T], label: Callable[[T], str]) -> T:
    """The one record that matches. RequestError lists those that match, or else those that there are."""
    if text == "":
        raise RequestError(f"the name or id of the {kind} is empty")
    if len(found) == 1:
        return found[0]
    listing = "".join(f"\n  {label(one).strip()}" for one in found or candidates) or " none"
    if not found:
        raise RequestError(f"no {kind} {text or ''} in this project. Choose one of:{listing}")
    raise RequestError(f"{text or 'the request'} matches {len(found)} {kind}s. Choose one of:{listing}")


def read_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
