"""gpuaas-slurm contract: which calls and fields of the platform's API are stated, and which we assume."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from runner.act.bundle import bundle_dir
from runner.cli import view
from runner.cli.options import Form, Json, Output, chosen_form
from runner.cli.tables import Columns, Row, Section
from runner.model.gaps import Basis
from runner.platform.contract import DEFAULT, Contract, load

COLUMNS = Columns(("operation", "basis"), ("call", "assumed"))
CHANGED = Columns(("name", "usual"), ("here",))
Doc = dict[str, Any]


def contract(
    mapping: Annotated[
        Path | None, typer.Option(envvar="GPUAAS_CONTRACT", help="The mapping file; default: GPUAAS_CONTRACT.")
    ] = None,
    as_json: Json = False,
    output: Output = Form.TABLE,
) -> None:
    """The platform's API as the adapter uses it: what its documents state and what we assume, by call and field.

    With a mapping file it is checked, and the names that it changes are shown. Nothing is called.
    """
    form = chosen_form(output, as_json)
    used = load(mapping)
    document = yaml.safe_load((bundle_dir() / "contract" / "openapi.yaml").read_text())
    calls = list(described(document))
    names = [{"name": name, "usual": usual, "here": here} for name, usual, here in changed(used)]
    if form is Form.JSON:
        view.print_json({"calls": calls, "names": dict(leaves(DEFAULT.model_dump())), "changed": names})
        return
    rows: list[Row] = [
        {**{name: call[name] for name in ("operation", "basis", "call")}, "assumed": _listed(call["fields"])}
        for call in calls
    ]
    view.show([Section(COLUMNS, rows, "the contract has no call")], wide=form is Form.WIDE)
    stated = sum(call["basis"] == Basis.STATED for call in calls)
    view.out.print(f"{stated} of {len(calls)} calls are stated, the others assumed")
    if mapping:
        view.show([Section(CHANGED, names, "the mapping file changes no name")], wide=form is Form.WIDE)


def described(document: Doc) -> Iterator[Doc]:
    """Each call with the basis of itself and of its parameters and fields."""
    for path, item in document["paths"].items():
        for method, call in item.items():
            if method == "parameters":
                continue
            fields = [*_parameters(document, [*item.get("parameters", []), *call.get("parameters", [])])]
            body = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            fields += _fields(document, body, "request") if body else []
            for node in call["responses"].values():
                answer = _resolved(document, node)
                for header, shown in answer.get("headers", {}).items():
                    fields.append({"where": "answer", "field": header, "basis": _basis(_resolved(document, shown))})
                schema = answer.get("content", {}).get("application/json", {}).get("schema")
                fields += _fields(document, schema, "answer") if schema else []
            once = list({(one["where"], one["field"]): one for one in fields}.values())
            row = {"operation": call["operationId"], "call": f"{method.upper()} {path}", "fields": once}
            yield {**row, "basis": call["x-gpuaas-source"]}


def changed(used: Contract) -> Iterator[tuple[str, str | None, str]]:
    """Names that differ from the default contract: which, the usual one, and the one here."""
    usual = dict(leaves(DEFAULT.model_dump()))
    for name, here in leaves(used.model_dump()):
        if usual.get(name) != here:
            yield name, usual.get(name), here


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every name of a contract, by its place."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from leaves(below, f"{name}.{key}" if name else key)
    else:
        yield name, str(value)


def _parameters(document: Doc, nodes: list[Doc]) -> Iterator[Doc]:
    for node in nodes:
        found = _resolved(document, node)
        if found["in"] != "path":
            yield {"where": found["in"], "field": found["name"], "basis": _basis(found)}


def _fields(document: Doc, schema: Doc, where: str) -> list[Doc]:
    """The fields of a record, or of the records of a page, one level deep."""
    found = _properties(document, schema, assumed=False)
    if set(found) >= {"items", "next_cursor"}:
        page, items = found, _resolved(document, schema)["properties"]["items"]["items"]
        found = _properties(document, items, assumed=False)
        found |= {name: page[name] for name in ("items", "next_cursor")}
    return [{"where": where, "field": name, "basis": basis} for name, basis in found.items()]


def _properties(document: Doc, schema: Doc, *, assumed: bool) -> dict[str, Basis]:
    schema = _resolved(document, schema)
    assumed = assumed or schema.get("x-assumed", False)
    found: dict[str, Basis] = {}
    for part in schema.get("allOf", []):
        found |= _properties(document, part, assumed=assumed)
    for name, field in schema.get("properties", {}).items():
        found[name] = Basis.ASSUMED if assumed else _basis(_resolved(document, field))
    return found


def _basis(node: Doc) -> Basis:
    return Basis.ASSUMED if node.get("x-assumed") else Basis.STATED


def _resolved(document: Doc, node: Doc) -> Doc:
    while "$ref" in node:
        found: Any = document
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        node = found
    return node


def _listed(fields: list[Doc]) -> str | None:
    assumed = [f"{one['where']} {one['field']}" for one in fields if one["basis"] == Basis.ASSUMED]
    return f"assumed: {', '.join(assumed)}" if assumed else None
