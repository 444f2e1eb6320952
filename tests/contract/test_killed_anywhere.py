"""A runner is killed before and after every write and at every moment of its plays; the end is always the same.

Each scenario runs once undisturbed, with everything that is written noted. Then it runs again for each point, with a
real process that gets a real SIGKILL there; when its leases have run out, another one goes on. The platform and its
Vault are real, hosts are simulated; tests/e2e/test_killed_anywhere.py does it with real ones.

By default each kind of write and each play of each scenario is hit. GPUAAS_EVERY_POINT=1 hits every point there is.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest

from runner.model import events
from tests.contract.scenarios import DEPLOY, SCENARIOS, STAGES
from tests.contract.stage import Point, Scenario, ScenarioRun, Stage

# What the runners of each scenario post once beside the stated events: GPUAAS_ASSUMED_EVENTS is all.
STOPPED = events.of_status("stopped")
ASSUMED = {"stop": STOPPED, "stop under a job": STOPPED, "rotation": events.CHANGED}
ASSUMED |= {"upgrade": events.UPGRADED}


def points(whole: ScenarioRun) -> list[Point]:
    """Where to die: everywhere; or once for each kind of write, before and after by turns, and twice in each play."""
    writes = range(1, len(whole.writes) + 1)
    if os.environ.get("GPUAAS_EVERY_POINT"):
        around = [Point(where, number) for number in writes for where in ("before write", "after write")]
        return [*around, *(Point("in play", number) for number in range(1, whole.moments + 1))]
    last = {kind: number for number, kind in enumerate(whole.writes, 1)}
    chosen = [Point(("after write", "before write")[n % 2], number) for n, number in enumerate(last.values())]
    begins = [0, *whole.plays[:-1]]
    moments = {(begin + end + 1) // 2 for begin, end in zip(begins, whole.plays, strict=True)} | set(whole.plays)
    return [*chosen, *(Point("in play", number) for number in sorted(moments))]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
def test_after_a_kill_anywhere_the_next_runner_reaches_the_same_end(
    stages: "Queue[Stage]", scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    def play_out(point: Point | None) -> ScenarioRun:
        stage = stages.get()
        try:
            return stage.play_out(scenario, point)
        finally:
            stages.put(stage)

    whole = play_out(None)
    ended = whole.outcome["operations"][-1][1] if scenario is not DEPLOY else whole.outcome["instance"][0]
    assert ended == scenario.ends, whole.outcome
    posted = [kind for kind in whole.outcome["events"] if not kind.endswith("failed")]
    assert posted[:2] == ["apps.instance.requested", "apps.instance.running"]
    assert posted.count(ASSUMED.get(scenario.name, "")) == (scenario.name in ASSUMED), posted
    assert whole.outcome["left on disk"] == whole.outcome["left running"] == []
    chosen = points(whole)
    with ThreadPoolExecutor(STAGES) as pool:
        runs = dict(zip(chosen, pool.map(play_out, chosen), strict=True))
    assert [point for point, one in runs.items() if one.deaths != 1] == []
    assert [(point, one.wrong) for point, one in runs.items() if one.wrong] == []
    different = {
        f"{point.where} {point.number}": {
            name: (expected, one.outcome[name])
            for name, expected in whole.outcome.items()
            if one.outcome[name] != expected
        }
        for point, one in runs.items()
        if one.outcome != whole.outcome
    }
    assert different == {}, f"of {len(chosen)} points; writes: {whole.writes}"
    left = sum(one.left > 0 for one in runs.values())
    every = 2 * len(whole.writes) + whole.moments
    with capsys.disabled():
        sys.stdout.write(
            f"\n{scenario.name}: died at {len(chosen)} of {every} points, at {left} with files left behind "
        )
