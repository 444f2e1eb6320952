"""The runner as its users meet it: settings for a project of the sandbox, and the command itself."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.settings import Settings
from tests.platform_process import Project

COMMAND = str(Path(sys.executable).parent / "gpuaas-slurm")


def environment(project: Project, **changes: str) -> dict[str, str]:
    """What a runner and an operator of this project have in their environment."""
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


def gpuaas_slurm(
    variables: Mapping[str, str], *arguments: str, timeout: float = 300
) -> "subprocess.CompletedProcess[str]":
    """Run the command with exactly these settings and nothing else of ours from outside."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("GPUAAS_", "VAULT_"))}
    return subprocess.run(
        [COMMAND, *arguments],
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def answer(variables: Mapping[str, str], *arguments: str) -> Any:
    """The JSON a command answers with; fails loudly with what it said otherwise."""
    done = gpuaas_slurm(variables, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
