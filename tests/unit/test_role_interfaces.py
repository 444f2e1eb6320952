"""A role reads its own options and nothing that only a playbook or the runner sets: it can be used alone."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import pytest
import yaml

ROLES = Path(__file__).resolve().parents[2] / "roles"
NAMES = sorted(path.name for path in ROLES.iterdir())
# Ansible's own.
MAGIC = {"ansible_host", "ansible_user", "hostvars", "inventory_hostname", "lookup", "now", "omit"}
# Of the platform's inventory. An option may have such a value as its default; without it the role works too.
INVENTORY = re.compile(r"(gpuaas|slurm|slurmdbd)_\w+")
# The answer of package policy is not a default of a role: an inventory could override that.
POLICY = {"gpuaas_app_instance_id", "slurm_package_source"}
EXPRESSIONS = ("when", "failed_when", "changed_when")


class AnyName(dict[str, Any]):
    """Every filter and test exists, whichever plugin has it."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> Any:
        return lambda value, *_arguments: value

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


def documents(role: str, folder: str) -> Iterator[Any]:
    for path in sorted((ROLES / role / folder).glob("*")):
        yield yaml.safe_load(path.read_text()) if path.suffix == ".yml" else path.read_text()


def templates(document: Any, key: str = "") -> Iterator[str]:
    if isinstance(document, dict):
        for name, value in document.items():
            yield from templates(value, str(name))
    elif isinstance(document, list):
        for value in document:
            yield from templates(value, key)
    elif isinstance(document, str):
        yield f"{{{{ {document} }}}}" if key in EXPRESSIONS else document


def reads(text: str) -> set[str]:
    environment = jinja2.Environment()
    environment.filters = environment.tests = AnyName()
    # Tests of collections have dots in their names, which Jinja's parser does not know.
    return jinja2.meta.find_undeclared_variables(environment.parse(re.sub(r"ansible\.builtin\.", "", text)))


def sets(document: Any) -> Iterator[str]:
    """What tasks register, set as facts or give to themselves."""
    if isinstance(document, list):
        for one in document:
            yield from sets(one)
    elif isinstance(document, dict):
        for key, value in document.items():
            if key == "register":
                yield value
            elif key in ("vars", "ansible.builtin.set_fact"):
                yield from value
            yield from sets(value)


def specification(role: str) -> dict[str, Any]:
    entry_points = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    return {name: option for one in entry_points.values() for name, option in one["options"].items()}


def provides(role: str) -> set[str]:
    """What a role has of its own, and what the roles that it depends on have."""
    depends = yaml.safe_load((ROLES / role / "meta" / "main.yml").read_text())["dependencies"]
    own = {*specification(role), *(name for document in documents(role, "vars") for name in document)}
    own |= {name for document in documents(role, "tasks") for name in sets(document)}
    return own.union(*(provides(one["role"]) for one in depends))


@pytest.mark.parametrize("role", NAMES)
def test_a_role_reads_only_its_options_and_those_of_its_dependencies(role: str) -> None:
    texts = [
        text for folder in ("tasks", "vars", "templates") for one in documents(role, folder) for text in templates(one)
    ]
    read = {name for text in texts for name in reads(text)}
    assert read, "found nothing to check"
    assert read - provides(role) - MAGIC == set()


@pytest.mark.parametrize("role", NAMES)
def test_a_default_from_the_inventory_has_a_default_of_its_own(role: str) -> None:
    options = specification(role)
    for name, value in ((name, value) for one in documents(role, "defaults") for name, value in one.items()):
        assert name in options, f"{name} has a default and is not in argument_specs"
        text = "".join(templates(value))
        for source in reads(text) - provides(role) - MAGIC:
            assert INVENTORY.fullmatch(source), f"{name} reads {source}"
            assert re.search(rf"\b{source} \| default\(", text), f"{name} fails where there is no {source}"


@pytest.mark.parametrize("role", NAMES)
def test_every_option_is_of_the_role_by_its_name_and_described_in_its_readme(role: str) -> None:
    readme = (ROLES / role / "README.md").read_text()
    for name, option in specification(role).items():
        assert name.startswith(f"{role}_") or name in POLICY
        assert option["type"] and option["description"]
        assert f"`{name}`" in readme, f"{name} is not in the README"


@pytest.mark.parametrize("role", NAMES)
def test_the_specification_has_the_defaults_of_the_role(role: str) -> None:
    defaults = {name: value for document in documents(role, "defaults") for name, value in document.items()}
    for name, option in specification(role).items():
        if "default" in option:
            assert name in defaults, f"{name} has a default in argument_specs only"
            assert option["default"] == defaults[name], f"{name} has another default in argument_specs"
        elif name in defaults:
            # A default from the inventory is described in prose.
            assert "{{" in str(defaults[name]) and "efault is" in option["description"], f"{name} lacks its default"
        else:
            assert option.get("required") or name in POLICY, f"{name} has neither a default nor is it required"


@pytest.mark.parametrize("role", NAMES)
def test_every_entry_point_has_a_specification(role: str) -> None:
    entry_points = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    assert set(entry_points) == {path.stem for path in (ROLES / role / "tasks").glob("*.yml")}


@pytest.mark.parametrize("role", NAMES)
def test_a_fact_that_the_specification_names_is_one_that_the_role_sets(role: str) -> None:
    entry_points = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    texts = [text for one in entry_points.values() for text in one["description"]]
    facts = {name for text in texts for name in re.findall(r"(?:Registers|Sets the fact) C\((\w+)\)", text)}
    assert facts <= {name for document in documents(role, "tasks") for name in sets(document)}
