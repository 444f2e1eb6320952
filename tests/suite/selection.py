"""The pytest option --suite: the tests of one Debian. Tests that belong to no Debian run with Debian 12's."""

import pytest

from tests.suite.parts import SUITES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite", choices=SUITES, help="run the tests of one Debian; tests of neither run with the first")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--suite")
    if not wanted:
        return
    other = [item for item in items if suite_of(item.name) != wanted]
    items[:] = [item for item in items if suite_of(item.name) == wanted]
    config.hook.pytest_deselected(items=other)


def suite_of(test_name: str) -> str:
    """The Debian that a test's parameters name, as in test_x[trixie-warm]."""
    parameters = test_name.partition("[")[2].rstrip("]").split("-")
    return next((suite for suite in SUITES if suite in parameters), SUITES[0])
