"""app/action-keys.yaml lists the calls that the code can make, for each principal, and no others."""

import ast
import contextlib
import inspect
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from runner.model.attached import AttachedProject
from runner.model.errors import RequestError
from runner.model.platform import AppInstance, Member, Operation
from runner.platform.client import Client
from runner.settings import Settings
from tests.unit.worlds import PROJECT, add, controller, instance

ROOT = Path(__file__).resolve().parents[2]
NOT_CALLS = {"clone", "now", "close"}
METHODS = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if name[0] != "_"} - NOT_CALLS
# Who calls: the runner with its service account; a person's commands; commands that read as either.
RUNNER = {
    "loop/run",
    "loop/tick",
    "loop/process_lock",
    "observe/world",
    "observe/entitlements",
    "observe/missing",
    "observe/other_instances",
    "observe/left_over",
    "observe/walk",
    "report/claims",
    "report/reporter",
    "report/writes",
    "report/ownership",
    "act/package_policy",
    "act/play_secrets",
    "act/runtime_secrets",
    "cli/trust",
    "loop/manual",
    "inventory_plugins/gpuaas",
}
PERSON = {"cli/requests", "smoke/asks"}
# Commands of a tenant's administrator, and of a project on a runtime that it is attached to.
TENANT = {"cli/commands", "cli/shared", "cli/shared_records", "cli/contributions"}
# The record of work by hand: with a person's token, in an emergency with the service account's.
CATALOG = {"cli/catalog", "smoke/pilot"}
EITHER = {"cli/main", "cli/member_operations", "cli/follow", "cli/explain", "observe/find", "report/hand_record"}
# A smoke run has a client of each.
EITHER |= {"smoke/command", "smoke/looks", "smoke/run", "smoke/walk"}
SAMPLES: dict[Any, Any] = {
    UUID: UUID(int=5),
    AppInstance: instance(),
    Member: controller(),
    Operation: add(2),
    dict[str, Any]: {},
    str: "x",
    AttachedProject: AttachedProject(id=UUID(int=8), project_id=PROJECT, status="active"),
}


class Stop(Exception):
    """The call was noted and is not made."""


@pytest.fixture(scope="module")
def templates() -> dict[tuple[str, str], str]:
    contract = yaml.safe_load((ROOT / "contract" / "openapi.yaml").read_text())
    return {
        (method.upper(), re.sub(r"\{[a-z_]+\}", "[^/]+", path)): operation["operationId"]
        for path, item in contract["paths"].items()
        for method, operation in item.items()
        if isinstance(operation, dict) and "operationId" in operation
    }


PROJECT_SCOPE: dict[str, Any] = {"project_id": PROJECT}
RUNTIME_SCOPE: dict[str, Any] = {"org_id": UUID(int=6), "shared_runtime_id": UUID(int=7)}
# Methods for which a project has no call.
ONLY_OF_A_RUNTIME = {"attachments", "create_attachment", "patch_attachment"}
# And one for which a shared runtime has none.
ONLY_OF_A_PROJECT = {"seed_operation"}


def calls_of(name: str, templates: dict[tuple[str, str], str], scope: dict[str, Any] = PROJECT_SCOPE) -> set[str]:
    """operationIds of everything that one method of the client asks the platform for."""
    made: set[str] = set()

    def note(method: str, path: str, **_: Any) -> None:
        short = path.removeprefix("/api/v1")
        made.update(one for (verb, shape), one in templates.items() if verb == method and re.fullmatch(shape, short))
        raise Stop

    method = inspect.signature(getattr(Client, name), eval_str=True)
    for of_instance in (True, False):
        given: dict[str, Any] = {}
        for parameter in list(method.parameters.values())[1:]:
            if parameter.name == "of_instance":
                given["of_instance"] = of_instance
            elif parameter.kind is not inspect.Parameter.VAR_KEYWORD and parameter.default is inspect.Parameter.empty:
                given[parameter.name] = SAMPLES[parameter.annotation]
        given = {
            key: value.model_copy(update={"of_instance": of_instance}) if isinstance(value, Operation) else value
            for key, value in given.items()
        }
        own: Any = {"base_url": "http://127.0.0.1:1", **scope}
        with Client(Settings(**own)) as client:
            client._transport.call = note  # type: ignore[method-assign, assignment]
            with contextlib.suppress(Stop, RequestError):
                getattr(client, name)(**given)
    return made


def used_by(module: Path) -> set[str]:
    """Methods of a client that the module names. A client is called `client`, `_client` or `_impatient` everywhere; a
    smoke run calls its own by whose they are."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            if name in ("client", "_client", "_impatient", "operator", "runner"):
                found.add(node.attr)
    return found


def modules() -> dict[str, set[str]]:
    files = [*(ROOT / "runner").rglob("*.py"), ROOT / "inventory_plugins" / "gpuaas.py"]
    return {"/".join(file.parts[-2:]).removesuffix(".py"): used for file in files if (used := used_by(file))}


def listed(principal: str) -> set[str]:
    entries = yaml.safe_load((ROOT / "app" / "action-keys.yaml").read_text())[principal]
    calls = [call for entry in entries for call in entry["calls"]]
    assert len(calls) == len(set(calls)), "a call is listed once"
    return set(calls)


def test_every_module_that_calls_the_platform_is_known_here() -> None:
    assert set(modules()) == RUNNER | PERSON | CATALOG | TENANT | EITHER


def test_every_method_of_the_client_is_used_and_is_one_call_of_the_contract(
    templates: dict[tuple[str, str], str],
) -> None:
    assert set.union(*modules().values()) == METHODS
    of_project = METHODS - ONLY_OF_A_RUNTIME
    assert {name: len(calls_of(name, templates)) for name in sorted(of_project)} == {
        name: 2 if name in ("operation_again", "create_operation", "patch_operation") else 1
        for name in sorted(of_project)
    }


def test_every_method_of_the_client_is_one_call_below_a_shared_runtime_too(
    templates: dict[tuple[str, str], str],
) -> None:
    of_runtime = METHODS - ONLY_OF_A_PROJECT
    assert {name: len(calls_of(name, templates, RUNTIME_SCOPE)) for name in sorted(of_runtime)} == {
        name: 2 if name in ("operation_again", "create_operation", "patch_operation") else 1
        for name in sorted(of_runtime)
    }
    both = {name: calls_of(name, templates) & calls_of(name, templates, RUNTIME_SCOPE) for name in METHODS}
    shared = set.union(*both.values())
    of_neither = {"getMe", "getApp", "publishAppVersion"}
    assert shared == of_neither, (
        "no call of a project is made for a runtime; the caller and the catalog belong to neither"
    )


@pytest.mark.parametrize(
    ("principal", "who", "scope"),
    [
        ("service_account", RUNNER | EITHER, PROJECT_SCOPE),
        ("operator", PERSON | CATALOG | EITHER, PROJECT_SCOPE),
        ("shared_runtime_operator", RUNNER | EITHER, RUNTIME_SCOPE),
        ("tenant_administrator", PERSON | TENANT | EITHER, RUNTIME_SCOPE),
    ],
    ids=["service_account", "operator", "shared_runtime_operator", "tenant_administrator"],
)
def test_the_listed_calls_are_those_that_the_code_can_make(
    principal: str, who: set[str], scope: dict[str, Any], templates: dict[tuple[str, str], str]
) -> None:
    used = {name for module, names in modules().items() if module in who for name in names}
    can = {call for name in used for call in calls_of(name, templates, scope)}
    assert can - listed(principal) == set(), "called and not listed"
    assert listed(principal) - can == set(), "listed and never called"
