"""Paths and headers that the platform defines.

contract/openapi.yaml marks those that are assumptions. A wrong assumption is corrected here and in the models only.
"""

import re
from typing import Final
from uuid import UUID

BASE: Final = "/api/v1"

REQUEST_ID: Final = "X-Request-Id"
CORRELATION_ID: Final = "X-Correlation-Id"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
IF_MATCH: Final = "If-Match"
TRACEPARENT: Final = "traceparent"
ETAG: Final = "ETag"
RETRY_AFTER: Final = "Retry-After"
DATE: Final = "Date"
PROJECT: Final = "X-Project-ID"

TOKEN: Final = f"{BASE}/auth/service-account/token"
ME: Final = f"{BASE}/me"


def instances(project: UUID) -> str:
    return f"{BASE}/projects/{project}/app-instances"


def instance(project: UUID, instance_id: UUID) -> str:
    return f"{instances(project)}/{instance_id}"


def members(project: UUID, instance_id: UUID) -> str:
    return f"{instance(project, instance_id)}/members"


def member_operations(project: UUID, instance_id: UUID) -> str:
    return f"{instance(project, instance_id)}/member-operations"


def instance_operations(project: UUID, instance_id: UUID) -> str:
    return f"{instance(project, instance_id)}/operations"


def events(project: UUID, instance_id: UUID) -> str:
    return f"{instance(project, instance_id)}/events"


def allocations(project: UUID) -> str:
    return f"{BASE}/projects/{project}/allocations"


def deliveries(project: UUID, credential: UUID) -> str:
    return f"{BASE}/projects/{project}/access-credentials/{credential}/deliveries"


def resolutions(project: UUID, instance_id: UUID) -> str:
    return f"{instance(project, instance_id)}/artifact-resolutions"


_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ANY: Final = UUID(int=0)
_LISTS: Final = tuple(
    paths(_ANY, _ANY) for paths in (members, member_operations, instance_operations, events, resolutions)
)
_PATHS: Final = (TOKEN, ME, instances(_ANY), instance(_ANY, _ANY), allocations(_ANY), deliveries(_ANY, _ANY), *_LISTS)
ROUTES: Final = frozenset(
    _ID.sub("{id}", path.removeprefix(BASE))
    for path in (*_PATHS, f"{allocations(_ANY)}/{_ANY}", *(f"{path}/{_ANY}" for path in _LISTS[:3]))
)


def route(path: str) -> str:
    """The path without ids: one of ROUTES, or "other"."""
    found = _ID.sub("{id}", path.removeprefix(BASE))
    return found if found in ROUTES else "other"
