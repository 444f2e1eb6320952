"""For every kind of test: what guards a merge finds the same each time; a person's own runs go on looking."""

import os

from hypothesis import settings

from tests import vault_under_test  # noqa: F401 - takes VAULT_* out of the environment before anything reads it

pytest_plugins = ["tests.suite.selection"]

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
