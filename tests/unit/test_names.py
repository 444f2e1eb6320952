"""Modules, functions and classes have plain names: none has a word that the renovation replaced."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST_TEST_NAME = 80
REPLACED = {
    "wish": "desired_config",
    "agreement": "decommission_terms",
    "people": "users",
    "strangers": "note_key_changes",
    "known_first": "require_known_keys",
    "governed": "apply_package_policy",
    "Forgo": "SkipPlay",
    "Story": "RunResult",
    "Heard": "MemberEvent",
    "hear": "parse_event",
    "tell": "add_event",
    "judges": "consumes_outcome",
    "judged": "outcome_consumed",
    "unseen": "key_scan_errors",
    "host_turn": "host_lock",
    "munge_moment": "munge_switch",
    "unit_orders": "unit_actions",
    "take": "try_claim",
}


def modules() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for path in listed if (ROOT / path).exists()]


def definitions(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def problems(path: str, source: str) -> list[str]:
    """Names of the module and of its definitions that are replaced words, with or without an underscore in front."""
    names = [part.removeprefix("test_") for part in Path(path).with_suffix("").parts]
    names += definitions(source)
    found = [f"{name}: use a word such as {plain}" for name in names if (plain := REPLACED.get(name.lstrip("_")))]
    long = [name for name in names if name.startswith("test_") and len(name) > LONGEST_TEST_NAME]
    return found + [f"{name}: {len(name)} characters, at most {LONGEST_TEST_NAME}" for name in long]


def test_modules_and_their_definitions_have_plain_names() -> None:
    found = {path: problems(path, (ROOT / path).read_text()) for path in modules()}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_replaced_words_and_long_test_names_are_found() -> None:
    long = "test_" + "x" * 76
    assert problems("runner/wish.py", "") == ["wish: use a word such as desired_config"]
    assert problems("tests/unit/test_people.py", "") == ["people: use a word such as users"]
    assert problems("a.py", "class C:\n    def _tell(self): ...") == ["_tell: use a word such as add_event"]
    assert problems("a.py", "async def take(): ...\nclass Story: ...") == [
        "take: use a word such as try_claim",
        "Story: use a word such as RunResult",
    ]
    assert problems("a.py", f"def {long}(): ...") == [f"{long}: 81 characters, at most 80"]
    assert problems("a.py", "def take_over(): ...\nwish = {'tell': 1}\ndef test_ok(): ...") == []
    assert {"runner/translate.py", "plugins/modules/host_probe.py", "sandbox/cli.py"} <= set(modules())
