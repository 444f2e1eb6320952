"""The tasks at which the end-to-end scenario kills a runner exist under these names in roles and playbooks."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = ROOT / "tests" / "e2e" / "test_killed_anywhere.py"
KILLS = ("step", "kill_at", "runner_at")


def places() -> Iterator[str]:
    """Text arguments of the calls that kill a runner, also those that are named first."""
    for function in ast.walk(ast.parse(SCENARIO.read_text())):
        if not isinstance(function, ast.FunctionDef) or not function.name.startswith("test_"):
            continue
        named = {
            one.targets[0].id: one.value
            for one in ast.walk(function)
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
        }
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in KILLS:
                for given in call.args:
                    value = named.get(given.id) if isinstance(given, ast.Name) else given
                    if isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield value.value


def names(pattern: str) -> set[str]:
    found = (re.findall(r"^\s*- name: (.+)$", path.read_text(), re.M) for path in ROOT.glob(pattern))
    return {name.strip("\"'") for listed in found for name in listed}


def test_every_task_at_which_a_runner_is_killed_exists() -> None:
    listed, missing = set(places()), list[str]()
    for place in listed:
        role, colon, task = place.partition(" : ")
        text = re.sub(r"^PLAY \[(.*)\]$", r"\1", task if colon else place)
        task_names = names(f"roles/{role}/tasks/*.yml") if colon else names("playbooks/**/*.yml")
        if not any(name.startswith(text) for name in task_names):
            missing.append(place)
    assert missing == []
    assert len(listed) > 10, "the calls are found"
