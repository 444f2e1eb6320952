"""One table of error codes: the docs show it, and the program raises what is in it and nothing else."""

import re
import shutil
from pathlib import Path

import pytest

from runner.slurm.causes import CAUSES
from tests.error_codes import (
    ERRORS,
    HEALTH,
    ROOT,
    Raised,
    class_cell,
    classes,
    codes,
    errors_table,
    health_table,
    raised,
    reasons,
    rows,
)

FOLDERS = ("app", "runner", "plugins", "inventory_plugins", "roles", "playbooks")
RAISED = raised()


def codes_of(one: Raised) -> list[str]:
    return [code for code in codes() if re.fullmatch(one.code, code)] if one.pattern else [one.code]


def unlisted(found: list[Raised]) -> list[str]:
    listed = set(codes())
    return [f"{one.code} ({one.where})" for one in found if not listed & set(codes_of(one))]


def unraised(found: list[Raised], root: Path) -> set[str]:
    """Codes of the table that nothing raises; one that is passed on as data is at least written in quotes."""
    by_name = {code for one in found for code in codes_of(one)}
    sources = [path for top in FOLDERS[1:] for path in (root / top).rglob("*.*") if path.suffix in (".py", ".yml")]
    # The causes of health only name the codes.
    text = "\n".join(path.read_text() for path in sources if path.name != "causes.py")
    return {code for code in codes(root) if code not in by_name and f'"{code}"' not in text}


def test_both_pages_show_the_table() -> None:
    assert ERRORS.shown() == errors_table(), "run python -m tests.error_codes"
    assert HEALTH.shown() == health_table(), "run python -m tests.error_codes"


def test_every_code_has_one_row_with_all_that_it_can_be() -> None:
    assert sorted(codes()) == sorted(set(codes()))
    error, reason = ("class", "text"), ("health", "health_class", "reason")
    assert {tuple(name for name in row if name != "codes") for row in rows()} == {error, reason, (*error, *reason)}


def test_the_page_shows_both_classes_of_a_code_where_they_differ() -> None:
    assert class_cell({"class": "retryable, repairable"}) == "retryable, repairable"
    assert class_cell({"class": "intervention", "health_class": "intervention"}) == "intervention"
    both = class_cell({"class": "retryable", "health_class": "drift"})
    assert both == "retryable; as a [reason of health](health.md#reasons): drift"


def test_the_table_has_the_reasons_of_health_as_the_program_has_them() -> None:
    assert reasons() == {code: (cause.health.value, cause.klass) for code, cause in CAUSES.items()}


def test_every_code_that_is_raised_is_in_the_table() -> None:
    assert len(RAISED) > 200
    assert unlisted(RAISED) == []


def test_every_code_of_the_table_is_raised() -> None:
    assert unraised(RAISED, ROOT) == set()


def test_a_code_is_raised_with_a_class_that_its_row_has() -> None:
    listed = classes()
    wrong = [
        f"{one.code} is {one.klass} ({one.where}), not {listed.get(one.code)}"
        for one in RAISED
        if one.klass and not one.pattern and one.klass not in listed.get(one.code, [])
    ]
    assert wrong == []


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    return tmp_path


NEW = {
    "runner/slurm/health.py": 'NEW = AdapterError("made_up", "a sentence")',
    "runner/intent/placement.py": 'def new(): raise IntentError("made_up", "a sentence")',
    "runner/slurm/decide/repair.py": 'STEP = Refuse("a sentence", operation, "made_up")',
    "runner/slurm/readiness.py": 'def new(): return "made_up", f"a sentence {1}"',
    "runner/slurm/detail.py": 'REASON = {"code": "made_up", "message": "a sentence"}',
    "plugins/module_utils/host/gpus.py": 'NEW = AdapterError("made_up", "a sentence", REPAIRABLE)',
    "runner/model/progress.py": 'def new(): raise Rejected("a sentence", status=400, code="made_up")',
    "runner/model/names.py": 'def new(code: str = "made_up"): return Reason(code=code)',
    "runner/slurm/findings.py": 'def new(): yield "made_up", "a sentence"',
    "runner/slurm/versions.py": 'NEW = AdapterError("host_unreachable" if ok else "made_up", "a sentence")',
    "runner/slurm/users.py": 'NEW = AdapterError("made_up" if ok else "host_unreachable", "a sentence")',
    "runner/slurm/host_vars.py": 'NEW = Finding("made_up", "a sentence")',
    "playbooks/stop.yml": "          code: made_up",
    "roles/munge/tasks/main.yml": "      code: made_up",
}


def test_a_new_code_that_is_not_in_the_table_is_found_in_each_form(tree: Path) -> None:
    for place, line in NEW.items():
        with (tree / place).open("a") as file:
            file.write(f"\n{line}\n")
    found = unlisted(raised(tree))
    assert sorted(one.rpartition(":")[0] for one in found) == sorted(f"made_up ({place}" for place in NEW)


def test_a_row_that_nothing_raises_is_found(tree: Path) -> None:
    with (tree / "app" / "error_codes.yaml").open("a") as file:
        file.write("- {codes: [made_up], class: retryable, text: nothing}\n")
    with (tree / "runner" / "slurm" / "causes.py").open("a") as file:
        file.write('NEW = {"made_up": Cause(Health.DEGRADED)}\n')
    assert unraised(RAISED, tree) == {"made_up"}
