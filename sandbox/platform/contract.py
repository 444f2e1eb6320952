"""Checks requests and answers against the contract file, and finds the operation of a request.

Validators are compiled and references resolved once at the start, so that a check costs far less than its call.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote

import yaml
from jsonschema import Draft202012Validator

from sandbox.platform import clock

METHODS = ("get", "post", "patch", "delete", "put")
FORMATS = Draft202012Validator.FORMAT_CHECKER
# Who may make a call that does not say so.
OF_A_PROJECT = ("project_member", "service_account")


@FORMATS.checks("date-time", raises=ValueError)  # type: ignore[untyped-decorator]
def _is_time(value: object) -> bool:
    """A stricter check than the library's: every time that passes can be read by clock.parse."""
    if isinstance(value, str):
        clock.parse(value)
        return re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", value) is not None
    return True


def compile_schema(schema: Any) -> Draft202012Validator:
    return Draft202012Validator(schema, format_checker=FORMATS)


def problems_of(validator: Draft202012Validator, value: object, where: str) -> list[str]:
    """Problems without the value: a body may hold a secret, and problems are in answers and logs."""
    found = []
    for error in validator.iter_errors(value):
        place = "/".join([where, *(str(part) for part in error.absolute_path)])
        found.append(f"{place}: fails {error.validator} {json.dumps(error.validator_value)[:120]}")
    return found


@dataclass(frozen=True)
class Parameter:
    name: str
    location: str
    required: bool
    kind: str
    validator: Draft202012Validator

    def parse(self, text: str) -> Any:
        if self.kind == "array":
            return text.split(",")
        if self.kind == "integer" and re.fullmatch(r"-?\d{1,18}", text):
            return int(text)
        return text


@dataclass(frozen=True)
class Answerable:
    """One documented answer: its headers, and the validator of its body; without a validator there is no body."""

    validator: Draft202012Validator | None
    headers: dict[str, tuple[bool, Draft202012Validator]]


