"""The pure layers need neither HTTP nor Ansible nor Vault, and the linter's contracts on layers can fail."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ABSENT = ("httpx", "ansible", "ansible_runner", "hvac", "typer", "structlog", "rich", "prometheus_client")
LAYERS = "A layer imports only what is below it, and every module has a layer"
PURE = "Slurm, translate, intent, smoke and model do no I/O and read no clock"
SMOKE = "A smoke run uses nothing of the sandbox"
APP = "Only cli imports the app, which is an argument everywhere else"
EXAMPLE = "An example is an app of its own: it imports neither Slurm nor our commands"
OF_OUR_APP = (("decide.py", "runner.slurm.health"), ("__main__.py", "runner.cli.commands"))
KNOW_NO_APP = (
    "loop/run.py",
    "act/plays.py",
    "report/leases.py",
    "platform/wire.py",
    "observe/world.py",
    "translate.py",
)
WIDE = {"COLUMNS": "200"}  # else the names of contracts are wrapped
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

# Words of the app. Not among them: draining, a status of the contract; partition, a method of str; gpus, a field of the
# contract; cluster, a word for any instance.
APPS_WORDS = re.compile(
    "slurm|slurmctld|slurmdbd|slurmd|munged?|mariadb|conversion|sacct|sacctmgr|scontrol|squeue|sinfo|srun|sbatch|scancel"
    "|controllers?|workers?|nodes?|jobs?|drain|drains|drained|partitions"
)
# What is removed before the search, and why it may be in the core.
ALLOWED_TEXT = {
    "gpuaas-slurm": "the program's name: in messages, the User-Agent, directories and idempotency keys",
    "node_exporter": "a program of Prometheus, which reads the file with metrics",
    "{instance_id}/workers": "the contract's path of a shared runtime's members, in platform/contract.py",
    "worker-operations": "the same for operations on them",
    "cicd.worker.id": "an attribute of spans in OpenTelemetry's conventions, for who does the work",
    "slurm-reference": "the default of GPUAAS_APP_SLUG in settings.py, which is part of the interface",
}


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


def lint_imports(tree: Path) -> tuple[int, str]:
    command = [f"{Path(sys.executable).parent}/lint-imports", "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False, env=os.environ | WIDE)
    return done.returncode, done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages and of the contracts."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in ("runner", "examples"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.parametrize(
    ("module", "bad", "contract"),
    [
        ("slurm/health.py", "import runner.settings", LAYERS),
        ("slurm/health.py", "import runner.translate", LAYERS),
        ("intent/connection.py", "import runner.slurm.snapshot", LAYERS),
        ("model/world.py", "import runner.intent.connection", LAYERS),
        ("platform/client.py", "import runner.report.leases", LAYERS),
        ("loop/tick.py", "import runner.cli.commands", LAYERS),
        ("report/leases.py", "import runner.act.plays", LAYERS),
        ("newcomer.py", "", LAYERS),
        ("slurm/decide/members.py", "import time", PURE),
        ("slurm/decide/members.py", "import socket", PURE),
        ("model/names.py", "import subprocess", PURE),
        ("intent/addresses.py", "from httpx import URL", PURE),
        ("slurm/cluster_config.py", "from pathlib import Path", PURE),
        ("translate.py", "import hvac", PURE),
        ("smoke/plan.py", "import time", PURE),
        ("smoke/plan.py", "from runner.slurm import health", LAYERS),
        ("cli/smoke/walk.py", "from sandbox.platform.control_client import ControlClient", SMOKE),
        *((where, "from runner.slurm import health", APP) for where in KNOW_NO_APP),
        *((f"../examples/web_farm/{where}", f"import {what}", EXAMPLE) for where, what in OF_OUR_APP),
        ("loop/run.py", "import httpx", "Only platform imports httpx"),
        ("cli/explain.py", "import httpx", "Only platform imports httpx"),
        ("loop/manual.py", "import ansible_runner", "Only act imports ansible_runner and hvac"),
        ("loop/run.py", "import prometheus_client", "Only telemetry imports prometheus_client"),
        ("loop/run.py", "from opentelemetry import trace", "Only telemetry imports opentelemetry"),
        ("report/reporter.py", "from hvac import exceptions", "Only act imports ansible_runner and hvac"),
    ],
)
def test_a_forbidden_import_breaks_the_contract_that_forbids_it(
    tree: Path, module: str, bad: str, contract: str
) -> None:
    with (tree / "runner" / module).open("a") as file:
        file.write(f"\n{bad}\n")
    status, output = lint_imports(tree)
    assert status == 1 and f"{contract} BROKEN" in output, output


def test_the_contracts_hold_without_a_forbidden_import(tree: Path) -> None:
    status, output = lint_imports(tree)
    assert status == 0 and "0 broken" in output, output


def host_code() -> list[Path]:
    return sorted((ROOT / "plugins" / "module_utils" / "host").rglob("*.py"))


def test_code_for_hosts_in_general_does_not_name_slurm() -> None:
    """Names of the app are in module_utils/app.py. Another app replaces that file and the package slurm."""
    assert len(host_code()) > 20
    assert [str(path) for path in host_code() if re.search("slurm|munge", path.read_text(), re.IGNORECASE)] == []


def core() -> dict[str, str]:
    """The text of each module that has to work for any app, by its path below runner/."""
    found = {str(path.relative_to(ROOT / "runner")): path.read_text() for path in (ROOT / "runner").rglob("*.py")}
    return {name: text for name, text in found.items() if name.partition("/")[0] not in ("slurm", "cli")}


def words_of_the_app(text: str) -> set[str]:
    """The app's words in names, strings and comments; `worker_hostname` and `WorkerNotes` have one too."""
    for allowed in ALLOWED_TEXT:
        text = text.replace(allowed, "")
    parts = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    return {word for word in re.findall("[a-z]+", parts.lower()) if APPS_WORDS.fullmatch(word)}


def test_no_module_of_the_core_has_a_word_of_the_app() -> None:
    modules = core()
    assert len(modules) > 60 and {"settings.py", "translate.py", "loop/tick.py", "model/app.py"} <= set(modules)
    assert {name: found for name, text in modules.items() if (found := words_of_the_app(text))} == {}


@pytest.mark.parametrize(
    "text", ["needs_controller = True", "class WorkerNotes:", '"slurm_work"', "# one entry per worker", "CONTROLLER"]
)
def test_a_word_of_the_app_is_found_in_names_strings_and_comments(text: str) -> None:
    assert words_of_the_app(text)


def test_every_exception_for_a_word_of_the_app_is_needed() -> None:
    together = "".join(core().values())
    assert [text for text in ALLOWED_TEXT if text not in together] == []
