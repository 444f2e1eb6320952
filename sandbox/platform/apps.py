"""App manifests: everything that the platform knows about an app is in this data."""

import json
from typing import Any

from jsonschema.exceptions import SchemaError

from sandbox.platform.contract import compile_schema, problems_of
from sandbox.platform.errors import ApiError, validation_error
from sandbox.platform.store import Doc, Row, Tx

KEY = {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,62}$"}
INPUT_PATH = {"type": "string", "pattern": r"^(placement_intent|config)(\.[A-Za-z0-9_]+)+$"}
VERBS = {"type": "array", "items": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,62}$"}}
REQUEST = {
    "type": "object",
    "required": ["operation", "component_key"],
    "properties": {"operation": KEY, "component_key": KEY},
    "additionalProperties": False,
}
# What a deploy takes and creates.
RECIPE: dict[str, Any] = {
    "first_member": {
        "type": "object",
        "required": ["component_key", "allocation_from"],
        "properties": {"component_key": KEY, "allocation_from": INPUT_PATH},
        "additionalProperties": False,
    },
    "seed_operations": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["operation", "component_key", "allocations_from"],
            "properties": {"operation": KEY, "component_key": KEY, "allocations_from": INPUT_PATH},
            "additionalProperties": False,
        },
    },
    "deploy_input": {"type": "object"},
}
# The same for a runtime that projects of a tenant share; and what a project may request of it by itself.
SHARED = {
    **RECIPE,
    "attachment_policy": {"type": "object"},
    "contribution": REQUEST,
    "withdrawal": REQUEST,
}
FIELDS: dict[str, Any] = {
    "app_slug": {"type": "string", "pattern": "^[a-z][a-z0-9-]{0,62}$"},
    "version": {"type": "string", "minLength": 1, "maxLength": 64},
    "display_name": {"type": "string"},
    "runtime_backend": {"type": "string"},
    "operating_mode": {"enum": ["tenant_dedicated", "platform_managed"]},
    "control_plane_scope": {"enum": ["project", "tenant", "platform"]},
    **RECIPE,
    "instance_operations": VERBS,
    "member_operations": {"type": "object", "propertyNames": KEY, "additionalProperties": VERBS},
    "action_keys": {"type": "object", "additionalProperties": {"type": "string", "minLength": 1}},
}
OPTIONAL = {
    "operator_notes": VERBS,
    "shared_runtime": {"type": "object", "properties": SHARED, "required": list(SHARED), "additionalProperties": False},
}
MANIFEST = compile_schema(
    {"type": "object", "properties": FIELDS | OPTIONAL, "required": list(FIELDS), "additionalProperties": False}
)
CATALOG_FIELDS = (
    "app_slug",
    "version",
    "display_name",
    "deploy_input",
    "instance_operations",
    "member_operations",
)
RUNTIME_INPUTS = ("deploy_input", "attachment_policy")
# Manifests belong to the platform, not to a project.
NO_PROJECT = ""


def register(tx: Tx, manifest: Doc) -> Row:
    """Add a manifest or its next version; the same manifest again changes nothing."""
    problems = problems_of(MANIFEST, manifest, "manifest")
    if problems:
        raise validation_error("the manifest is not well formed", problems=problems)
    shared = manifest.get("shared_runtime") or {}
    schemas = {
        "deploy_input": manifest["deploy_input"],
        **{f"shared_runtime.{name}": shared[name] for name in RUNTIME_INPUTS if name in shared},
    }
    for name, schema in schemas.items():
        try:
            compile_schema({}).check_schema(schema)
        except SchemaError:
            raise validation_error(f"the manifest's {name} is not a JSON Schema") from None
    registered = find(tx, manifest["app_slug"])
    if registered is not None:
        return tx.save(registered, {"shared_runtime": None, **manifest})
    doc = {"shared_runtime": None, **manifest, "id": manifest["app_slug"], "project_id": NO_PROJECT}
    return tx.insert("app", doc, app_slug=manifest["app_slug"])


def find(tx: Tx, app_slug: str) -> Row | None:
    return tx.find("app", app_slug, project=NO_PROJECT)


def get(tx: Tx, app_slug: str) -> Row:
    return tx.get("app", app_slug, project=NO_PROJECT)


def in_catalog(manifest: Doc, etag: str) -> Doc:
    shared = manifest.get("shared_runtime")
    inputs = {name: shared[name] for name in RUNTIME_INPUTS} if shared else None
    return {name: manifest[name] for name in CATALOG_FIELDS} | {"shared_runtime": inputs, "etag": etag}


def shared_runtime(manifest: Doc) -> Doc:
    """What the app declares about shared runtimes."""
    found: Doc | None = manifest.get("shared_runtime")
    if not found:
        raise validation_error("the app has no shared runtimes; its manifest declares none")
    return found


def _all(tx: Tx) -> list[Doc]:
    return [json.loads(row[0]) for row in tx.sql.execute("SELECT doc FROM objects WHERE kind='app' ORDER BY id")]


def slugs(tx: Tx) -> list[str]:
    return [app["app_slug"] for app in _all(tx)]


def keys_for(tx: Tx, operation_id: str, app_slug: str | None) -> set[str]:
    """The action keys that permit a call: the app's own, or those of all apps if the call names no app."""
    return {
        app["action_keys"][operation_id]
        for app in _all(tx)
        if operation_id in app["action_keys"] and app_slug in (None, app["app_slug"])
    }


def slugs_open_to(tx: Tx, operation_id: str, held: frozenset[str]) -> list[str]:
    return [app["app_slug"] for app in _all(tx) if app["action_keys"].get(operation_id) in held]


def check_version(manifest: Doc, version: str) -> None:
    if version != manifest["version"]:
        raise ApiError(404, "app_version_not_found", "the catalog has another version", available=[manifest["version"]])


def check_input(schema: Doc, given: Doc, where: str = "input") -> None:
    """Refuse what does not match a schema of the app's manifest."""
    problems = problems_of(compile_schema(schema), given, where)
    if problems:
        raise validation_error("the app does not accept this input", problems=problems)


def pick(given: Doc, path: str) -> Any:
    """The value in a deploy's input at a dotted path of the manifest; None if there is none."""
    value: Any = given
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
