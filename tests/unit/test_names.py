"""Modules, functions and classes have plain names, and a module that is long says why."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.repository import ROOT, present_files

LONGEST_TEST_NAME = 80
MOST_LINES = 300
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
# No part of an identifier may be one of these words: each hides what a value is, or whose it is.
VAGUE = {"told", "said", "heard", "wish", "stranger", "strangers", "liar", "lying"}
VAGUE |= {"nobody", "somebody", "everybody", "anybody"}
# These alone name nothing: known to whom, and what is wanted?
VAGUE_ALONE = {"known", "wants"}


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """All nodes, the module first. Every test here reads every module."""
    return tuple(ast.walk(ast.parse(source)))


def definitions(source: str) -> Iterator[str]:
    for node in nodes(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def vague_identifiers(source: str) -> list[str]:
    """Names of functions, arguments, variables and attributes that have a vague word in them."""
    found = {getattr(node, field, None) for node in nodes(source) for field in ("name", "arg", "id", "attr")}
    names = [name for name in found if isinstance(name, str)]
    return sorted(name for name in names if VAGUE & set(name.lower().split("_")) or name.strip("_") in VAGUE_ALONE)


def problems(path: str, source: str) -> list[str]:
    """Names of the module and of its definitions that are replaced words, with or without an underscore in front."""
    names = [part.removeprefix("test_") for part in Path(path).with_suffix("").parts]
    names += definitions(source)
    found = [f"{name}: use a word such as {plain}" for name in names if (plain := REPLACED.get(name.lstrip("_")))]
    long = [name for name in names if name.startswith("test_") and len(name) > LONGEST_TEST_NAME]
    return found + [f"{name}: {len(name)} characters, at most {LONGEST_TEST_NAME}" for name in long]


def length_problem(source: str) -> str | None:
    """A module has at most 300 lines, or its docstring gives the reason: "Over 300 lines, because ..."."""
    lines, explained = source.count("\n"), "Over 300 lines, because " in " ".join((docstring(source)).split())
    if lines > MOST_LINES and not explained:
        return f"{lines} lines: split it, or give the reason in its docstring"
    return f"only {lines} lines: take the reason out of its docstring" if explained and lines <= MOST_LINES else None


def docstring(source: str) -> str:
    module = nodes(source)[0]
    assert isinstance(module, ast.Module)
    return ast.get_docstring(module) or ""


def test_a_module_over_300_lines_gives_its_reason() -> None:
    found = {path: length_problem((ROOT / path).read_text()) for path in present_files("*.py")}
    assert {path: problem for path, problem in found.items() if problem} == {}


def test_modules_and_their_definitions_have_plain_names() -> None:
    found = {path: problems(path, (ROOT / path).read_text()) for path in present_files("*.py")}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_identifiers_have_no_vague_words() -> None:
    sources = {path: (ROOT / path).read_text() for path in present_files("*.py")}
    assert len(sources) > 500
    assert {path: wrong for path, source in sources.items() if (wrong := vague_identifiers(source))} == {}


def test_vague_identifiers_are_found() -> None:
    assert vague_identifiers("def test_nobody_leaves(heard, **said): told = self.WISH") == [
        "WISH",
        "heard",
        "said",
        "test_nobody_leaves",
        "told",
    ]
    assert vague_identifiers("found = {'wish': 'said'}  # told\nnobody_s = wishes") == ["nobody_s"]
    assert vague_identifiers("known = self._wants\nunknown = known_hosts") == ["_wants", "known"]


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
    assert {"runner/translate.py", "plugins/modules/host_probe.py", "sandbox/cli.py"} <= set(present_files("*.py"))


def test_a_long_module_without_a_reason_and_a_reason_without_need_are_found() -> None:
    plain, because = '"""What it is."""\n', '"""What it is. Over 300 lines,\nbecause it has to be."""\n'
    assert length_problem(plain + "\n" * 299) is None and length_problem(because + "\n" * 299) is None
    assert length_problem(plain + "\n" * 300) == "301 lines: split it, or give the reason in its docstring"
    assert length_problem("# Over 300 lines, because\n" * 301) is not None, "a comment is not the docstring"
    assert length_problem(because) == "only 2 lines: take the reason out of its docstring"
