"""Every module documents its arguments as it checks them, and all that it returns."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from plugins.modules import host_probe

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


def test_the_probe_documents_what_it_returns() -> None:
    beside = {"skew", "slurm_version"}  # added by main
    assert set(yaml.safe_load(host_probe.RETURN)) == {*host_probe.probe(), *beside}
