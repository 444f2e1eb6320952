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


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("usage/faults.md", 20),
        ("concepts/security.md", 20),
        ("usage/placement.md", 20),
        ("onboarding.md", 20),
        ("machine-access.md", 8),
    ],
)
def test_every_test_that_a_page_names_exists(page: str, least: int) -> None:
    text = (ROOT / "docs" / page).read_text()
    named = POINTER.findall(text)
    assert len(named) > least
    assert [f"{file}::{test}" for file, test in named if test not in defined_in(file)] == []
    assert len(named) == text.count("::test_"), "a test is named in another form"


@pytest.mark.parametrize(("page", "cells"), [("usage/placement.md", 3), ("onboarding.md", 3)])
def test_every_row_of_a_table_of_evidence_has_a_test_or_the_reason_without(page: str, cells: int) -> None:
    text = (ROOT / "docs" / page).read_text()
    first = "| 1. " if page == "onboarding.md" else "| deploy "
    rows = text[text.index(first) :].split("\n\n")[0].splitlines()
    assert len(rows) >= 7
    for row in rows:
        found = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(found) == cells and all(found), row
        assert POINTER.search(found[-1]), row


def test_every_fault_has_its_symptom_its_handling_and_a_test() -> None:
    rows = [line for line in (ROOT / "docs" / "usage" / "faults.md").read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith(("| fault", "| ---"))]
    assert len(rows) > 25
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 4 and all(cells), row
        assert POINTER.search(cells[3]), row
