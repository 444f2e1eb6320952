"""The pytest option --suite: only the tests of one Debian.

In a module with tests for both Debians, tests that name neither run with those of Debian 12. A module that names no
Debian in its parameters runs completely: it chooses its Debian itself.
"""

import pytest

from sandbox.fleet.images import SUITES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite", choices=SUITES, help="run the tests of one Debian; tests of neither run with the first")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--suite")
    if not wanted:
        return
    both = {item.path for item in items if _named(item.name)}
    other = [item for item in items if item.path in both and suite_of(item.name) != wanted]
    items[:] = [item for item in items if item not in other]
    config.hook.pytest_deselected(items=other)


def suite_of(test_name: str) -> str:
    """The Debian on which a test of a module for both runs."""
    return _named(test_name) or SUITES[0]


def _named(test_name: str) -> str:
    """The Debian that a test's parameters name, as in test_x[trixie-warm]."""
    parameters = test_name.partition("[")[2].rstrip("]").split("-")
    return next((suite for suite in SUITES if suite in parameters), "")
