"""App manifests: everything that the platform knows about an app is in this data."""

import json
import re
from pathlib import Path
from typing import Any

from jsonschema.exceptions import SchemaError

from sandbox.platform.contract import compile_schema, problems_of
from sandbox.platform.errors import ApiError, validation_error
from sandbox.platform.store import Doc, Row, Tx

SCHEMA_FILE = Path(__file__).resolve().parents[2] / "contract" / "manifest.schema.json"
MANIFEST = compile_schema(json.loads(SCHEMA_FILE.read_text()))
CATALOG_FIELDS = (
    "app_slug",
    "version",
    "versions",
    "display_name",
    "deploy_input",
    "instance_operations",
    "member_operations",
)
RUNTIME_INPUTS = ("deploy_input", "attachment_policy")
# Manifests belong to the platform, not to a project.
NO_PROJECT = ""


VERSION = "app_version"


def check(manifest: Doc) -> None:
    """Refuse a manifest that is not well formed."""
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


def register(tx: Tx, manifest: Doc) -> Row:
    """Add an app or a version of it; the same manifest again changes nothing, and another one replaces that version."""
    check(manifest)
    slug, stored = manifest["app_slug"], {"shared_runtime": None, **manifest}
    former = tx.find(VERSION, _version_id(slug, manifest["version"]), parent=slug)
    if former is not None:
        tx.save(former, stored)
    else:
        ids = {"id": _version_id(slug, manifest["version"]), "project_id": NO_PROJECT}
        tx.insert(VERSION, {**stored, **ids}, parent=slug, app_slug=slug)
    all_versions = versions(tx, slug)
    newest = version(tx, slug, all_versions[-1]) | {"id": slug, "versions": all_versions}
    registered = find(tx, slug)
    return tx.insert("app", newest, app_slug=slug) if registered is None else tx.save(registered, _content(newest))


def publish(tx: Tx, manifest: Doc) -> tuple[Row, bool]:
    """Add a version, which is never changed; and whether it is new."""
    check(manifest)
    slug = manifest["app_slug"]
    former = tx.find(VERSION, _version_id(slug, manifest["version"]), parent=slug)
    if former is None:
        return register(tx, manifest), True
    if any(former.doc.get(name) != value for name, value in {"shared_runtime": None, **manifest}.items()):
        raise ApiError(
            409, "app_version_exists", "this version is published with another content", version=manifest["version"]
        )
    return get(tx, slug), False


def _version_id(app_slug: str, name: str) -> str:
    return f"{app_slug}/{name}"


def _content(doc: Doc) -> Doc:
    """Without the times of a stored object, which belong to that object."""
    return {name: value for name, value in doc.items() if name not in ("created_at", "updated_at")}


def versions(tx: Tx, app_slug: str) -> list[str]:
    """All versions, the newest last: 1.10 comes after 1.9."""
    names = [row.doc["version"] for row in tx.rows(VERSION, parent=app_slug)]
    return sorted(names, key=lambda name: [(len(part), part) if part.isdigit() else (0, part) for part in _parts(name)])


def _parts(name: str) -> list[str]:
    return re.split(r"[.+_-]", name)


def version(tx: Tx, app_slug: str, name: str) -> Doc:
    """The manifest of one version."""
    row = tx.find(VERSION, _version_id(app_slug, name), parent=app_slug)
    if row is None:
        get(tx, app_slug)
        raise ApiError(
            404, "app_version_not_found", "the catalog does not have this version", available=versions(tx, app_slug)
        )
    return _content(row.doc)


def of(tx: Tx, owner: Doc) -> Doc:
    """The manifest of the version that an instance or a runtime asks for."""
    return version(tx, owner["app_slug"], owner["app_version"])


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
