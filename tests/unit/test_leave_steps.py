"""A worker on its way out, one decision at a time: whole steps and whole plays of each branch."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from runner.intent import host_keys
from runner.model.names import host_name
from runner.model.plan import AdapterError, SetMember, Wait, stamp
from runner.model.platform import Member
from runner.model.world import Outcome
from runner.slurm import detail
from runner.slurm.decide.members import unreadable_note
from runner.slurm.decide.workers import clean_host, leave
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.decide.workers.terms import LeaveTerms
from runner.slurm.notes import ControllerNotes, WorkerLeave, WorkerNotes
from runner.slurm.snapshot import Job, Node, Reservation, Snapshot
from runner.slurm.world import World
from tests.unit.lifecycle import cluster, serving
from tests.unit.worlds import KEY, ME, NOW, allocation, controller, keyless, node, not_found, snapshot

ASKED = UUID(int=50)
OWNER = f"gpuaas:{ASKED}"
BEGUN = NOW - timedelta(seconds=100)
BUSY = {"claimed_by": "other", "lease_expires_at": stamp(NOW + timedelta(minutes=1))}
HELD = f"runner other holds it until {stamp(NOW + timedelta(minutes=1))}"
DRAINED = node(flags={"DYNAMIC_NORM", "DRAIN"}, reason=OWNER, reason_by="slurm")
FULL = node(state="ALLOCATED", flags={"DRAIN"}, reason=OWNER, reason_by="slurm", jobs=["7"])
UNKNOWN = "the controller could not be asked; nothing is assumed"
UNCONFIRMED = "the controller has not confirmed that it is gone"
RUNS = Job(id=7, address="7", state="RUNNING", nodes=["w2"], end_time=NOW + timedelta(hours=1))
SHORT = Job(id=5, address="5", state="RUNNING", nodes=["w2"], end_time=NOW + timedelta(minutes=1))
ENDS = Job(id=8, address="8", state="COMPLETING", nodes=["w2"])
WAITS = Job(id=9, address="9", state="PENDING", required_nodes=["w2"])


def note(verb: Any = "remove", **changes: Any) -> WorkerLeave:
    return WorkerLeave(**({"operation_id": ASKED, "verb": verb, "started_at": BEGUN} | changes))


def leaving(known: WorkerLeave, status: str = "draining", **changes: Any) -> Member:
    return serving(2, status=status, adapter_detail={"leave": known.stored()} | changes)


def seen(one: Node | None = None, jobs: Sequence[Job] | None = (), **changes: Any) -> Snapshot:
    update = {"jobs": None if jobs is None else list(jobs), "reservations": []} | changes
    return snapshot({} if one is None else {"w2": one}).model_copy(update=update)


def at(member: Member, shown: Snapshot | None, *done: str, **changes: Any) -> World:
    return cluster(member).later(snapshot=shown, played=frozenset((act, member.id) for act in done), **changes)


def waits(member: Member, why: str) -> Any:
    return [Wait(why, host_name(member))], WantedPlays()


def writes(why: str, member: Member, status: str, changes: dict[str, Any]) -> Any:
    return [SetMember(why, member, status, changes)], WantedPlays()


def step(now: World, member: Member, verb: Any = "remove", **terms: Any) -> Any:
    return leave.leave(now, member, ASKED, verb, LeaveTerms(**terms))


# -- begin ---------------------------------------------------------------------------------------------------


def test_a_note_is_about_one_operation() -> None:
    ended, other = leaving(note(result="failed")), UUID(int=51)
    assert leave.of_operation(ended, ASKED) == note(result="failed") and leave.of_operation(ended, other) is None
    assert leave.belongs_to(ended, ASKED) and not leave.belongs_to(ended, other)
    assert not leave.belongs_to(serving(2), ASKED)
    assert (leave.result(ended, ASKED), leave.result(ended, other)) == ("failed", None)
    assert leave.result(leaving(note()), ASKED) is None and leave.result(serving(2), ASKED) is None


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
    member = serving(2, adapter_detail=BUSY)
    assert step(at(member, None), member) == waits(member, HELD)


def test_a_leave_that_has_begun_goes_on_unless_a_note_cannot_be_read() -> None:
    held = leaving(note(), **BUSY)
    drains = {f"{OWNER}: remove asked for": [held]}
    assert step(at(held, None), held) == ([], WantedPlays(drains=drains))
    odd = leaving(note(), fence="text")
    now, why = at(odd, None), unreadable_note(odd)
    assert why and step(now, odd) == waits(odd, why)


def test_a_leave_that_has_a_result_is_over() -> None:
    member = leaving(note(result="done"), fence="text")
    assert step(at(member, seen(FULL)), member) == ([], WantedPlays())


# -- while it drains -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reason", "words"), [("", "remove asked for"), ("new disk", "new disk")])
def test_a_worker_is_set_to_drain_in_every_tick(reason: str, words: str) -> None:
    member = leaving(note())
    wanted = WantedPlays(drains={f"{OWNER}: {words}": [member]})
    assert step(at(member, seen(FULL)), member, reason=reason) == ([], wanted)


@pytest.mark.parametrize("shown", [None, seen(nodes=None), seen(DRAINED, None)])
def test_nothing_is_assumed_of_a_controller_that_did_not_answer(shown: Snapshot | None) -> None:
    member = leaving(note())
    assert step(at(member, shown, "drain"), member) == waits(member, UNKNOWN)


def shown_jobs(one: Node, jobs: list[str], until: Any, holder: str = "us") -> dict[str, Any]:
    notes = WorkerNotes(jobs=jobs, jobs_end_by=until, drain_held_by=holder)
    return detail.of_worker(seen(one), "w2") | notes.changes


def as_shown(member: Member, changes: dict[str, Any]) -> SetMember:
    return SetMember("as the controller shows it", member, member.status, changes)


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
    known = leaving(note(), **changes)
    assert step(at(known, seen(FULL, jobs), "drain"), known) == waits(known, left), "it is written once"


def test_a_job_that_names_the_node_is_shown_until_it_does_not() -> None:
    member = leaving(note())
    changes = shown_jobs(FULL, [], None) | {"jobs_naming_node": ["9"]}
    left = "w2 is ALLOCATED+DRAIN, and job 9 waits for it by name"
    wanted = [as_shown(member, changes), Wait(left, host_name(member))], WantedPlays()
    assert step(at(member, seen(FULL, [WAITS]), "drain"), member) == wanted
    known = leaving(note(), **changes)
    gone = as_shown(known, shown_jobs(FULL, [], None) | {"jobs_naming_node": None})
    wait = Wait("w2 is ALLOCATED+DRAIN", host_name(known))
    assert step(at(known, seen(FULL), "drain"), known) == ([gone, wait], WantedPlays())


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
    wanted = ended(member, "drain", "node_absent", "it never joined: there is nothing to drain")
    assert step(at(member, None), member, "drain") == wanted


def test_a_drain_of_a_node_that_the_controller_does_not_have_fails() -> None:
    member = leaving(note("drain"))
    wanted = ended(member, "drain", "node_absent", "the controller has no node w2: there is nothing to drain")
    assert step(at(member, seen(), "drain"), member, "drain") == wanted


# -- the deadline --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "is_over"), [(None, False), (101, False), (100, True), (99, True)])
def test_jobs_are_in_nobodys_way_before_the_deadline(seconds: int | None, is_over: bool) -> None:
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
    message = f"not free in 9 s, so given up: {left}"
    wanted = ended(member, "remove", "drain_deadline", message, announced_eviction="gave up")
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


# -- off the host --------------------------------------------------------------------------------------------


def test_a_removal_waits_for_jobs_that_name_the_node_until_the_deadline() -> None:
    member = leaving(note(), **shown_jobs(DRAINED, [], None), jobs_naming_node=["9"])
    now = at(member, seen(DRAINED, [WAITS]), "drain")
    left = "Job 9 waits for node w2 by name. Change it (scontrol update jobid=ID nodelist=) or cancel it."
    assert step(now, member) == waits(member, left)
    announced = "required nodes cleared of job 9"
    noted = WorkerNotes(leave=note(announced_eviction=announced)).changes
    wanted = writes(f"the deadline has passed: {announced}", member, "draining", noted)
    assert step(now, member, deadline_seconds=9, on_deadline="requeue") == wanted


def test_a_removal_waits_for_a_reservation_whatever_the_deadline() -> None:
    member = leaving(note())
    shown = seen(DRAINED, reservations=[Reservation(name="r", nodes=["w2"])])
    steps = [
        as_shown(member, shown_jobs(DRAINED, [], None)),
        Wait("Reservation r holds node w2. Take the node out of it, or delete it.", host_name(member)),
    ]
    assert step(at(member, shown, "drain"), member, deadline_seconds=9) == (steps, WantedPlays())


@pytest.mark.parametrize("shown", [seen(DRAINED), seen()])
def test_a_worker_with_nothing_on_it_is_deleted_next(shown: Snapshot) -> None:
    member = leaving(note())
    changes = WorkerNotes(phase="stopping").changes
    wanted = SetMember("nothing is on it any more", member, "deleting", changes, numbers=True)
    assert step(at(member, shown, "drain"), member) == ([wanted], WantedPlays())


def test_a_worker_that_never_joined_is_deleted_without_a_look() -> None:
    member = leaving(note(), "deleting", worker_hostname=None)
    assert step(at(member, None), member) == ([], WantedPlays(removes=[member]))


@pytest.mark.parametrize("homes", [True, False])
def test_a_worker_is_removed_from_its_host(homes: bool) -> None:
    member = leaving(note(), "deleting")
    wanted = WantedPlays(removes=[member], homes=[member] if homes else [])
    assert step(at(member, seen(DRAINED), "drain"), member, remove_homes=homes) == ([], wanted)


def test_a_removal_waits_for_another_runner_that_holds_the_member() -> None:
    member = leaving(note(), "deleting", **BUSY)
    assert step(at(member, seen(), "drain"), member) == waits(member, HELD)


def gone(member: Member, why: str, seen: WorkerNotes, **more: Any) -> Any:
    left = WorkerNotes(
        allocation_released_by="platform",
        last_adapter_error=None,
        leave=note(result="done"),
        registered_in_controller=False,
        node_state="ABSENT",
        slurmd_state="removed",
        jobs_remaining=0,
    )
    return writes(why, member, "deleted", seen.changes | left.changes | more)


def host_left(member: Member, because: str) -> Any:
    why = f"gone from Slurm; the host was not cleaned: {because}"
    return gone(member, why, WorkerNotes(phase="removed", host_cleaned=False, host_left=because))


def on(machine: Any, member: Member, shown: Snapshot | None, *done: str, **changes: Any) -> World:
    return at(member, shown, "drain", *done, allocations={machine.id: machine}, **changes)


RELEASED = allocation(2, status="released")


@pytest.mark.parametrize("machine", [RELEASED, not_found(2)])
def test_a_worker_without_a_machine_goes_out_of_slurm_alone(machine: Any) -> None:
    member, because = leaving(note(), "deleting"), "its allocation is released"
    assert step(on(machine, member, seen(DRAINED)), member) == ([], WantedPlays(forgets=[member]))
    assert step(on(machine, member, seen(DRAINED), "forget"), member) == waits(member, UNCONFIRMED)
    assert step(on(machine, member, seen(), "forget"), member) == host_left(member, because)
    assert step(on(machine, member, seen()), member) == host_left(member, because)
    nameless = leaving(note(), "deleting", worker_hostname=None)
    assert step(on(machine, nameless, None), nameless) == host_left(nameless, because)


def cleaning(now: World, member: Member, **terms: Any) -> Any:
    return clean_host.from_host(now, member, note(), LeaveTerms(**terms))


@pytest.mark.parametrize("shown", [None, seen(nodes=None)])
def test_a_controller_that_did_not_answer_confirms_nothing(shown: Snapshot | None) -> None:
    member = leaving(note(), "deleting")
    assert cleaning(on(RELEASED, member, shown, "forget"), member) == waits(member, UNCONFIRMED)


def test_another_machine_in_its_place_is_not_cleaned() -> None:
    machine = allocation(2)
    changed = host_keys.changed(KEY.split()[1], stamp(NOW))
    member = leaving(note(), "deleting", **changed)
    because = "another machine answers in its place (host_key_mismatch)"
    assert step(on(machine, member, seen()), member) == host_left(member, because)


def test_a_host_without_keys_on_which_nothing_was_set_up_is_not_cleaned() -> None:
    member = leaving(note(), "deleting", worker_hostname=None)
    because = "nothing was ever set up on it"
    assert step(on(keyless(2), member, seen()), member) == host_left(member, because)


@pytest.mark.parametrize("changes", [{"worker_hostname": "w2"}, {"host_touched": True}])
def test_a_host_without_keys_that_was_set_up_waits_for_them(changes: dict[str, Any]) -> None:
    member = leaving(note(), "deleting", **({"worker_hostname": None} | changes))
    (wait,), plays = step(on(keyless(2), member, seen()), member)
    assert isinstance(wait, Wait) and wait.subject == host_name(member) and plays == WantedPlays()
    assert str(member.allocation_id) in wait.why


def test_a_machine_that_cannot_be_used_now_is_waited_for() -> None:
    member = leaving(note(), "deleting")
    coming = on(allocation(2, status="provisioning"), member, seen())
    assert step(coming, member) == waits(member, f"allocation {member.allocation_id} is provisioning")
    broken = on(allocation(2, status="failed"), member, seen())
    message = f"allocation {member.allocation_id} is failed, not active: choose another one"
    assert step(broken, member) == waits(member, message)


def outcome(member: Member, *parts: Any, **changes: Any) -> World:
    shown = changes.pop("snapshot", seen())
    return at(member, shown, "drain", "remove", *changes.pop("done", ()), outcomes={member.id: Outcome(*parts)})


def test_a_clean_host_that_the_controller_forgot_is_the_end() -> None:
    member = leaving(note(), "deleting")
    why = "absent from the controller, and its host is clean"
    wanted = gone(member, why, WorkerNotes(phase="removed", host_cleaned=True), homes_left=["/home/ada"])
    assert step(outcome(member, "removed", {"homes_left": ["/home/ada"]}), member) == wanted
    assert cleaning(outcome(member, "removed", snapshot=seen(DRAINED)), member) == waits(member, UNCONFIRMED)
    assert step(outcome(member, "stopping"), member) == waits(member, UNCONFIRMED)
    unplayed = at(member, seen(), "drain", "remove")
    assert step(unplayed, member) == waits(member, "the play did not reach it; the next tick continues")


def test_a_worker_whose_host_does_not_answer_goes_without_it_in_the_end() -> None:
    member = leaving(note(), "deleting")
    wanted = host_left(member, "the host did not answer")
    assert step(outcome(member, None, {}, done=["forget"]), member) == wanted


def test_a_record_of_what_is_gone_is_not_claimed() -> None:
    free = {"claimed_by": None, "lease_expires_at": None}
    member = serving(2, adapter_detail={"claimed_by": ME})
    found = clean_host.gone(member, note(), {}, "why")
    assert {key: found.detail.get(key, "absent") for key in free} == free
    unclaimed = clean_host.gone(serving(2), note(), {}, "why")
    assert not set(free) & set(unclaimed.detail)


def test_a_controller_that_is_gone_shows_its_daemons_removed() -> None:
    member = controller()
    left = ControllerNotes(
        allocation_released_by="platform",
        last_adapter_error=None,
        leave=note(result="done"),
        slurmctld_state="removed",
        slurmdbd_state="removed",
    )
    found = clean_host.host_left(member, note(), "away", "why")
    notes = WorkerNotes(phase="removed", host_cleaned=False, host_left="away")
    assert found == SetMember("why: away", member, "deleted", notes.changes | left.changes)


# -- a removal that fails ------------------------------------------------------------------------------------


def failing(member: Member, error: AdapterError, known: WorkerLeave, **left: Any) -> dict[str, Any]:
    return left | WorkerNotes(leave=known, last_adapter_error=error.as_note(NOW)).changes


def test_a_host_that_does_not_answer_is_waited_for_with_patience() -> None:
    error = AdapterError("host_unreachable", "no route", "retryable")
    for since in (None, NOW - timedelta(seconds=59)):
        member = leaving(note(unreachable_since=since), "deleting")
        first = since or NOW
        why = f"its host does not answer; at {stamp(first + timedelta(seconds=60))} it is taken out without it"
        changes = failing(member, error, note(unreachable_since=first), residue=["/etc/slurm"])
        wanted = [SetMember(why, member, "deleting", changes), Wait(why, host_name(member))], WantedPlays()
        now = outcome(member, None, {"residue": ["/etc/slurm"], "cpus": 2}, error)
        assert step(now, member, host_patience_seconds=60) == wanted
    member = leaving(note(unreachable_since=NOW - timedelta(seconds=60)), "deleting")
    found = step(outcome(member, None, {}, error), member, host_patience_seconds=60)
    assert found == ([], WantedPlays(forgets=[member]))


@pytest.mark.parametrize("code", clean_host.NOT_YET)
def test_what_is_in_the_way_of_a_removal_is_not_a_failed_attempt(code: str) -> None:
    error = AdapterError(code, "in the way")
    member = leaving(note(unreachable_since=NOW), "deleting")
    changes = failing(member, error, note())
    wanted = [SetMember(code, member, "deleting", changes), Wait("in the way", host_name(member))], WantedPlays()
    boss = cluster().members[0]
    shown_busy = outcome(member, None, {}, error, snapshot=seen(FULL))
    silent = outcome(member, None, {}, error)
    silent = silent.later(outcomes={**silent.outcomes, boss.id: Outcome(error=AdapterError("odd", "x"))})
    unseen = outcome(member, None, {}, error, snapshot=None)
    for now in (shown_busy, silent, unseen):
        assert cleaning(now, member) == wanted
    over = failing(member, error, note(result="failed", error=error.as_note(NOW)))
    free = outcome(member, None, {}, error)
    free = free.later(outcomes={**free.outcomes, boss.id: Outcome("serving")})
    assert cleaning(free, member) == writes(f"{code}: in the way", member, "failed", over)
    nameless = leaving(note(), "deleting", worker_hostname=None)
    over = failing(nameless, error, note(result="failed", error=error.as_note(NOW)))
    now = outcome(nameless, None, {}, error, snapshot=seen(DRAINED))
    assert cleaning(now, nameless) == writes(f"{code}: in the way", nameless, "failed", over)


@pytest.mark.parametrize("klass", ["retryable", "intervention"])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_removal_is_tried_again_as_often_as_the_policy_allows(before: int, klass: Any) -> None:
    error = AdapterError("task_failed", "disk full", klass)
    attempts = note().attempts.but(count=before)
    known = note(attempts=attempts)
    member = leaving(known, "deleting")
    now = outcome(member, None, {}, error)
    assert now.policy.max_attempts == 3
    found = clean_host.from_host(now, member, known, LeaveTerms.model_validate({}))
    if before < 2 and klass == "retryable":
        why = f"task_failed: try {before + 1} of 3"
        again = known.but(attempts=attempts.failed(NOW, "task_failed"))
        wait = Wait(f"the next tick tries again after {why}", host_name(member))
        assert found == (
            [SetMember(why, member, "deleting", failing(member, error, again)), wait],
            WantedPlays(),
        )
    else:
        over = failing(member, error, known.but(result="failed", error=error.as_note(NOW)))
        assert found == writes("task_failed: disk full", member, "failed", over)


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
    drains = {f"{OWNER}: remove asked for": [member]}
    assert leave.cancelled(at(member, None), member, note()) == ([], WantedPlays(drains=drains))
