"""A failed wait shows the last values, and ends before the time limit of its test."""

import ast
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import waits
from tests.platform_process import ROOT
from tests.waits import LONGEST_WAIT, MARGIN, TEST_SECONDS, remember_answer, until


def test_a_failed_wait_shows_the_last_values() -> None:
    def look() -> bool:
        remember_answer("gs-1: sinfo: down")
        return False

    with pytest.raises(AssertionError) as failed:
        until(look, 0, "the worker is idle", seen=lambda: {"status": "running"})
    assert str(failed.value).splitlines()[:4] == [
        "the worker is idle: not within 0 s",
        "last value: False",
        "last seen: {'status': 'running'}",
        "last answer of a host: gs-1: sinfo: down",
    ]


def test_an_answer_from_before_the_wait_is_not_shown() -> None:
    remember_answer("gs-1: long ago")
    with pytest.raises(AssertionError) as failed:
        until(lambda: None, 0, "something")
    assert "long ago" not in str(failed.value)


def test_a_wait_returns_the_value_of_its_condition() -> None:
    found: Iterator[str] = iter(["", "", "there"])
    assert until(lambda: next(found), 5, "it comes", every=0) == "there"


def test_a_wait_ends_before_the_time_limit_of_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getitimer", lambda which: (MARGIN + 0.2, 0.0))
    with pytest.raises(AssertionError, match="all that was left of the test's time limit"):
        until(lambda: None, 600, "something")


def test_the_time_limit_is_above_the_longest_waits() -> None:
    limit = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert limit["timeout_method"] == "signal", "a thread would end pytest without a teardown and without a post-mortem"
    assert TEST_SECONDS >= 2 * LONGEST_WAIT + MARGIN + 200
    with pytest.raises(AssertionError, match="no wait may be longer"):
        until(lambda: True, LONGEST_WAIT + 1, "too long")


def literal_waits(path: Path) -> Iterator[tuple[int, float]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "until":
            assert isinstance(node.args[1], ast.Constant), f"{path.name}:{node.lineno}: write the seconds down"
            assert isinstance(node.args[1].value, int | float)
            yield node.lineno, node.args[1].value


def test_no_end_to_end_test_waits_longer_than_allowed() -> None:
    found = [(path, *one) for path in (ROOT / "tests" / "e2e").glob("*.py") for one in literal_waits(path)]
    assert len(found) > 50
    assert [one for one in found if one[2] > LONGEST_WAIT] == []
    assert waits.until is until
