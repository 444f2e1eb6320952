"""A platform with another contract is served by setting a mapping file, and the private key that its login takes.

tests/other_contract.py is that platform: other paths and field names, nested errors, another page envelope,
X-Idempotency-Key, no ETags, a login by signed assertion, and a deploy that makes no operations.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.contract.scenarios import BEGINNINGS, DEPLOY, FAIL, SCENARIOS, STOP
from tests.contract.stage import Point, Scenario, Stage
from tests.other_contract import OtherPlatform, other_platform
from tests.platform_process import our_manifest

CORE = ("add", "drain", "remove", "replace", "stop", "start", "restart", "retry", "decommission")
FLOWS = [one for one in SCENARIOS if one.name in CORE]


class OtherStage(Stage):
    """A stage whose runners call the platform under the other contract. The test itself reads the sandbox as it is."""

    other: OtherPlatform

    def arrange(self) -> None:
        self._stack = ExitStack()
        self.other = self._stack.enter_context(other_platform(self.platform.base_url))
        self.variables |= self.other.variables(self.project, self._directory)
        self.platform.control.register_app(our_manifest() | {"seed_operations": []})

    def close(self) -> None:
        self._stack.close()
        super().close()


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    yield from opened(Stage(tmp_path_factory.mktemp("usual") / "stage"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    yield from opened(OtherStage(tmp_path_factory.mktemp("other") / "stage"))


def opened(stage: Stage) -> Iterator[Stage]:
    for scenario in (DEPLOY, STOP, FAIL):
        stage.play_out(scenario)
        stage.save(BEGINNINGS[scenario])
    yield stage
    stage.close()


def differences(left: dict[str, object], right: dict[str, object]) -> dict[str, object]:
    return {name: (left[name], right[name]) for name in left if left[name] != right[name]}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", [DEPLOY, *FLOWS], ids=lambda scenario: scenario.name)
def test_each_flow_ends_as_on_the_usual_platform(usual: Stage, other: OtherStage, scenario: Scenario) -> None:
    expected, found = usual.play_out(scenario), other.play_out(scenario)
    assert differences(expected.outcome, found.outcome) == {}
    ended = found.outcome["operations"][-1][1] if scenario is not DEPLOY else found.outcome["instance"][0]
    assert ended == scenario.ends


@pytest.mark.timeout(600)
@pytest.mark.parametrize("where", ["before write", "after write"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_kill_around_the_first_writes_of_a_deploy_adds_each_worker_once(
    other: OtherStage, where: str, number: int
) -> None:
    whole = other.play_out(DEPLOY)
    requests = [n for n, kind in enumerate(whole.writes, 1) if kind.endswith("/member-operations") and "POST" in kind]
    assert requests and requests[0] <= 3, whole.writes
    killed = other.play_out(DEPLOY, Point(where, number))  # type: ignore[arg-type]
    assert killed.deaths == 1
    assert differences(whole.outcome, killed.outcome) == {}
