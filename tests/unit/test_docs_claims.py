"""Tests that the pages name exist, and every fault has one."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
POINTER = re.compile(r"`((?:unit|contract|e2e)/[\w/]+\.py)::(\w+)`")


@cache
def defined_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("page", ["usage/faults.md", "concepts/security.md"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    named = POINTER.findall(text)
    assert len(named) > 20
    assert [f"{file}::{test}" for file, test in named if test not in defined_in(file)] == []
    assert len(named) == text.count("::test_"), "a test is named in another form"


def test_every_fault_has_its_symptom_its_handling_and_a_test() -> None:
    rows = [line for line in (ROOT / "docs" / "usage" / "faults.md").read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith(("| fault", "| ---"))]
    assert len(rows) > 25
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 4 and all(cells), row
        assert POINTER.search(cells[3]), row
