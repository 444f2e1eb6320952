"""A runner is killed before and after every write and at every moment of its plays; the end is always the same.

Each story is told once undisturbed, with everything that is written noted. Then it is told again for each point, with a
real process that gets a real SIGKILL there; when its leases have run out, another one goes on. The platform and its
Vault are real, hosts are on paper; tests/e2e/test_killed_anywhere.py does it with real ones.

By default each kind of write and each play of each story is hit. GPUAAS_EVERY_POINT=1 hits every point there is.
"""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest

from tests.contract.stage import Point, Stage, Story, Telling

STAGES = 3

DEPLOY = Story("deploy", "asked for", lambda stage: None, "running")


def drain_busy(stage: Stage) -> None:
    stage.start_job(2)
    stage.ask("drain", 2)


STOP = Story("stop", "running", lambda stage: stage.ask_whole("stop"), "succeeded")
FAIL = Story("a deploy that fails", "asked for", Stage.break_controller, "failed")
DRAIN_BUSY = Story("drain of a busy node", "running", drain_busy, "running")


def remove_busy(stage: Stage) -> None:
    stage.start_job(2)
    stage.ask("remove", 2, deadline_seconds=0, on_deadline="requeue")


def drain_until_a_deadline(stage: Stage) -> None:
    stage.start_job(2)
    stage.ask("drain", 2, deadline_seconds=0, on_deadline="cancel")


def stop_under_a_job(stage: Stage) -> None:
    stage.start_job(2)
    stage.ask_whole("stop", deadline_seconds=0, on_deadline="cancel")


STORIES = [
    DEPLOY,
    Story("add", "running", lambda stage: stage.ask("add", allocations=(4,)), "succeeded"),
    Story("bulk add", "running", lambda stage: stage.ask("add", allocations=(4, 5, 6)), "succeeded"),
    Story("drain", "running", lambda stage: stage.ask("drain", 2, reason="new disk"), "succeeded"),
    Story("drain until a deadline", "running", drain_until_a_deadline, "succeeded"),
    Story("cancel of a drain", "draining", Stage.cancel, "cancelled"),
    Story("remove", "running", lambda stage: stage.ask("remove", 3), "succeeded"),
    Story("remove of a busy node", "running", remove_busy, "succeeded"),
    Story("replace", "running", lambda stage: stage.ask("replace", 3, allocations=(4,)), "succeeded"),
    STOP,
    Story("stop under a job", "running", stop_under_a_job, "succeeded"),
    Story("start", "stopped", lambda stage: stage.ask_whole("start"), "succeeded"),
    Story("restart", "running", lambda stage: stage.ask_whole("restart"), "succeeded"),
    Story("upgrade", "running", lambda stage: stage.ask_whole("upgrade"), "succeeded"),
    Story("rollback", "running", lambda stage: stage.ask_whole("rollback"), "succeeded"),
    Story("rotation", "running", lambda stage: stage.ask_whole("rotate_credentials"), "succeeded"),
    Story("retry", "failed", Stage.retry, "succeeded"),
    Story("decommission", "running", lambda stage: stage.ask_whole("decommission"), "succeeded"),
]


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Queue[Stage]"]:
    """Some stages, each with the states in which stories begin."""

    def build(number: int) -> Stage:
        stage = Stage(tmp_path_factory.mktemp("stage", numbered=True) / str(number))
        for story, name in ((DEPLOY, "running"), (STOP, "stopped"), (DRAIN_BUSY, "draining"), (FAIL, "failed")):
            stage.tell(story)
            stage.save(name)
        return stage

    free: Queue[Stage] = Queue()
    with ThreadPoolExecutor(STAGES) as pool:
        built = list(pool.map(build, range(STAGES)))
    for stage in built:
        free.put(stage)
    yield free
    for stage in built:
        stage.close()


def points(whole: Telling) -> list[Point]:
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
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name.replace(" ", "-"))
def test_a_runner_killed_anywhere_is_followed_by_one_that_ends_it_alike(
    stages: "Queue[Stage]", story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(point: Point | None) -> Telling:
        stage = stages.get()
        try:
            return stage.tell(story, point)
        finally:
            stages.put(stage)

    whole = tell(None)
    ended = whole.outcome["operations"][-1][1] if story is not DEPLOY else whole.outcome["instance"][0]
    assert ended == story.ends, whole.outcome
    told = [kind for kind in whole.outcome["events"] if kind != "apps.instance.failed"]
    assert told[:2] == ["apps.instance.requested", "apps.instance.running"]
    assert whole.outcome["left on disk"] == whole.outcome["left running"] == []
    chosen = points(whole)
    with ThreadPoolExecutor(STAGES) as pool:
        tellings = dict(zip(chosen, pool.map(tell, chosen), strict=True))
    assert [point for point, one in tellings.items() if one.deaths != 1] == []
    different = {
        f"{point.where} {point.number}": {
            name: (said, one.outcome[name]) for name, said in whole.outcome.items() if one.outcome[name] != said
        }
        for point, one in tellings.items()
        if one.outcome != whole.outcome
    }
    assert different == {}, f"of {len(chosen)} points; writes: {whole.writes}"
    left = sum(one.left > 0 for one in tellings.values())
    every = 2 * len(whole.writes) + whole.moments
    with capsys.disabled():
        sys.stdout.write(f"\n{story.name}: died at {len(chosen)} of {every} points, at {left} with files left behind ")
