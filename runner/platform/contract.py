"""Every name of the platform's API: paths, headers, queries, fields, envelopes and the login. One place, and data.

The defaults are those of contract/openapi.yaml, which marks what is assumed. Where a platform differs, GPUAAS_CONTRACT
names a TOML file with what is different; docs/usage/contract.md has an example. The rest of the runner uses the default
names only: runner/platform/dialect.py translates both ways.
"""

import functools
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from runner.model.attached import AttachedProject
from runner.model.entitlements import Entitlement
from runner.model.platform import (
    Allocation,
    AppInstance,
    Caller,
    CatalogApp,
    Delivery,
    Member,
    Operation,
    Resolution,
)
from runner.settings import SettingsError

Kind = Literal[
    "instance",
    "member",
    "operation",
    "allocation",
    "attachment",
    "event",
    "caller",
    "delivery",
    "resolution",
    "login",
    "token",
    "entitlement",
    "catalog_app",
]
# Calls that the platform's public documents show. All others are assumed; contract/openapi.yaml has the same marks.
STATED: Final = frozenset(
    {
        ("POST", "token"),
        ("POST", "runtime_token"),
        ("GET", "me"),
        ("GET", "project.instance"),
        ("GET", "project.members"),
        ("GET", "project.member_operations"),
        ("POST", "project.member_operations"),
        ("GET", "runtime.instance"),
        ("GET", "runtime.attachments"),
        ("GET", "runtime.attachments/item"),
    }
)
# What a record of each list is; a path that is not here carries no record that is translated.
KIND_OF: Final[dict[str, Kind]] = {
    "instances": "instance",
    "instance": "instance",
    "members": "member",
    "member_operations": "operation",
    "instance_operations": "operation",
    "events": "event",
    "allocations": "allocation",
    "deliveries": "delivery",
    "resolutions": "resolution",
    "issued_secrets": "delivery",
    "attachments": "attachment",
    "me": "caller",
    "entitlements": "entitlement",
    "app": "catalog_app",
    "app_versions": "catalog_app",
    "token": "token",
    "runtime_token": "token",
}
# The names by which the runner knows the fields of each kind.
_OUR_FIELDS: Final[dict[str, frozenset[str]]] = {
    "instance": frozenset(AppInstance.model_fields),
    "member": frozenset(Member.model_fields),
    "operation": frozenset(Operation.model_fields) - {"of_instance"},
    "allocation": frozenset(Allocation.model_fields),
    "attachment": frozenset(AttachedProject.model_fields),
    "event": frozenset({"id", "type", "correlation_id", "data", "created_at"}),
    "caller": frozenset(Caller.model_fields),
    "delivery": frozenset(Delivery.model_fields),
    "resolution": frozenset({"artifact", *Resolution.model_fields}),
    "login": frozenset(
        {"service_account_id", "shared_runtime_id", "key_id", "client_secret", "assertion", "grant_type"}
    ),
    "token": frozenset({"access_token", "expires_in"}),
    "entitlement": frozenset(Entitlement.model_fields),
    "catalog_app": frozenset(CatalogApp.model_fields),
}
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_TEMPLATE: Final = re.compile(r"(/([A-Za-z0-9._~-]+|\{[a-z_]+\}))+")
_HEADER: Final = r"^[A-Za-z][A-Za-z0-9-]{0,63}$"
_POINTER: Final = r"^[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*){0,7}$"
HeaderName = Annotated[str, StringConstraints(pattern=_HEADER)]
Pointer = Annotated[str, StringConstraints(pattern=_POINTER)]
# The runner sets these itself, or they decide who is called.
_RESERVED_HEADERS: Final = {"authorization", "host", "user-agent", "content-type", "content-length", "cookie"}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Paths(_Part):
    """Templates below `base`. A record of a list has the list's path and its id."""

    @field_validator("*", mode="after")
    @classmethod
    def _usable(cls, template: Any, info: Any) -> Any:
        if not isinstance(template, str):
            return template
        if not _TEMPLATE.fullmatch(template):
            raise ValueError("must be a path like /projects/{project_id}/members: words and names in braces")
        if "internal" in template.split("/"):
            raise ValueError("is below /internal, which is not part of a public API")
        needed = set(_PLACEHOLDER.findall(cls.model_fields[info.field_name].default))
        found = _PLACEHOLDER.findall(template)
        if unknown := set(found) - needed:
            raise ValueError(f"has {{{min(unknown)}}}; it may have {', '.join(f'{{{one}}}' for one in sorted(needed))}")
        # Without its project the path is distinguished by a header, and a tenant by the token.
        if missing := needed - set(found) - {"project_id", "org_id"}:
            raise ValueError(f"lacks {{{min(missing)}}}")
        return template


class ProjectPaths(_Paths):
    instances: str = "/projects/{project_id}/app-instances"
    instance: str = "/projects/{project_id}/app-instances/{instance_id}"
    members: str = "/projects/{project_id}/app-instances/{instance_id}/members"
    member_operations: str = "/projects/{project_id}/app-instances/{instance_id}/member-operations"
    instance_operations: str = "/projects/{project_id}/app-instances/{instance_id}/operations"
    events: str = "/projects/{project_id}/app-instances/{instance_id}/events"
    resolutions: str = "/projects/{project_id}/app-instances/{instance_id}/artifact-resolutions"
    issued_secrets: str = "/projects/{project_id}/app-instances/{instance_id}/runtime-secrets"
    allocations: str = "/projects/{project_id}/allocations"
    entitlements: str = "/projects/{project_id}/entitlements"
    deliveries: str = "/projects/{project_id}/access-credentials/{credential_id}/deliveries"


