"""A worker that is drained or removed, one decision at a time: whole steps and whole plays until nothing runs on it."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from runner.model.names import host_name
from runner.model.plan import AdapterError, Wait
from runner.model.platform import Member
from runner.model.records import NotedError
from runner.slurm import detail
from runner.slurm.decide.members import unreadable_note
from runner.slurm.decide.workers import leave
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.notes import WorkerNotes
from runner.slurm.snapshot import Job, Snapshot
from tests.unit.leave_steps import (
    ASKED,
    DRAINED,
    FULL,
    OWNER,
    WAITS,
    as_shown,
    at,
    leaving,
    note,
    seen,
    shown_jobs,
    step,
    waits,
    writes,
)
from tests.unit.lifecycle import serving
from tests.unit.worlds import NOW, THEIR_CLAIM, THEY_HOLD_IT, node

UNKNOWN = "the controller did not answer; nothing is assumed"
RUNS = Job(id=7, address="7", state="RUNNING", nodes=["w2"], end_time=NOW + timedelta(hours=1))
SHORT = Job(id=5, address="5", state="RUNNING", nodes=["w2"], end_time=NOW + timedelta(minutes=1))
ENDS = Job(id=8, address="8", state="COMPLETING", nodes=["w2"])


# -- begin ---------------------------------------------------------------------------------------------------


def test_a_note_is_about_one_operation() -> None:
    ended, other = leaving(note(result="failed")), UUID(int=51)
    assert leave.of_operation(ended, ASKED) == note(result="failed") and leave.of_operation(ended, other) is None
    assert leave.belongs_to(ended, ASKED) and not leave.belongs_to(ended, other)
    assert not leave.belongs_to(serving(2), ASKED)
    assert (leave.result(ended, ASKED), leave.result(ended, other)) == ("failed", None)
    assert leave.result(leaving(note()), ASKED) is None and leave.result(serving(2), ASKED) is None


DEADLINE = AdapterError("drain_deadline", "it still runs a job").as_note(NOW)


@pytest.mark.parametrize(
    ("of_the_leave", "shown", "ends"),
    [
        (DEADLINE, DEADLINE, True),
        (DEADLINE, AdapterError("clock_skew", "m").as_note(NOW), False),
        (DEADLINE, AdapterError("drain_deadline", "m").as_note(NOW + timedelta(hours=1)), False),
        (None, DEADLINE, False),
        (DEADLINE, None, False),
    ],
)
def test_a_new_request_ends_the_error_of_the_one_before_and_no_other(
    of_the_leave: NotedError | None, shown: NotedError | None, ends: bool
) -> None:
    before = leaving(note(result="failed", error=of_the_leave))
    stored = {**before.adapter_detail, "last_adapter_error": shown and shown.stored()}
    changes = leave.without_former_error(before.model_copy(update={"adapter_detail": stored}))
    assert changes == (WorkerNotes(last_adapter_error=None).changes if ends else {})
    assert leave.without_former_error(serving(2)) == {}


@pytest.mark.parametrize(
    ("verb", "registered", "status", "wanted"),
    [
        ("drain", True, "ready", ("draining", "draining")),
        ("drain", None, "ready", ("draining", "draining")),
        ("remove", True, "ready", ("draining", "draining")),
        ("remove", True, "deleting", ("deleting", "stopping")),
        ("drain", True, "deleting", ("deleting", "stopping")),
        ("remove", None, "failed", ("deleting", "stopping")),
        ("decommission", False, "ready", ("deleting", "stopping")),
    ],
)
def test_a_leave_begins_with_its_note(verb: Any, registered: Any, status: str, wanted: tuple[str, str]) -> None:
    member = serving(2, status=status, adapter_detail={"registered_in_controller": registered})
    begun = note(verb, started_at=NOW)
    changes = WorkerNotes(leave=begun, phase=wanted[1]).changes
    assert step(at(member, None), member, verb) == writes(f"{verb} begins", member, wanted[0], changes)
    untouched = WorkerNotes(leave=begun.but(untouched=True), phase=wanted[1]).changes
    assert leave.begin(at(member, None), member, ASKED, verb, untouched=True).detail == untouched


def test_a_leave_does_not_begin_while_another_runner_holds_the_member() -> None:
    member = serving(2, adapter_detail=THEIR_CLAIM)
    assert step(at(member, None), member) == waits(member, THEY_HOLD_IT)


def test_a_leave_that_has_begun_goes_on_unless_a_note_cannot_be_read() -> None:
    held = leaving(note(), **THEIR_CLAIM)
    drains = {f"{OWNER}: remove requested": [held]}
    assert step(at(held, None), held) == ([], WantedPlays(drains=drains))
    odd = leaving(note(), fence="text")
    now, why = at(odd, None), unreadable_note(odd)
    assert why and step(now, odd) == waits(odd, why)


def test_a_leave_that_has_a_result_is_over() -> None:
    member = leaving(note(result="done"), fence="text")
    assert step(at(member, seen(FULL)), member) == ([], WantedPlays())


# -- while it drains -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reason", "text"), [("", "remove requested"), ("new disk", "new disk")])
def test_a_worker_is_set_to_drain_in_every_tick(reason: str, text: str) -> None:
    member = leaving(note())
    wanted = WantedPlays(drains={f"{OWNER}: {text}": [member]})
    assert step(at(member, seen(FULL)), member, reason=reason) == ([], wanted)


@pytest.mark.parametrize("shown", [None, seen(nodes=None), seen(DRAINED, None)])
def test_nothing_is_assumed_of_a_controller_that_did_not_answer(shown: Snapshot | None) -> None:
    member = leaving(note())
    assert step(at(member, shown, "drain"), member) == waits(member, UNKNOWN)


@pytest.mark.parametrize(
    ("jobs", "shown", "left"),
    [
        ([RUNS, SHORT], ["5", "7"], "w2 is ALLOCATED+DRAIN with job 5, 7 on it"),
        ([], [], "w2 is ALLOCATED+DRAIN"),
    ],
)
def test_a_draining_worker_shows_its_jobs_and_waits(jobs: list[Job], shown: list[str], left: str) -> None:
    member = leaving(note())
    changes = shown_jobs(FULL, shown, RUNS.end_time if jobs else None)
    wait = Wait(left, host_name(member))
    assert step(at(member, seen(FULL, jobs), "drain"), member) == ([as_shown(member, changes), wait], WantedPlays())
    draining = leaving(note(), **changes)
    assert step(at(draining, seen(FULL, jobs), "drain"), draining) == waits(draining, left), "it is written once"


@pytest.mark.parametrize(("by", "holder"), [("slurm", "slurm"), ("ada", "person")])
def test_a_draining_worker_shows_who_holds_the_drain(by: str, holder: str) -> None:
    one, member = node(state="ALLOCATED", flags={"DRAIN"}, reason="disk", reason_by=by), leaving(note())
    changes, _ = step(at(member, seen(one), "drain"), member)[0]
    assert changes.detail["drain_held_by"] == holder


def test_a_job_that_waits_is_not_in_the_way_of_a_drain() -> None:
    waiting = Job(id=9, address="9", state="PENDING", nodes=["w2"])
    member = leaving(note())
    steps, plays = step(at(member, seen(FULL, [waiting]), "drain"), member, deadline_seconds=9, on_deadline="cancel")
    assert plays == WantedPlays() and isinstance(steps[-1], Wait)


def test_a_job_that_names_the_node_is_shown_until_it_does_not() -> None:
    member = leaving(note())
    changes = shown_jobs(FULL, [], None) | {"jobs_naming_node": ["9"]}
    left = "w2 is ALLOCATED+DRAIN, and job 9 waits for it by name"
    wanted = [as_shown(member, changes), Wait(left, host_name(member))], WantedPlays()
    assert step(at(member, seen(FULL, [WAITS]), "drain"), member) == wanted
    draining = leaving(note(), **changes)
    gone = as_shown(draining, shown_jobs(FULL, [], None) | {"jobs_naming_node": None})
    wait = Wait("w2 is ALLOCATED+DRAIN", host_name(draining))
    assert step(at(draining, seen(FULL), "drain"), draining) == ([gone, wait], WantedPlays())


def test_a_running_job_does_not_count_as_one_that_waits_for_the_node() -> None:
    running = RUNS.model_copy(update={"required_nodes": ["w2"]})
    member = leaving(note())
    (shown, _), _ = step(at(member, seen(FULL, [running]), "drain"), member)
    assert "jobs_naming_node" not in shown.detail


def test_a_drain_ends_when_nothing_is_on_the_worker() -> None:
    member = leaving(note("drain"))
    done = WorkerNotes(jobs=[], jobs_end_by=None, phase="drained", leave=note("drain", result="done")).changes
    changes = detail.of_worker(seen(DRAINED), "w2") | done
    wanted = writes("drained, and nothing on it", member, "draining", changes)
    assert step(at(member, seen(DRAINED), "drain"), member, "drain") == wanted


def ended(member: Member, verb: str, code: str, message: str, **changes: Any) -> Any:
    error = AdapterError(code, message).as_note(NOW)
    over = note(verb, result="failed", error=error, **changes)
    written = WorkerNotes(leave=over, last_adapter_error=error).changes
    return writes(f"{code}: {message}", member, member.status, written)


def test_a_drain_of_a_worker_that_never_joined_fails() -> None:
    member = leaving(note("drain"), worker_hostname=None)
    wanted = ended(member, "drain", "node_absent", f"{host_name(member)} never joined: there is nothing to drain")
    assert step(at(member, None), member, "drain") == wanted


def test_a_drain_of_a_node_that_the_controller_does_not_have_fails() -> None:
    member = leaving(note("drain"))
    wanted = ended(member, "drain", "node_absent", "the controller has no node w2: there is nothing to drain")
    assert step(at(member, seen(), "drain"), member, "drain") == wanted


# -- the deadline --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "is_over"), [(None, False), (101, False), (100, True), (99, True)])
def test_a_leave_is_given_up_only_at_its_deadline(seconds: int | None, is_over: bool) -> None:
    member = leaving(note(), **shown_jobs(FULL, ["7"], RUNS.end_time))
    now = at(member, seen(FULL, [RUNS]), "drain")
    wait = waits(member, "w2 is ALLOCATED+DRAIN with job 7 on it")
    resumes: Any = [], WantedPlays(resumes={OWNER: [member]})
    assert step(now, member, deadline_seconds=seconds) == (resumes if is_over else wait)


def test_a_leave_that_is_given_up_returns_the_worker_first() -> None:
    member = leaving(note())
    left = "w2 is ALLOCATED+DRAIN with job 7 on it"
    show = as_shown(member, shown_jobs(FULL, ["7"], RUNS.end_time))
    first = at(member, seen(FULL, [RUNS]), "drain")
    assert step(first, member, deadline_seconds=9) == ([show], WantedPlays(resumes={OWNER: [member]}))
    message = (
        f"the remove of {host_name(member)} did not complete within 9 s, and the worker was returned to service."
        f" Request it again with a longer deadline or another on_deadline. In the way: {left}"
    )
    wanted = ended(member, "remove", "drain_deadline", message)
    assert step(at(member, seen(FULL, [RUNS]), "drain", "resume"), member, deadline_seconds=9) == wanted
    partly = leaving(note(), "deleting", **shown_jobs(FULL, ["7"], RUNS.end_time))
    assert step(at(partly, seen(FULL, [RUNS]), "drain"), partly, deadline_seconds=9) == waits(partly, left)


@pytest.mark.parametrize(
    ("how", "plays"),
    [
        ("requeue", lambda member: WantedPlays(requeues={"7": member})),
        ("cancel", lambda member: WantedPlays(cancels={"7": member})),
    ],
)
def test_jobs_are_ended_at_the_deadline_once_that_is_announced(how: Any, plays: Any) -> None:
    terms, jobs = {"deadline_seconds": 9, "on_deadline": how}, [RUNS, ENDS, WAITS]
    member = leaving(note(announced_eviction="cancel of job 3"))
    announced = f"{how} of job 7"
    noted = WorkerNotes(leave=note(announced_eviction=f"cancel of job 3; {announced}")).changes
    now = at(member, seen(FULL, jobs), "drain")
    wanted = writes(f"the deadline has passed: {announced}", member, "draining", noted)
    assert step(now, member, **terms) == wanted
    shown = shown_jobs(FULL, ["7", "8"], RUNS.end_time) | {"jobs_naming_node": ["9"]}
    ready = leaving(note(announced_eviction=announced))
    now = at(ready, seen(FULL, jobs), "drain")
    assert step(now, ready, **terms) == ([as_shown(ready, shown)], plays(ready))
    done = leaving(note(announced_eviction=announced), **shown)
    left = "w2 is ALLOCATED+DRAIN with job 7, 8 on it"
    assert step(at(done, seen(FULL, jobs), "drain", "evict"), done, **terms) == waits(done, left)
    ends = leaving(note(), **shown_jobs(FULL, ["8"], None))
    only = at(ends, seen(FULL, [ENDS]), "drain")
    assert step(only, ends, **terms) == waits(ends, "w2 is ALLOCATED+DRAIN with job 8 on it")


# -- a leave that was cancelled ------------------------------------------------------------------------------


def test_a_cancelled_leave_returns_the_worker_to_service() -> None:
    member = leaving(note())
    assert leave.cancelled(at(member, None), member, note()) == ([], WantedPlays(resumes={OWNER: [member]}))
    for shown in (None, seen(nodes=None)):
        assert leave.cancelled(at(member, shown, "resume"), member, note()) == waits(member, UNKNOWN)
    changes = WorkerNotes(leave=note(result="cancelled")).changes
    wanted = writes("its operation was cancelled", member, "draining", changes)
    assert leave.cancelled(at(member, seen(), "resume"), member, note()) == wanted
    nameless = leaving(note(), worker_hostname=None)
    wanted = writes("its operation was cancelled", nameless, "draining", changes)
    assert leave.cancelled(at(nameless, None), nameless, note()) == wanted


def test_a_cancelled_leave_that_is_partly_off_its_host_goes_on() -> None:
    member = leaving(note(), "deleting")
    found = leave.cancelled(at(member, seen(DRAINED), "drain"), member, note())
    assert found == ([], WantedPlays(removes=[member]))
    drains = {f"{OWNER}: remove requested": [member]}
    assert leave.cancelled(at(member, None), member, note()) == ([], WantedPlays(drains=drains))
