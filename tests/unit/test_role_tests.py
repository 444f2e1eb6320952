"""The role tests under molecule/: every verify playbook runs, and a passed one prints no error."""

from pathlib import Path
from typing import Any

import pytest
import yaml

BUNDLE = Path(__file__).parents[2]
SCENARIO = BUNDLE / "molecule" / "default"
VERIFIES = sorted(path for path in (SCENARIO / "verify").glob("*.yml") if path.name != "all.yml")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_every_verify_playbook_runs_exactly_once() -> None:
    imported = [play["ansible.builtin.import_playbook"] for play in load(SCENARIO / "verify" / "all.yml")]
    assert sorted(imported) == [path.name for path in VERIFIES]


def test_molecule_has_only_the_default_scenario() -> None:
    assert [path.parent for path in (BUNDLE / "molecule").glob("*/molecule.yml")] == [SCENARIO]


@pytest.mark.parametrize("path", VERIFIES, ids=lambda path: path.stem)
def test_a_verify_playbook_that_passes_prints_no_error(path: Path) -> None:
    """Ansible prints `fatal: ... ignoring` for the first keyword and `FAILED - RETRYING` for the second."""
    assert "ignore_errors" not in path.read_text()
    assert "retries:" not in path.read_text()
