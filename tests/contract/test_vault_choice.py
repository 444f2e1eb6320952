"""The tests can use another Vault; they print which one, and leave nothing in it."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.platform import process
from sandbox.platform.app import DATABASE_FILE
from tests import vault_under_test
from tests.commands import ends
from tests.platform_process import ROOT

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def other_vault(tmp_path: Path) -> Iterator[process.Running]:
    """A second stand-in in the place of a real Vault: the tests get the same settings as for a real one."""
    yield process.start(tmp_path)
    process.stop(tmp_path)


def run_tests(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VAULT_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/contract/test_any_vault.py", *arguments],
        cwd=ROOT,
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_vault_that_is_given_is_the_one_asked_and_is_left_as_it_was(
    other_vault: process.Running, tmp_path: Path
) -> None:
    ran = run_tests("-q", VAULT_ADDR=other_vault.base_url, VAULT_TOKEN=other_vault.admin_token)
    ends(ran, 0)
    assert f"vault: Vault 1.0.0-sandbox at {other_vault.base_url}" in ran.stdout
    assert other_vault.admin_token not in ran.stdout + ran.stderr
    with sqlite3.connect(tmp_path / DATABASE_FILE) as database:
        counted = {
            table: database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("vault_logins", "vault_mounts", "vault_policies", "vault_approles", "vault_kv")
        }
    assert counted.pop("vault_logins") > 10, "the tests used it"
    assert set(counted.values()) == {0}, f"left behind: {counted}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "vault: the sandbox's stand-in"),
        ({"VAULT_ADDR": "http://127.0.0.1:9"}, "vault: the sandbox's stand-in (VAULT_ADDR is set, but no VAULT_TOKEN"),
        ({"VAULT_ADDR": "http://127.0.0.1:9", "VAULT_TOKEN": "canary"}, "vault: none answers at http://127.0.0.1:9"),
    ],
)
def test_the_summary_names_the_vault_under_test(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(vault_under_test, "GIVEN", given)
    description = vault_under_test.described()
    assert description.startswith(expected) and "canary" not in description


def test_a_run_that_is_not_quiet_says_so_before_the_first_test() -> None:
    ran = run_tests("--collect-only")
    assert ran.stdout.index("vault: the sandbox's stand-in\n") < ran.stdout.index("collected ")
