"""Settings for all tests. With CI set, hypothesis draws the same examples each time; otherwise it draws new ones.

A scenario stops at its first failure, and a failed test keeps evidence.
"""

import os
from pathlib import Path

import ansible.module_utils
import pytest
from hypothesis import settings

# Before they are imported, so that assertions in helpers show their values like those of tests.
pytest.register_assert_rewrite("tests.e2e", "tests.contract", "tests.unit", "tests.canaries")

from tests import vault_under_test  # noqa: E402, F401 - takes VAULT_* out of the environment before anything reads it

# Ansible gives our module_utils this name on hosts; with it they are ordinary Python here too.
ansible.module_utils.__path__.append(str(Path(__file__).resolve().parents[1] / "plugins" / "module_utils"))

pytest_plugins = ["tests.post_mortem", "tests.scenarios", "tests.suite.selection"]

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
