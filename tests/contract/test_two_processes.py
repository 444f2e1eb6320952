"""Two runners, each a process of its own, reach the same end as one runner, for every kind of request.

The platform and its Vault are real. The hosts are simulated, in a file that both processes change. They record a member
in two plays at once, and claim numbers that a host would refuse.
"""

from queue import Queue

import pytest

from tests.contract.scenarios import FAIL, SCENARIOS
from tests.contract.stage import Scenario, Stage


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", [*SCENARIOS, FAIL], ids=lambda scenario: scenario.name.replace(" ", "-"))
def test_two_runners_at_once_reach_the_end_that_one_reaches(stages: "Queue[Stage]", scenario: Scenario) -> None:
    stage = stages.get()
    try:
        alone = stage.play_out(scenario)
        both = stage.play_out(scenario, runners=("left", "right"))
    finally:
        stages.put(stage)
    assert both.conflicts > 0, "no write conflicted"
    assert both.wrong == []
    assert {
        name: (expected, both.outcome[name])
        for name, expected in alone.outcome.items()
        if both.outcome[name] != expected
    } == {}
