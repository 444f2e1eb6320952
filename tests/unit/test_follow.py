"""Following a request: when it counts as ended, how often it is looked at, and how a person leaves it."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from runner.cli import live, request_state, view
from runner.cli.commands import FAILED, INTERRUPTED, OK, TIME_OVER
from runner.cli.live import LONGEST, SHORTEST
from runner.cli.options import Answer
from runner.cli.request_state import Records, RequestState
from runner.cli.tables import INSTANCES, Section
from runner.model.errors import NotFound, RequestError, Unavailable
from runner.model.platform import Member, Operation
from runner.slurm.waiting import NO_RUNNER
from tests.unit.lifecycle import ask, ask_whole, serving
from tests.unit.worlds import NOW, add, claimed_by_us, controller, instance

ERROR = {"code": "host_unreachable", "message": "gs-4 does not answer. Check that it is up"}


def ended(operation: Operation, status: str) -> Operation:
    return operation.model_copy(update={"status": status, "error": ERROR if status == "failed" else None})


def records(*operations: Operation, members: tuple[Member, ...] = (), late: float = 0, **changes: Any) -> Records:
    made = instance(**{"created_at": NOW} | changes)
    return Records(made, members, operations, NOW + timedelta(seconds=late), timedelta(seconds=90))


# -- when it has ended ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("succeeded", OK),
        ("failed", FAILED),
        ("cancelled", FAILED),
        ("running", None),
        ("accepted", None),
        ("new", None),
    ],
)
def test_an_operation_has_ended_when_its_status_says_so(status: str, code: int | None) -> None:
    assert request_state.of_operation(ended(ask("drain"), status), records()).code == code


def test_a_failed_operation_shows_its_code_message_next_step_and_correlation_id() -> None:
    error, step, correlation = request_state.of_operation(ended(ask("drain"), "failed"), records()).failure
    assert error == "error: host_unreachable: gs-4 does not answer. Check that it is up"
    assert step.startswith("next: check that the machine is up")
    assert correlation == "correlation corr-2; all about it: gpuaas-slurm explain corr-2"


def test_a_failure_with_a_code_that_no_table_has_is_shown_all_the_same() -> None:
    failed = ask("drain").model_copy(update={"status": "failed", "error": {"code": "made_up", "message": "so"}})
    assert request_state.of_operation(failed, records()).failure[0] == "error: made_up: so"


@pytest.mark.parametrize(
    ("status", "health", "operation", "code"),
    [
        ("running", "healthy", "succeeded", OK),
        ("running", "healthy", "running", None),
        ("running", "healthy", "accepted", None),
        ("running", "healthy", "failed", FAILED),
        ("running", "healthy", "cancelled", FAILED),
        ("running", "degraded", "succeeded", None),
        ("running", "unknown", "succeeded", None),
        ("running", None, "succeeded", None),
        ("deploying", "progressing", "accepted", None),
        ("requested", "unknown", "accepted", None),
        ("failed", "unhealthy", "failed", FAILED),
        ("failed", "unhealthy", "running", FAILED),
        ("deleting", "unknown", "accepted", FAILED),
        ("another", "healthy", "succeeded", None),
    ],
)
def test_a_deploy_is_done_when_it_is_running_and_healthy_and_nothing_is_open(
    status: str, health: str | None, operation: str, code: int | None
) -> None:
    seen = request_state.of_deploy(records(ended(add(2), operation), status=status, health=health))
    assert seen.code == code
    assert bool(seen.failure) == (code == FAILED)


def test_a_failed_deploy_without_a_failed_operation_shows_the_instances_reason() -> None:
    reasons = {"reasons": [{"code": "scope_not_served", "message": "the scope is not served"}]}
    seen = request_state.of_deploy(records(status="failed", status_detail=reasons))
    assert seen.failure[0] == "error: scope_not_served: the scope is not served"
    assert "gpuaas-slurm explain corr-1" in seen.failure[-1]


def test_an_unclaimed_deploy_shows_that_no_runner_seems_to_work() -> None:
    assert not any(NO_RUNNER in str(row["detail"]) for row in request_state.of_deploy(records(late=80)).rows)
    assert NO_RUNNER in str(request_state.of_deploy(records(late=90)).rows[0]["detail"])
    assert NO_RUNNER not in str(request_state.of_deploy(records(late=90, status="deploying")).rows[0]["detail"])


def test_the_rows_are_the_operation_its_instance_and_the_members_it_concerns() -> None:
    one, other = serving(2), serving(3)
    asked = claimed_by_us(ask("drain", one))
    rows = request_state.of_operation(asked, records(asked, members=(controller(), one, other), name="demo")).rows
    assert [row["subject"] for row in rows] == [asked.label, "instance demo", f"worker-{one.id.hex[:8]} w2"]
    whole = claimed_by_us(ask_whole("stop"))
    gone = serving(4, status="deleted")
    rows = request_state.of_operation(whole, records(whole, members=(controller(), one, other, gone))).rows
    assert len(rows) == 2 + 3


def test_of_many_members_those_that_are_not_ready_are_shown_and_the_rest_is_counted() -> None:
    members = (*(serving(n) for n in range(2, 60)), serving(60, status="reconciling"))
    rows = request_state.of_deploy(records(members=members)).rows
    assert rows[1]["status"] == "reconciling"
    assert rows[-1]["subject"] == f"and {59 - request_state.MEMBERS_SHOWN} more members"


# -- the loop --------------------------------------------------------------------------------------------------------


class Time:
    """A clock that only moves by sleeping."""

    def __init__(self, end: float = 10_000) -> None:
        self.now, self.end = 0.0, end
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        if self.now > self.end:
            raise KeyboardInterrupt

    def clock(self) -> float:
        return self.now


def looks(*found: Any) -> Callable[[], Any]:
    """Each in turn, the last one for ever; an exception is raised."""
    rest: Iterator[Any] = iter(found)
    last: list[Any] = []

    def look() -> Any:
        last[:] = [next(rest, last[0] if last else None)]
        if isinstance(last[0], Exception):
            raise last[0]
        return last[0]

    return look


def state(status: str, code: int | None = None, detail: str | None = None) -> RequestState:
    row = {"subject": "drain 1a2b3c4d", "status": status, "phase": None, "detail": detail}
    return RequestState([row], ask("drain"), code)


def pipe() -> Console:
    return Console(file=StringIO(), soft_wrap=True, highlight=False, markup=False, emoji=False)


def text(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def follow(*found: Any, timeout: float | None = None, time: Time | None = None) -> tuple[int, str, Time]:
    console, time = pipe(), time or Time()
    code, _ = live.follow(looks(*found), console, timeout, sleep=time.sleep, clock=time.clock)
    return code, text(console), time


def test_in_a_pipe_each_change_is_one_line() -> None:
    code, shown, _ = follow(state("accepted"), state("accepted"), state("running", detail="w" * 300), state("done", 0))
    lines = shown.splitlines()
    assert code == 0 and len(lines) == 3
    assert [status in line for line, status in zip(lines, ("accepted", "running", "done"), strict=True)] == [True] * 3
    assert lines[1].endswith("w" * 300)


def test_pauses_grow_while_nothing_changes_and_never_are_short() -> None:
    _, _, time = follow(*[state("accepted")] * 20, state("running"), state("done", 1))
    assert time.pauses[0] == SHORTEST
    assert time.pauses[:20] == sorted(time.pauses[:20]) and time.pauses[19] == LONGEST
    assert time.pauses[20] == SHORTEST, "after a change it is looked at soon again"
    assert all(SHORTEST <= pause <= LONGEST for pause in time.pauses)


def test_the_exit_code_shows_that_the_time_is_over() -> None:
    code, _, time = follow(state("running"), timeout=12)
    assert code == TIME_OVER == 4
    assert time.now == 12
    assert follow(state("running"), timeout=0)[2].pauses == []
    assert follow(state("done", 1), timeout=0)[0] == FAILED, "what has ended is not reported as late"


def test_ctrl_c_ends_following_with_its_own_exit_code() -> None:
    assert follow(state("running"), time=Time(end=30))[0] == INTERRUPTED == 130


def test_a_platform_that_does_not_answer_for_a_while_is_asked_again() -> None:
    away = Unavailable("GET /x: no answer")
    code, shown, _ = follow(state("running"), away, away, away, state("done", 0))
    assert code == 0
    assert shown.count("no answer") == 1
    with pytest.raises(NotFound):
        follow(state("running"), NotFound("gone"))
    assert follow(away, timeout=9)[0] == TIME_OVER


def test_on_a_terminal_the_rows_are_a_live_table() -> None:
    console = Console(file=StringIO(), force_terminal=True, width=80)
    time = Time()
    live.follow(looks(state("running"), state("done", 0)), console, None, sleep=time.sleep, clock=time.clock)
    assert "SUBJECT" in text(console) and "\x1b[" in text(console)


def test_a_timeout_without_wait_is_refused() -> None:
    with pytest.raises(RequestError, match="pass both"):
        Answer(as_json=False, wait=False, timeout=5)


# -- status --watch --------------------------------------------------------------------------------------------------


def table(status: str) -> list[Section]:
    return [Section(INSTANCES, [view.instance_row(instance(status=status))], "")]


def test_watch_prints_a_table_in_a_pipe_when_something_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    console, time = pipe(), Time(end=60)
    monkeypatch.setattr(view, "out", console)
    monkeypatch.setattr(view, "err", pipe())
    away = Unavailable("GET /x: no answer")
    live.watch(looks(table("deploying"), table("deploying"), away, table("running")), wide=False, sleep=time.sleep)
    assert text(console).count("INSTANCE") == 2
    assert text(console).count("deploying") == text(console).count("running") == 1
    assert "no answer" in text(view.err)
    assert min(time.pauses) >= SHORTEST and max(time.pauses) == LONGEST


@pytest.mark.parametrize("wide", [False, True])
def test_watch_redraws_on_a_terminal_and_cuts_nothing_off(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=100 if wide else 70, soft_wrap=True)
    monkeypatch.setattr(view, "out", console)
    live.watch(looks(table("deploying"), table("running")), wide=wide, sleep=Time(end=20).sleep)
    assert "running" in text(console) and "\x1b[" in text(console)
    last_line_of_the_id = "000007\n"
    assert (last_line_of_the_id in text(console)) == wide
