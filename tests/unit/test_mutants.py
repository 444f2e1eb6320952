"""`./dev mutants`: which changes it makes, how a test meets one, and when it fails."""

from pathlib import Path
from typing import Any

import pytest

from tests.mutants import trampoline
from tests.mutants.__main__ import EXPLAINED, Result, explanations, report
from tests.mutants.changes import Change, change_file
from tests.mutants.plugin import KILLED, SURVIVED, UNREACHED
from tests.mutants.targets import TARGETS
from tests.repository import ROOT

SOURCE = '''"""A file."""


def is_small(number: int) -> bool:
    return number < 3


class Scale:
    @classmethod
    def weigh(cls, number: int) -> str:
        return "light" if is_small(number) else "heavy"
'''


def loaded(path: Path) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


def test_a_change_works_only_while_it_is_the_active_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text(SOURCE)
    changes = change_file(tmp_path, "a.py")
    described = {(one.function, one.before, one.after): one for one in changes}
    less = described["is_small", "return number < 3", "return number <= 3"]
    text = described[
        "Scale.weigh",
        'return "light" if is_small(number) else "heavy"',
        'return "XXlightXX" if is_small(number) else "heavy"',
    ]
    names = loaded(tmp_path / "a.py")
    trampoline.reached.clear()
    assert (names["is_small"](3), names["Scale"].weigh(1)) == (False, "light")
    assert trampoline.reached == {less.reached_as, text.reached_as}
    monkeypatch.setattr(trampoline, "active", ("a.py", less.name))
    assert (names["is_small"](3), names["Scale"].weigh(1)) == (True, "light")
    monkeypatch.setattr(trampoline, "active", ("a.py", text.name))
    assert (names["is_small"](3), names["Scale"].weigh(1)) == (False, "XXlightXX")
    monkeypatch.setattr(trampoline, "active", ("b.py", text.name))
    assert names["Scale"].weigh(1) == "light"


ONE = Change("a.py", "x_f__mutmut_1", "f", "return 1", "return 2")


@pytest.mark.parametrize(
    ("verdict", "explained", "code", "text"),
    [
        (KILLED, {}, 0, ""),
        (SURVIVED, {}, 1, "survives: a.py::f"),
        (UNREACHED, {}, 1, "survives (no test reaches it): a.py::f"),
        (SURVIVED, {ONE.key: "equivalent"}, 0, ""),
        (KILLED, {ONE.key: "equivalent"}, 1, "explained, but killed or gone: a.py::f"),
        (KILLED, {("a.py", "g", "x", "y"): "equivalent"}, 1, "explained, but killed or gone: a.py::g"),
        (KILLED, {("b.py", "g", "x", "y"): "another target"}, 0, ""),
    ],
)
def test_a_survivor_or_a_stale_explanation_fails_the_run(
    verdict: str, explained: dict[Any, str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report({"a.py": Result({ONE.name: (ONE, verdict)})}, explained) == code
    shown = capsys.readouterr().out
    assert text in shown and "mutants  killed  survived  explained" in shown


def test_every_target_and_every_explanation_names_files_that_exist() -> None:
    for target in TARGETS.values():
        tests = [f"tests/unit/test_{name}.py" for name in target.tests]
        assert [file for file in (*target.files, *tests) if not (ROOT / file).is_file()] == []
    mutated = {file for target in TARGETS.values() for file in target.files}
    assert {key[0] for key in explanations(EXPLAINED)} <= mutated
