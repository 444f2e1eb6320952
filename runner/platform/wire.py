"""Paths and headers that the platform defines.

contract/openapi.yaml marks those that are assumptions. A wrong assumption is corrected here and in the models only.
"""

from typing import Final
from uuid import UUID

BASE: Final = "/api/v1"

REQUEST_ID: Final = "X-Request-Id"
CORRELATION_ID: Final = "X-Correlation-Id"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
IF_MATCH: Final = "If-Match"
ETAG: Final = "ETag"
RETRY_AFTER: Final = "Retry-After"
DATE: Final = "Date"

TOKEN: Final = f"{BASE}/auth/service-account/token"


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
