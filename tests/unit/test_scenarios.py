"""A scenario of tests stops at its first failure; shown with pytest itself, on small scenarios."""

import pytest

pytest_plugins = "pytester"

FIXTURE = """
import pytest
pytestmark = pytest.mark.scenario("cluster"{more})

@pytest.fixture(scope="{scope}", params=["bookworm", "trixie"])
def cluster(request):
    {setup}
    return request.param
"""
STEPS = """
def test_first(cluster): pass
def test_second(cluster): assert cluster != "bookworm", "the disk is full"
@pytest.mark.parametrize("host", ["gs-1", "gs-2"])
def test_third(cluster, host): pass
def test_that_uses_no_cluster(): pass
"""


def run(pytester: pytest.Pytester, *steps: str, more: str = "", scope: str = "module", setup: str = "") -> str:
    """The output of a run of these modules."""
    for number, text in enumerate(steps):
        pytester.makepyfile(**{f"test_{number}": FIXTURE.format(more=more, scope=scope, setup=setup or "pass") + text})
    done = pytester.runpytest_inprocess("-ra", "-p", "tests.scenarios", "--strict-markers", "-p", "no:cacheprovider")
    return done.stdout.str()


def test_what_follows_a_failed_step_is_not_run_and_names_the_step_that_failed(pytester: pytest.Pytester) -> None:
    output = run(pytester, STEPS)
    assert "1 failed, 6 passed, 2 skipped" in output
    assert "SKIPPED [2]" in output and "not run: step 2 (test_second[bookworm]) failed" in output


def test_a_failure_in_the_fixture_stops_the_scenario(pytester: pytest.Pytester) -> None:
    output = run(pytester, STEPS, setup="assert request.param != 'trixie'")
    assert "not run: step 1 (test_first[trixie]), in its setup, failed" in output
    assert "1 failed, 2 passed, 5 skipped, 1 error" in output


def test_a_failure_in_the_teardown_stops_the_scenario(pytester: pytest.Pytester) -> None:
    witness = """
@pytest.fixture(autouse=True)
def other_jobs_go_on(request):
    yield
    assert "first" not in request.node.name
"""
    output = run(pytester, witness + STEPS)
    assert "not run: step 1 (test_first[bookworm]), in its teardown, failed" in output
    assert "3 passed, 6 skipped, 2 errors" in output


def test_modules_have_scenarios_of_their_own_unless_the_fixture_is_the_sessions(pytester: pytest.Pytester) -> None:
    assert "2 failed, 12 passed, 4 skipped" in run(pytester, STEPS, STEPS)


def test_modules_that_share_a_fixture_of_the_session_are_one_scenario(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(FIXTURE.format(more="", scope="session", setup="pass"))
    mark = 'import pytest\npytestmark = pytest.mark.scenario("cluster")\n'
    pytester.makepyfile(test_a=mark + STEPS, test_b=mark + STEPS)
    output = pytester.runpytest_inprocess("-ra", "-p", "tests.scenarios").stdout.str()
    assert "1 failed, 11 passed, 6 skipped" in output


def test_independent_tests_go_on_after_a_failure_but_not_without_their_fixture(pytester: pytest.Pytester) -> None:
    assert "1 failed, 8 passed" in run(pytester, STEPS, more=", independent=True")
    output = run(pytester, STEPS, more=", independent=True", setup="assert request.param != 'trixie'")
    assert "1 failed, 4 passed, 3 skipped, 1 error" in output


def test_a_step_that_runs_alone_keeps_its_number(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FIXTURE.format(more="", scope="module", setup="pass") + STEPS)
    output = pytester.runpytest_inprocess("-ra", "-p", "tests.scenarios", "-k", "not first").stdout.str()
    assert "not run: step 2 (test_second[bookworm]) failed" in output


def test_a_scenario_about_a_fixture_that_each_test_has_anew_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FIXTURE.format(more="", scope="function", setup="pass") + STEPS)
    done = pytester.runpytest_inprocess("-p", "tests.scenarios")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "needs a fixture that outlives a test" in done.stderr.str()
