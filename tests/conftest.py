"""For every kind of test: what guards a merge finds the same each time; a person's own runs go on looking."""

import os

import pytest
from hypothesis import settings

from tests import vault_under_test

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_report_header() -> str:
    return vault_under_test.described()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """A quiet run has no header."""
    if config.get_verbosity() < 0:
        terminalreporter.write_line(vault_under_test.described())