@dataclass
class Given:
    """A parsed request: parameters by name, the body, and violations of the contract."""

    path: dict[str, str] = field(default_factory=dict)
    query: dict[str, Any] = field(default_factory=dict)
    body: Any = None
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Operation:
    id: str
    method: str
    template: str
    public: bool
    needs_action_key: bool
    action_key: str | None  # None: the one in the app's manifest
    callers: frozenset[str]
    parameters: tuple[Parameter, ...]
    body: Draft202012Validator | None
    body_required: bool
    answers: dict[str, Answerable]

    def read(self, path: dict[str, str], query: str, headers: Mapping[str, str], body: bytes) -> Given:
        given = Given(path=path)
        pairs = parse_qsl(query, keep_blank_values=True)
        declared = {parameter.name for parameter in self.parameters if parameter.location == "query"}
        given.problems += [f"query/{name}: not in the contract" for name, _ in pairs if name not in declared]
        for parameter in self.parameters:
            self._read_parameter(parameter, given, pairs, headers)
        self._read_body(given, headers.get("content-type", ""), body)
        return given

    def _read_parameter(
        self, parameter: Parameter, given: Given, pairs: list[tuple[str, str]], headers: Mapping[str, str]
    ) -> None:
        where = f"{parameter.location}/{parameter.name}"
        if parameter.location == "path":
            texts = [given.path[parameter.name]]
        elif parameter.location == "query":
            texts = [text for name, text in pairs if name == parameter.name]
        else:
            texts = [headers[parameter.name]] if parameter.name in headers else []
        if not texts:
            if parameter.required:
                given.problems.append(f"{where}: missing")
            return
        if len(texts) > 1:
            given.problems.append(f"{where}: given more than once")
            return
        value = parameter.parse(texts[0])
        given.problems += problems_of(parameter.validator, value, where)
        if parameter.location == "query":
            given.query[parameter.name] = value

    def _read_body(self, given: Given, content_type: str, body: bytes) -> None:
        if self.body is None:
            if body:
                given.problems.append("body: this call has none")
            return
        if not body and not self.body_required:
            return
        if content_type.partition(";")[0].strip().lower() != "application/json":
            given.problems.append("header/Content-Type: must be application/json")
            return
        try:
            given.body = json.loads(body, parse_constant=_refuse_constant)
            # A lone surrogate parses as JSON, but cannot be encoded for a file or the database.
            json.dumps(given.body, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            given.problems.append("body: not JSON")
            return
        given.problems += problems_of(self.body, given.body, "body")

    def check_answer(self, status: int, headers: Mapping[str, str], body: object) -> list[str]:
        answer = self.answers.get(str(status)) or self.answers.get(f"{status // 100}XX")
        if answer is None:
            return [f"status {status}: not in the contract"]
        lowered = {name.lower(): value for name, value in headers.items()}
        problems = []
        for name, (required, validator) in answer.headers.items():
            if name.lower() in lowered:
                problems += problems_of(validator, lowered[name.lower()], f"header/{name}")
            elif required:
                problems.append(f"header/{name}: missing")
        if answer.validator is not None:
            problems += problems_of(answer.validator, body, "body")
        elif body is not None:
            problems.append("body: this answer has none")
        return problems


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class Contract:
    """All operations of an OpenAPI file, found by method and path."""

    def __init__(self, path: Path) -> None:
        self._document = yaml.safe_load(path.read_text())
        self._routes: list[tuple[re.Pattern[str], dict[str, Operation]]] = []
        for template, item in self._document["paths"].items():
            shared = item.get("parameters", [])
            operations = {
                method.upper(): self._operation(method, template, item[method], shared)
                for method in METHODS
                if method in item
            }
            pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template)
            self._routes.append((re.compile(pattern), operations))

    @property
    def operations(self) -> list[Operation]:
        return [operation for _, found in self._routes for operation in found.values()]

    def match(self, method: str, path: str) -> tuple[Operation | None, dict[str, str], list[str]]:
        """The operation, its path parameters, and the methods of this path (empty if there is no such path)."""
        for pattern, operations in self._routes:
            if found := pattern.fullmatch(path):
                params = {name: unquote(text) for name, text in found.groupdict().items()}
                return operations.get(method), params, sorted(operations)
        return None, {}, []

    def _resolve(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self._resolve(part) for part in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            target = self._document
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            return self._resolve(target)
        return {name: self._resolve(part) for name, part in node.items()}

    def _operation(self, method: str, template: str, spec: Any, shared: list[Any]) -> Operation:
        parameters = [self._resolve(node) for node in [*shared, *spec.get("parameters", [])]]
        body = spec.get("requestBody")
        return Operation(
            id=spec["operationId"],
            method=method.upper(),
            template=template,
            public=spec.get("security") == [],
            needs_action_key=spec.get("x-needs-action-key", True),
            action_key=spec.get("x-gpuaas-action-key"),
            callers=frozenset(spec.get("x-gpuaas-callers", OF_A_PROJECT)),
            parameters=tuple(
                Parameter(
                    name=node["name"].lower() if node["in"] == "header" else node["name"],
                    location=node["in"],
                    required=node.get("required", False),
                    kind=node["schema"].get("type", "string"),
                    validator=compile_schema(node["schema"]),
                )
                for node in parameters
            ),
            body=compile_schema(self._resolve(body["content"]["application/json"]["schema"])) if body else None,
            body_required=bool(body and body.get("required", False)),
            answers={str(status): self._answer(self._resolve(node)) for status, node in spec["responses"].items()},
        )

    @staticmethod
    def _answer(node: Any) -> Answerable:
        content = node.get("content", {}).get("application/json")
        return Answerable(
            validator=compile_schema(content["schema"]) if content else None,
            headers={
                name: (header.get("required", False), compile_schema(header["schema"]))
                for name, header in node.get("headers", {}).items()
            },
        )
