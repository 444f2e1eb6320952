"""For every kind of test: what guards a merge finds the same each time; a person's own runs go on looking.

A story stops at its first failure, and a failed test keeps what explains it.
"""

import os

import pytest
from hypothesis import settings

# Before they are imported: helpers' assertions explain themselves like those of tests.
pytest.register_assert_rewrite("tests.e2e", "tests.contract", "tests.unit", "tests.canaries")

from tests import (  # noqa: E402
    runner_process,
    vault_under_test,  # noqa: F401 - takes VAULT_* out of the environment before anything reads it
)
from tests.commands import recorded  # noqa: E402

pytest_plugins = ["tests.post_mortem", "tests.stories", "tests.suite.selection"]

# Before any test imports it: every call of the command is kept for a post-mortem.
runner_process.gpuaas_slurm = recorded(runner_process.gpuaas_slurm)

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
