"""Every module that changes a host takes its claim, and every play that calls one is numbered."""

import ast
import re
import sys
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.host import claim as host_claim

from runner.slurm.decide.claims import CHANGES_ALL, CHANGES_WORKERS, THROUGH_CONTROLLER
from tests.unit.host_claims import MEMBER, OTHER, OURS, ROOT, action

READERS = {"host_probe", "slurm_snapshot"}
MODULES = ROOT / "plugins" / "modules"


def modules() -> list[str]:
    return sorted(path.stem for path in MODULES.glob("*.py"))


@pytest.mark.parametrize("name", modules())
def test_every_module_but_the_readers_is_fenced(name: str) -> None:
    source = (MODULES / f"{name}.py").read_text()
    fenced = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    takes_lock = any(isinstance(call.func, ast.Name) and call.func.id == "host_lock" for call in fenced)
    assert takes_lock is (name not in READERS)
    if takes_lock or name == "host_probe":
        assert "**CLAIM_ARGUMENT" in source and re.search(r"^  claim: \{type: dict", source, re.MULTILINE)


@pytest.mark.parametrize("name", [*sorted(set(modules()) - READERS), "host_probe"])
def test_every_fenced_module_gets_its_claim_from_its_action_plugin(name: str) -> None:
    """By a link to claimed.py, or by a subclass of it."""
    files = [getattr(sys.modules[one.__module__], "__file__", None) for one in action(name)[0].__mro__]
    assert ROOT / "plugins" / "action" / "claimed.py" in [Path(one).resolve() for one in files if one]


def test_the_claim_comes_from_the_inventory_and_the_command_line() -> None:
    plugin = action("claimed")[1]
    claim_of = plugin["claim_of"]
    variables = {
        "gpuaas_app_instance_id": OURS,
        "gpuaas_member_id": MEMBER,
        "gpuaas_fence": 4,
        "gpuaas_first_play": True,
    }
    assert claim_of(variables) == {"instance": OURS, "member": MEMBER, "number": 4, "first": True}
    assert claim_of({"gpuaas_unfenced": "true"}) == {"unfenced": True}
    assert claim_of({"gpuaas_unfenced": "no", "inventory_hostname": "x"}) == {"unfenced": False}
    everything = claim_of(dict.fromkeys(plugin["VARIABLES"], 1))
    assert set(everything) == set(host_claim.CLAIM_ARGUMENT["claim"]["options"])


def test_of_two_machines_with_one_name_the_first_of_the_run_keeps_it(tmp_path: Path) -> None:
    first_in_run = action("host_probe")[1]["first_in_run"]

    def other(machine: str | None, instance: str = OURS) -> str | None:
        variables = {"gpuaas_allocation_id": machine, "gpuaas_app_instance_id": instance}
        found: str | None = first_in_run("gs-2", variables, tmp_path)
        return found

    assert other("a") is None
    assert other("a") is None, "controller and worker on one machine"
    assert other("b") == "a"
    assert other("b", OTHER) is None, "another cluster may have such a node"
    assert other(None) is None, "a role by itself"


# -- every play that calls such a module is numbered ---------------------------------------------------------

# Run by a person through `gpuaas-slurm exec`, which claims every member, or on a host whose instance is gone.
BY_HAND = {"recover", "clean_host", "restore_backup"}
ON_CONTROLLER = {"slurm_nodes", "slurm_partitions", "slurm_projects"}


def called(document: object) -> set[str]:
    """Modules that a playbook's or a role's tasks call, with those of what they include."""
    if isinstance(document, list):
        return set().union(*(called(one) for one in document))
    if not isinstance(document, dict):
        return set()
    found = {key for key in document if (MODULES / f"{key}.py").exists()}
    for key, value in document.items():
        if key.rpartition(".")[2] in ("include_role", "import_role"):
            file = ROOT / "roles" / value["name"] / "tasks" / f"{value.get('tasks_from', 'main')}.yml"
            found |= called(yaml.safe_load(file.read_text()))
        elif key == "roles":
            found |= called([{"include_role": {"name": one}} for one in value])
        elif key.rpartition(".")[2] in ("include_tasks", "import_tasks", "import_playbook"):
            found |= called(yaml.safe_load((ROOT / "playbooks" / value).read_text()))
        elif isinstance(value, list):
            found |= called(value)
    return found


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "playbooks").glob("*.yml")))
def test_every_play_that_calls_a_fenced_module_is_numbered(name: str) -> None:
    modules_called = called(yaml.safe_load((ROOT / "playbooks" / f"{name}.yml").read_text())) - READERS
    if name in BY_HAND:
        return
    assert bool(modules_called) is (name in CHANGES_ALL | CHANGES_WORKERS | THROUGH_CONTROLLER)
    assert name in CHANGES_ALL | THROUGH_CONTROLLER or not modules_called & ON_CONTROLLER, (
        "the controller has no number"
    )
