"""The pure middle stands alone: it is imported where neither HTTP nor Ansible nor Vault is installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ABSENT = ("httpx", "ansible", "ansible_runner", "hvac", "typer", "structlog", "rich")
# A finder that comes first and finds none of them.
WITHOUT = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import importlib

importlib.import_module(sys.argv[1])
"""


def imported_without(module: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", WITHOUT, module]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["runner.slurm.decide", "runner.slurm.app", "runner.translate"])
def test_decisions_are_imported_without_http_ansible_or_vault(module: str) -> None:
    done = imported_without(module)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["runner.platform.client", "runner.loop.tick"])
def test_the_edges_do_need_them(module: str) -> None:
    done = imported_without(module)
    assert done.returncode == 1 and "No module named" in done.stderr, done.stderr


def host_code() -> list[Path]:
    return sorted((ROOT / "plugins" / "module_utils" / "host").rglob("*.py"))


def test_code_for_hosts_in_general_does_not_name_slurm() -> None:
    """Names of the app are in module_utils/app.py. Another app replaces that file and the package slurm."""
    assert len(host_code()) > 20
    assert [str(path) for path in host_code() if re.search("slurm|munge", path.read_text(), re.IGNORECASE)] == []
