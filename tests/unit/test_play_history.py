"""The plays of an operation: what is kept of them, and that they fit into a record beside its other content."""

from datetime import timedelta

import pytest

from runner.model import play_history
from runner.model.limits import RECORD_BYTES, size
from runner.model.play_history import OWN_BYTES, RESULT_BYTES
from runner.model.records import Detail
from runner.model.work_notes import HostRun, PlayHistory, PlayRun
from tests.unit.worlds import NOW


def run(minute: int = 0, playbook: str = "add_worker", hosts: int = 1, failed: int = 0, **more: object) -> PlayRun:
    found = {
        f"worker-{number:08x}": HostRun(outcome="host_unreachable" if number >= hosts - failed else "ok", first_at=NOW)
        for number in range(hosts)
    }
    at = NOW + timedelta(minutes=minute)
    made = PlayRun(playbook=playbook, started_at=at, why="é" * 400, hosts=found, hosts_count=hosts)
    return made.but(**{"ended_at": at, "result": play_history.result_of(found), **more})


def history(*runs: PlayRun) -> PlayHistory:
    made = PlayHistory()
    for one in runs:
        made = play_history.with_run(made, one)
    return made


def test_an_end_takes_the_place_of_its_start() -> None:
    begun = run(0, ended_at=None, result=None)
    assert history(run(0, "deploy"), begun, run(0)).plays == [run(0, "deploy"), run(0)]


@pytest.mark.parametrize("again", [run(1), run(1, attempt=2), run(0, attempt=2)])
def test_a_killed_play_stays_beside_the_one_that_ran_again(again: PlayRun) -> None:
    begun = run(0, ended_at=None, result=None, attempt=1)
    assert history(begun, again).plays == [begun, again]


def test_looks_that_come_out_alike_are_counted_and_others_are_not() -> None:
    looks = [run(minute, "observe") for minute in range(60)]
    (one,) = history(*looks).plays
    assert (one.runs, one.started_at, one.ended_at) == (60, looks[0].started_at, looks[-1].ended_at)
    assert len(history(run(0, "observe"), run(1, "observe", failed=1), run(2, "observe")).plays) == 3
    assert len(history(run(0, "observe"), run(1, "observe", why="another reason")).plays) == 2


@pytest.mark.parametrize("plays", [1, 12, 45])
@pytest.mark.parametrize("beside", [0, 12_000, 16_200])
def test_plays_on_1200_hosts_fit_beside_the_result_and_failures_come_first(plays: int, beside: int) -> None:
    result: Detail = {"members": "x" * beside}
    for minute in range(plays):  # written after each, as the runner does
        made = play_history.with_run(play_history.of_result(result), run(minute, f"play_{minute}", 1200, 3))
        result = play_history.in_result(result, made)
    assert size(result) <= RECORD_BYTES and result["members"] == "x" * beside
    left = play_history.of_result(result)
    assert len(left.plays) + left.more_plays == plays
    if beside < 16_000:
        assert left.plays[-1].playbook == f"play_{plays - 1}" and left.plays[-1].hosts_count == 1200
        assert all(next(iter(one.hosts.values())).failed for one in left.plays if one.hosts)
        assert left.plays[-1].hosts


@pytest.mark.parametrize("most", [0, 50, OWN_BYTES, RESULT_BYTES])
def test_a_history_is_never_larger_than_asked_for_and_stays_readable(most: int) -> None:
    made = history(*(run(minute, f"play_{minute}", 40) for minute in range(30)))
    for _ in range(3):
        made = play_history.fitted(made, most)
    assert size(made.stored()) <= max(most, 30) and len(made.plays) + made.more_plays == 30


@pytest.mark.parametrize("stored", [None, 7, {"plays": 7}, {"plays": [{"playbook": 7}]}, {"format": 9, "plays": []}])
def test_plays_that_cannot_be_read_are_replaced_and_the_rest_of_the_result_stays(stored: object) -> None:
    assert play_history.of_result(stored) == PlayHistory()
    assert play_history.in_result({"members": {}, "plays": 7}, history(run())).keys() == {
        "members",
        "plays",
        "more_plays",
    }


def test_a_play_without_any_report_was_stopped() -> None:
    silent = HostRun(outcome="no_report")
    ok, failed = HostRun(outcome="ok"), HostRun(outcome="task_failed")
    results = [
        play_history.result_of({str(n): host for n, host in enumerate(one)})
        for one in ([silent], [ok, silent], [failed], [ok, failed])
    ]
    assert results == ["stopped", "ok", "failed", "partly_failed"]
