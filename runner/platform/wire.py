"""Paths of the platform's API, by our names, in either scope: a project, or one shared runtime of a tenant.

The templates are in runner/platform/contract.py. A path here has the default contract's text, which routes and messages
show; `filled` gives what is sent to a platform with another contract.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from runner.model.errors import RequestError
from runner.model.scope import ProjectScope, RuntimeScope, Scope, TenantScope
from runner.platform.contract import DEFAULT, KIND_OF, Contract, Kind

BASE: Final = DEFAULT.base
_ITEM: Final = "/item"
_LISTS: Final = frozenset(
    {
        *("instances", "members", "member_operations", "instance_operations"),
        *("events", "resolutions", "attachments", "allocations", "entitlements"),
    }
)


class Path(str):
    """A path by our names. `call` is its template in the contract, `ids` fill the template."""

    __slots__ = ("call", "ids")
    call: str
    ids: Mapping[str, str]

    def item(self, record_id: UUID) -> "Path":
        """The path of one record of this list."""
        return _path(f"{self.call}{_ITEM}", {**self.ids, "item": str(record_id)})

    @property
    def kind(self) -> Kind | None:
        """What its records are."""
        return KIND_OF.get(self._name)

    @property
    def is_list(self) -> bool:
        """Whether a read of it is answered with pages."""
        return self._name in _LISTS and not self.call.endswith(_ITEM)

    @property
    def _name(self) -> str:
        return self.call.removesuffix(_ITEM).rpartition(".")[2]


def template(contract: Contract, path: Path) -> str:
    """The path's template in that contract, below its base."""
    found: Any = contract.paths
    for name in path.call.removesuffix(_ITEM).split("."):
        found = getattr(found, name)
    return f"{found}/{{item}}" if path.call.endswith(_ITEM) else str(found)


def filled(contract: Contract, path: Path) -> str:
    """The path as it is sent."""
    return contract.base + template(contract, path).format_map(path.ids)


def _path(call: str, ids: Mapping[str, str]) -> Path:
    made = Path("")
    made.call, made.ids = call, ids
    named = Path(filled(DEFAULT, made))
    named.call, named.ids = call, ids
    return named


def _in_scope(scope: Scope, name: str, **ids: UUID) -> Path:
    texts = {key: str(value) for key, value in ids.items()}
    match scope:
        case ProjectScope(project_id=project):
            return _path(f"project.{name}", {"project_id": str(project), **texts})
        case RuntimeScope(org_id=org) | TenantScope(org_id=org):
            return _path(f"runtime.{name}", {"org_id": str(org), **texts})


TOKEN: Final = _path("token", {})
RUNTIME_TOKEN: Final = _path("runtime_token", {})
ME: Final = _path("me", {})

# What a record below a shared runtime calls the id of its owner, and what one below an instance calls it.
_RUNTIME_ID: Final = "shared_runtime_id"
_INSTANCE_ID: Final = "app_instance_id"


def record(body: Any) -> Any:
    """A record as the models read it: one of a shared runtime has the field names of an instance's."""
    if not isinstance(body, dict) or _RUNTIME_ID not in body:
        return body
    return {**{key: value for key, value in body.items() if key != _RUNTIME_ID}, _INSTANCE_ID: body[_RUNTIME_ID]}


def app(app_slug: str) -> Path:
    return _path("app", {"app_slug": app_slug})


def app_versions(app_slug: str) -> Path:
    return _path("app_versions", {"app_slug": app_slug})


def instances(scope: Scope) -> Path:
    return _in_scope(scope, "instances")


def instance(scope: Scope, instance_id: UUID) -> Path:
    return _in_scope(scope, "instance", instance_id=instance_id)


def members(scope: Scope, instance_id: UUID) -> Path:
    return _in_scope(scope, "members", instance_id=instance_id)


def member_operations(scope: Scope, instance_id: UUID) -> Path:
    return _in_scope(scope, "member_operations", instance_id=instance_id)


def instance_operations(scope: Scope, instance_id: UUID) -> Path:
    return _in_scope(scope, "instance_operations", instance_id=instance_id)


def events(scope: Scope, instance_id: UUID) -> Path:
    return _in_scope(scope, "events", instance_id=instance_id)


def attachments(scope: Scope, instance_id: UUID) -> Path:
    """Only a shared runtime has attachments."""
    if isinstance(scope, ProjectScope):
        raise RequestError("an instance of a project has no attachments: set GPUAAS_SHARED_RUNTIME_ID")
    return _in_scope(scope, "attachments", instance_id=instance_id)


def allocations(scope: Scope) -> Path:
    return _in_scope(scope, "allocations", **_owner(scope))


def entitlements(scope: Scope) -> Path:
    return _in_scope(scope, "entitlements", **_owner(scope))


def deliveries(scope: Scope, credential: UUID) -> Path:
    return _in_scope(scope, "deliveries", credential_id=credential, **_owner(scope))


def resolutions(scope: Scope, instance_id: UUID) -> Path:
    return _in_scope(scope, "resolutions", instance_id=instance_id)


def issued_secrets(scope: Scope, instance_id: UUID) -> Path:
    return _in_scope(scope, "issued_secrets", instance_id=instance_id)


def _owner(scope: Scope) -> dict[str, UUID]:
    """What has the allocations and the credentials that this scope may use, beside the project."""
    match scope:
        case ProjectScope():
            return {}
        case RuntimeScope(runtime_id=runtime):
            return {"instance_id": runtime}
        case TenantScope():
            raise RequestError("GPUAAS_SHARED_RUNTIME_ID is not set: it names the shared runtime that has them")


_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_IDS: Final = re.compile(r"\{[a-z_]+\}")
_ANY: Final = UUID(int=0)


def _paths_of(scope: Scope) -> tuple[Path, ...]:
    lists = [paths(scope, _ANY) for paths in (members, member_operations, instance_operations)]
    only_lists = [paths(scope, _ANY) for paths in (events, resolutions, issued_secrets)]
    lists.append(allocations(scope))
    if isinstance(scope, RuntimeScope):
        lists.append(attachments(scope, _ANY))
    own = (instances(scope), instance(scope, _ANY), deliveries(scope, _ANY), entitlements(scope))
    return (*own, *only_lists, *lists, *(path.item(_ANY) for path in lists))


ROUTES: Final = frozenset(
    _ID.sub("{id}", path.removeprefix(BASE))
    for path in (
        *(TOKEN, RUNTIME_TOKEN, ME, app(str(_ANY)), app_versions(str(_ANY))),
        *(*_paths_of(ProjectScope(_ANY)), *_paths_of(RuntimeScope(_ANY, _ANY))),
    )
)


def route(path: str) -> str:
    """The path without ids: one of ROUTES, or "other"."""
    text = _IDS.sub("{id}", template(DEFAULT, path)) if isinstance(path, Path) else path
    found = _ID.sub("{id}", text.removeprefix(BASE))
    return found if found in ROUTES else "other"
