"""Makes every read of the runner once, so that the client's collector has what differs. Writes nothing."""

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from runner.model.errors import PlatformError
from runner.platform.client import Client

# More instances show the same.
MOST_INSTANCES = 20
T = TypeVar("T")


def walk(client: Client, app_slug: str) -> int:
    """Returns how many instances were read. A read that fails is in the collector, and does not end the others.

    The first one decides whether there is a platform at all: its failure is an error of the command.
    """
    client.me()
    instances = _read(lambda: client.instances(app_slug=app_slug))[:MOST_INSTANCES]
    allocations = _read(client.allocations)
    _read(lambda: client.entitlements(app_slug=app_slug))
    with contextlib.suppress(PlatformError, IndexError):
        client.allocation(allocations[0].id)
    for instance in instances:
        _walk_instance(client, instance.id)
    return len(instances)


def _walk_instance(client: Client, instance_id: UUID) -> None:
    """The instance, its lists, and one record of each list."""
    with contextlib.suppress(PlatformError):
        client.instance(instance_id)
    members = _read(lambda: client.members(instance_id))
    operations = _read(lambda: client.member_operations(instance_id))
    of_instance = _read(lambda: client.instance_operations(instance_id))
    _read(lambda: client.events(instance_id))
    _read(lambda: client.attachments(instance_id))
    with contextlib.suppress(PlatformError, IndexError):
        client.member(instance_id, members[0].id)
    with contextlib.suppress(PlatformError, IndexError):
        client.member_operation(instance_id, operations[0].id)
    with contextlib.suppress(PlatformError, IndexError):
        client.instance_operation(instance_id, of_instance[0].id)


def _read(read: Callable[[], Sequence[T]]) -> Sequence[T]:
    try:
        return read()
    except PlatformError:
        return []
