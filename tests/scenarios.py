"""A scenario stops at its first failure: what follows would fail because of it, and hide it.

`pytest.mark.scenario("cluster")` on a module says that the tests which use the fixture `cluster` are steps, in order,
of one scenario. After a step failed, in its setup, in its call or in its teardown, the rest is reported as "not run:
step 3 (test_...) failed". Each parameter of the fixture has a scenario of its own, and so has each module, unless the
fixture belongs to the whole session: then all modules that name it share one scenario.

With `independent=True` tests only look at what the fixture made, so that one failure says nothing about the next test.
Such a scenario stops only if the fixture itself cannot be made.
"""

from collections.abc import Generator
from dataclasses import dataclass

import pytest

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Step:
    key: Key
    number: int
    independent: bool


_STEPS = pytest.StashKey[list[Step]]()
_BROKEN = pytest.StashKey[dict[Key, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "scenario(fixture, independent=False): stop at the first failure of a test that uses the fixture"
    )
    config.stash[_BROKEN] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before any are deselected: step 3 is step 3 also when it runs alone."""
    counted: dict[Key, int] = {}
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        steps = item.stash[_STEPS] = []
        for mark in item.iter_markers("scenario"):
            (fixture,) = mark.args
            if fixture in item.fixturenames:
                key = _key(item, fixture)
                counted[key] = counted.get(key, 0) + 1
                steps.append(Step(key, counted[key], bool(mark.kwargs.get("independent", False))))


def _key(item: pytest.Function, fixture: str) -> Key:
    definition = item._fixtureinfo.name2fixturedefs[fixture][-1]
    if definition.scope == "function":
        raise pytest.UsageError(f"{item.nodeid}: a scenario needs a fixture that outlives a test; {fixture} does not")
    where = "" if definition.scope == "session" else item.path.as_posix()
    parameters = getattr(item, "callspec", None)
    return where, fixture, str(parameters.params.get(fixture, "")) if parameters else ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: one that failed would be tried again."""
    broken = item.config.stash[_BROKEN]
    for step in item.stash.get(_STEPS, []):
        if step.key in broken:
            pytest.skip(f"not run: {broken[step.key]} failed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for step in item.stash.get(_STEPS, []):
            if report.when == "setup" or not step.independent:
                where = "" if report.when == "call" else f", in its {report.when},"
                item.config.stash[_BROKEN].setdefault(step.key, f"step {step.number} ({item.name}){where}")
    return report
