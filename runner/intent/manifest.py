"""Checks an app's manifest without a platform: against its JSON Schema, and what a schema cannot say. Pure.

It imports jsonschema, which takes time to load: only the commands about the app import it.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

Doc = Mapping[str, Any]


def problems(manifest: Any, schema: Doc, calls: Collection[str]) -> list[str]:
    """What is wrong with a manifest. `calls` are the operationIds of the contract that need a key of the manifest."""
    found = [
        f"{'/'.join(str(part) for part in error.absolute_path) or 'manifest'}: {error.message[:200]}"
        for error in Draft202012Validator(schema).iter_errors(manifest)
    ]
    if found:
        return sorted(found)
    recipes = [
        ("", manifest),
        *([("shared_runtime.", manifest["shared_runtime"])] if "shared_runtime" in manifest else []),
    ]
    return [*(one for where, recipe in recipes for one in _recipe(where, recipe, manifest)), *_keys(manifest, calls)]


def _recipe(where: str, recipe: Doc, manifest: Doc) -> Iterator[str]:
    """What a deploy takes and creates, of an instance or of a shared runtime."""
    for name in ("deploy_input", "attachment_policy"):
        try:
            Draft202012Validator.check_schema(recipe.get(name, {}))
        except SchemaError as error:
            yield f"{where}{name}: not a JSON Schema: {error.message[:200]}"
            return
    first = recipe["first_member"]
    if first["component_key"] not in manifest["member_operations"]:
        yield f"{where}first_member: component {first['component_key']!r} is not in member_operations"
    yield from _input(f"{where}first_member.allocation_from", recipe["deploy_input"], first["allocation_from"], True)
    for number, seed in enumerate(recipe["seed_operations"]):
        yield from _operation(f"{where}seed_operations.{number}", seed, manifest)
        place = f"{where}seed_operations.{number}.allocations_from"
        yield from _input(place, recipe["deploy_input"], seed["allocations_from"], False)
    for name in ("contribution", "withdrawal"):
        if name in recipe:
            yield from _operation(f"{where}{name}", recipe[name], manifest)


def _operation(place: str, request: Doc, manifest: Doc) -> Iterator[str]:
    component, verb = request["component_key"], request["operation"]
    if verb not in manifest["member_operations"].get(component, []):
        yield f"{place}: {verb!r} is not among the member_operations of {component!r}"


def _input(place: str, schema: Any, path: str, required: bool) -> Iterator[str]:
    """Whether a deploy's input can have a value at this path, and must have it where it is required."""
    for name in path.split("."):
        if not isinstance(schema, Mapping):
            return
        properties = schema.get("properties", {})
        if name not in properties and schema.get("additionalProperties") is False:
            yield f"{place}: deploy_input has no {path}"
            return
        if required and name not in schema.get("required", []):
            yield f"{place}: deploy_input does not require {path}"
            return
        schema = properties.get(name)


def _keys(manifest: Doc, calls: Collection[str]) -> Iterator[str]:
    named = manifest["action_keys"]
    for call in sorted(set(calls) - set(named)):
        yield f"action_keys: no key for {call}, so that call cannot be made for this app"
    for call in sorted(set(named) - set(calls)):
        yield f"action_keys: {call} is not a call of the contract that takes its key from a manifest"
