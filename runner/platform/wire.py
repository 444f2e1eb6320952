"""Paths, headers and names that the platform defines, in either scope: a project, or one shared runtime of a tenant.

contract/openapi.yaml marks those that are assumptions. A wrong assumption is corrected here and in the models only.
"""

import re
from typing import Any, Final
from uuid import UUID

from runner.model.errors import RequestError
from runner.model.scope import ProjectScope, RuntimeScope, Scope, TenantScope

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
RUNTIME_TOKEN: Final = f"{BASE}/auth/shared-runtime-operator/token"

APPS: Final = f"{BASE}/apps"

# What a record below a shared runtime calls the id of its owner, and what one below an instance calls it.
_RUNTIME_ID: Final = "shared_runtime_id"
_INSTANCE_ID: Final = "app_instance_id"


def record(body: Any) -> Any:
    """A record as the models read it: one of a shared runtime has the field names of an instance's."""
    if not isinstance(body, dict) or _RUNTIME_ID not in body:
        return body
    return {**{key: value for key, value in body.items() if key != _RUNTIME_ID}, _INSTANCE_ID: body[_RUNTIME_ID]}


def instances(scope: Scope) -> str:
    match scope:
        case ProjectScope(project_id=project):
            return f"{BASE}/projects/{project}/app-instances"
        case RuntimeScope(org_id=org) | TenantScope(org_id=org):
            return f"{BASE}/orgs/{org}/shared-app-runtimes"


def instance(scope: Scope, instance_id: UUID) -> str:
    return f"{instances(scope)}/{instance_id}"


def members(scope: Scope, instance_id: UUID) -> str:
    kind = "members" if isinstance(scope, ProjectScope) else "workers"
    return f"{instance(scope, instance_id)}/{kind}"


def member_operations(scope: Scope, instance_id: UUID) -> str:
    kind = "member-operations" if isinstance(scope, ProjectScope) else "worker-operations"
    return f"{instance(scope, instance_id)}/{kind}"


def instance_operations(scope: Scope, instance_id: UUID) -> str:
    return f"{instance(scope, instance_id)}/operations"


def events(scope: Scope, instance_id: UUID) -> str:
    return f"{instance(scope, instance_id)}/events"


def attachments(scope: Scope, instance_id: UUID) -> str:
    """Only a shared runtime has attachments."""
    return f"{instance(scope, instance_id)}/attachments"


def allocations(scope: Scope) -> str:
    return f"{_owner(scope)}/allocations"


def entitlements(scope: Scope) -> str:
    return f"{_owner(scope)}/entitlements"


def deliveries(scope: Scope, credential: UUID) -> str:
    return f"{_owner(scope)}/access-credentials/{credential}/deliveries"


def resolutions(scope: Scope, instance_id: UUID) -> str:
    return f"{instance(scope, instance_id)}/artifact-resolutions"


def _owner(scope: Scope) -> str:
    """What has the allocations and the credentials that this scope may use."""
    match scope:
        case ProjectScope(project_id=project):
            return f"{BASE}/projects/{project}"
        case RuntimeScope(runtime_id=runtime):
            return instance(scope, runtime)
        case TenantScope():
            raise RequestError("GPUAAS_SHARED_RUNTIME_ID is not set: it names the shared runtime that has them")


_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ANY: Final = UUID(int=0)


def _paths_of(scope: Scope) -> tuple[str, ...]:
    lists = [paths(scope, _ANY) for paths in (members, member_operations, instance_operations)]
    only_lists = [paths(scope, _ANY) for paths in (events, resolutions)]
    lists.append(allocations(scope))
    if isinstance(scope, RuntimeScope):
        lists.append(attachments(scope, _ANY))
    own = (instances(scope), instance(scope, _ANY), deliveries(scope, _ANY), entitlements(scope))
    return (*own, *only_lists, *lists, *(f"{path}/{_ANY}" for path in lists))


ROUTES: Final = frozenset(
    _ID.sub("{id}", path.removeprefix(BASE))
    for path in (TOKEN, RUNTIME_TOKEN, ME, APPS, *_paths_of(ProjectScope(_ANY)), *_paths_of(RuntimeScope(_ANY, _ANY)))
)


def route(path: str) -> str:
    """The path without ids: one of ROUTES, or "other"."""
    found = _ID.sub("{id}", path.removeprefix(BASE))
    return found if found in ROUTES else "other"
