"""Every module documents its arguments as it checks them, and all that it returns."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.module_utils.slurm.projects import Projects
from ansible.module_utils.slurm.restore import Restore

NAMES = sorted(path.stem for path in (Path(__file__).resolve().parents[2] / "plugins" / "modules").glob("*.py"))
CHECKED = ("type", "elements", "required", "default", "choices")


@pytest.fixture(params=NAMES)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"plugins.modules.{request.param}")


class Asked(Exception):
    pass


def arguments(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The argument_spec that the module gives to Ansible."""

    def ansible_module(argument_spec: dict[str, Any], **_options: Any) -> None:
        raise Asked(argument_spec)

    monkeypatch.setattr(module, "AnsibleModule", ansible_module)
    with pytest.raises(Asked) as asked:
        module.main()
    spec: dict[str, Any] = asked.value.args[0]
    return spec


def shape(options: dict[str, Any], deeper: str) -> dict[str, Any]:
    """Names, types, defaults and choices, with those of nested options."""
    return {
        name: {key: option[key] for key in CHECKED if option.get(key) not in (None, False)}
        | ({"options": shape(option[deeper], deeper)} if deeper in option else {})
        for name, option in options.items()
    }


def test_arguments_are_documented_as_they_are_checked(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    documented = yaml.safe_load(module.DOCUMENTATION)
    assert documented["module"] == module.__name__.rpartition(".")[2]
    found, checked = shape(documented["options"], "suboptions"), shape(arguments(module, monkeypatch), "options")
    elsewhere = [name for name, one in documented["options"].items() if "as in converge_host" in one["description"]]
    for name in ("claim", *elsewhere):  # the action plugin gives the claim, not a task
        checked.get(name, {}).pop("options", None)
    assert found == checked


def test_every_returned_value_has_a_type_a_condition_and_a_description(module: ModuleType) -> None:
    returned = yaml.safe_load(module.RETURN)
    assert returned
    for name, value in returned.items():
        assert set(value) == {"type", "returned", "description"} and all(value.values()), name


class Returned:
    """The names of the values that a module gives to exit_json, read from its source."""

    def __init__(self, *sources: Any) -> None:
        trees = [ast.parse(inspect.getsource(source)) for source in sources]
        self.functions = {
            node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }

    def names(self) -> set[str]:
        main = self.functions["main"]
        calls = [node for node in ast.walk(main) if isinstance(node, ast.Call)]
        ends = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "exit_json"]
        assert ends, "no exit_json in main"
        return {name for call in ends for option in call.keywords for name in self._of_option(option, main)}

    def _of_option(self, option: ast.keyword, scope: ast.FunctionDef) -> Iterator[str]:
        if option.arg:
            yield option.arg
        else:
            yield from self._keys(option.value, scope)

    def _keys(self, value: ast.expr | None, scope: ast.FunctionDef) -> Iterator[str]:
        """String keys of the dict that an expression gives."""
        if isinstance(value, ast.Dict):
            for key, inner in zip(value.keys, value.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value)
                elif key is None:
                    yield from self._keys(inner, scope)
        elif isinstance(value, ast.BinOp):
            yield from [*self._keys(value.left, scope), *self._keys(value.right, scope)]
        elif isinstance(value, ast.IfExp):
            yield from [*self._keys(value.body, scope), *self._keys(value.orelse, scope)]
        elif isinstance(value, ast.Tuple):
            yield from (name for inner in value.elts for name in self._keys(inner, scope))
        elif isinstance(value, ast.Name):
            yield from self._keys_of_variable(value.id, scope)
        elif isinstance(value, ast.Call):
            for node in ast.walk(value.func):  # also a table of functions: {"plan": plan}[mode](...)
                called = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
                if called in self.functions:
                    yield from self._keys_of_function(self.functions[called])

    def _keys_of_variable(self, name: str, scope: ast.FunctionDef) -> Iterator[str]:
        for node in ast.walk(scope):
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in (inner for one in targets for inner in (one.elts if isinstance(one, ast.Tuple) else [one])):
                if isinstance(target, ast.Name) and target.id == name:
                    yield from self._keys(node.value, scope)
                if isinstance(target, ast.Subscript) and getattr(target.value, "id", None) == name:
                    yield str(getattr(target.slice, "value", ""))

    def _keys_of_function(self, function: ast.FunctionDef) -> Iterator[str]:
        for node in ast.walk(function):
            if isinstance(node, ast.Return):
                yield from self._keys(node.value, function)


def test_documented_values_are_those_that_the_module_returns(module: ModuleType) -> None:
    classes: dict[str, list[type]] = {"slurm_restore": [Restore], "slurm_projects": [Projects]}
    results = classes.get(module.__name__.rpartition(".")[2], [])
    returned = Returned(module, *results).names()
    assert returned - {"changed"} == set(yaml.safe_load(module.RETURN))