class RuntimePaths(_Paths):
    instances: str = "/orgs/{org_id}/shared-app-runtimes"
    instance: str = "/orgs/{org_id}/shared-app-runtimes/{instance_id}"
    members: str = "/orgs/{org_id}/shared-app-runtimes/{instance_id}/workers"
    member_operations: str = "/orgs/{org_id}/shared-app-runtimes/{instance_id}/worker-operations"
    instance_operations: str = "/orgs/{org_id}/shared-app-runtimes/{instance_id}/operations"
    events: str = "/orgs/{org_id}/shared-app-runtimes/{instance_id}/events"
    resolutions: str = "/orgs/{org_id}/shared-app-runtimes/{instance_id}/artifact-resolutions"
    issued_secrets: str = "/orgs/{org_id}/shared-app-runtimes/{instance_id}/runtime-secrets"
    attachments: str = "/orgs/{org_id}/shared-app-runtimes/{instance_id}/attachments"
    allocations: str = "/orgs/{org_id}/shared-app-runtimes/{instance_id}/allocations"
    entitlements: str = "/orgs/{org_id}/shared-app-runtimes/{instance_id}/entitlements"
    deliveries: str = "/orgs/{org_id}/shared-app-runtimes/{instance_id}/access-credentials/{credential_id}/deliveries"


class Paths(_Paths):
    token: str = "/auth/service-account/token"  # noqa: S105 - a path
    runtime_token: str = "/auth/shared-runtime-operator/token"  # noqa: S105
    me: str = "/me"
    app: str = "/apps/{app_slug}"
    app_versions: str = "/apps/{app_slug}/versions"
    project: ProjectPaths = ProjectPaths()
    runtime: RuntimePaths = RuntimePaths()


class Headers(_Part):
    request_id: HeaderName = "X-Request-Id"
    correlation_id: HeaderName = "X-Correlation-Id"
    idempotency_key: HeaderName = "Idempotency-Key"
    if_match: HeaderName = "If-Match"
    etag: HeaderName = "ETag"
    project: HeaderName = "X-Project-ID"
    traceparent: HeaderName = "traceparent"
    retry_after: HeaderName = "Retry-After"
    date: HeaderName = "Date"

    @model_validator(mode="after")
    def _distinct(self) -> "Headers":
        names = [str(name).lower() for name in dict(self).values()]
        if clash := {name for name in names if names.count(name) > 1 or name in _RESERVED_HEADERS}:
            raise ValueError(f"{min(clash)} is used twice, or set by the runner itself")
        return self


class Query(_Part):
    limit: Pointer = "limit"
    cursor: Pointer = "cursor"
    app_slug: Pointer = "app_slug"
    status: Pointer = "status"


class Page(_Part):
    """Where a page of a list has them; a dot goes one level down."""

    items: Pointer = "items"
    next_cursor: Pointer = "next_cursor"


class Refusal(_Part):
    """Where the body of an error has them; a dot goes one level down."""

    code: Pointer = Field(default="code")
    message: Pointer = "message"
    correlation_id: Pointer = "correlation_id"
    details: Pointer = "details"


class Login(_Part):
    """How a token is requested: with the client secret, or with an assertion signed by GPUAAS_PRIVATE_KEY_FILE."""

    kind: Literal["client_secret", "signed_assertion"] = "client_secret"
    grant_type: str = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class Contract(_Part):
    """The names of one platform. `fields` has, by kind of record, our name and the platform's; a dot goes one level
    down in either."""

    base: Annotated[str, StringConstraints(pattern=r"^(/[A-Za-z0-9._~-]+){0,4}$")] = "/api/v1"
    paths: Paths = Paths()
    headers: Headers = Headers()
    query: Query = Query()
    page: Page = Page()
    error: Refusal = Refusal()
    login: Login = Login()
    fields: dict[Kind, dict[str, str]] = Field(default_factory=dict)
    # False: records have no version, and If-Match is not sent.
    etags: bool = True
    # False: a deploy makes no operations, so the adapter requests what the deploy named.
    seeds_operations: bool = True

    @field_validator("fields")
    @classmethod
    def _known_fields(cls, fields: dict[Kind, dict[str, str]]) -> dict[Kind, dict[str, str]]:
        for kind, names in fields.items():
            for ours, theirs in names.items():
                if not re.fullmatch(_POINTER, ours) or not re.fullmatch(_POINTER, theirs):
                    raise ValueError(f"{kind}.{ours}: both names must be words, with dots between levels")
                if ours.partition(".")[0] not in _OUR_FIELDS[kind]:
                    raise ValueError(f"{kind}.{ours}: a {kind} has {', '.join(sorted(_OUR_FIELDS[kind]))}")
            if len(set(names.values())) < len(names):
                raise ValueError(f"{kind}: two of our fields have one name of the platform's")
        return fields


DEFAULT: Final = Contract()


@functools.cache
def load(path: Path | None) -> Contract:
    """The contract of a mapping file, or the default one. SettingsError names every wrong entry of the file."""
    if path is None:
        return DEFAULT
    try:
        return Contract.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise SettingsError([f"GPUAAS_CONTRACT: cannot read {path}: {error.strerror}"]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"GPUAAS_CONTRACT: {path} is not TOML: {error}"]) from None
    except ValidationError as error:
        raise SettingsError([f"GPUAAS_CONTRACT: {path}: {_problem(one)}" for one in error.errors()]) from None


def _problem(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown entry {where!r}: remove it, or see `gpuaas-slurm contract` for the names that can be changed"
    return f"{where}: {error['msg'].removeprefix('Value error, ')}"
