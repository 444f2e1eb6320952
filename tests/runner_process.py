"""Runs the command `gpuaas-slurm` with the settings of a sandbox project."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.cli import main
from runner.settings import Settings
from tests import fork_server
from tests.commands import ends, recorded
from tests.platform_process import Project

COMMAND = str(Path(sys.executable).parent / "gpuaas-slurm")


def environment(project: Project, **changes: str) -> dict[str, str]:
    """Environment variables of a runner and an operator of this project."""
    account = project.service_account
    role = project.platform.control.create_approle(project.project_id)
    return {
        "GPUAAS_BASE_URL": project.platform.base_url,
        "GPUAAS_PROJECT_ID": project.project_id,
        "GPUAAS_SERVICE_ACCOUNT_ID": account["service_account_id"],
        "GPUAAS_KEY_ID": account["key_id"],
        "GPUAAS_CLIENT_SECRET": account["client_secret"],
        "GPUAAS_OPERATOR_TOKEN": project.operator_token,
        "GPUAAS_ACCESS_CREDENTIAL_ID": project.credential_id,
        "VAULT_ADDR": project.platform.base_url,
        "VAULT_ROLE_ID": role["role_id"],
        "VAULT_SECRET_ID": role["secret_id"],
        "GPUAAS_API_PATIENCE_SECONDS": "5",
        **changes,
    }


def settings(project: Project, **changes: Any) -> Settings:
    """The same as a Settings object, for tests that stay in this process."""
    values: dict[str, Any] = {"api_timeout_seconds": 2, **changes}
    for name, value in environment(project).items():
        values.setdefault(name if name.startswith("VAULT_") else name.removeprefix("GPUAAS_").lower(), value)
    return Settings(**values)


def inherited() -> dict[str, str]:
    """The environment of this process without settings of the adapter, which a person may have exported."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("GPUAAS_", "VAULT_", "OTEL_"))}


# Set by own_processes; not a context variable, because scenarios call the command from threads.
_always_own_process = False


@contextlib.contextmanager
def own_processes() -> Iterator[None]:
    """Start every command as its own process inside this block."""
    global _always_own_process
    before, _always_own_process = _always_own_process, True
    try:
        yield
    finally:
        _always_own_process = before


@recorded
def gpuaas_slurm(
    variables: Mapping[str, str], *arguments: str, timeout: float = 300, own_process: bool = False
) -> "subprocess.CompletedProcess[str]":
    """Run the command with exactly these settings; settings of the adapter in this environment are left out.

    The fork server runs it, which saves its start. A test of the start, the arguments or the environment of the process
    needs `own_process=True` or `own_processes`.
    """
    argv, environment = [COMMAND, *arguments], {**inherited(), **variables}
    if not (own_process or _always_own_process):
        return fork_server.run(main.main, argv, environment, timeout)
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


def answer(variables: Mapping[str, str], *arguments: str, own_process: bool = False) -> Any:
    """The JSON that a command prints. If the command fails, the message has its output."""
    __tracebackhide__ = True
    return json.loads(ends(gpuaas_slurm(variables, *arguments, "--json", own_process=own_process), 0).stdout)
