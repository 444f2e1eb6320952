"""A worker that leaves its host, one decision at a time: whole steps and plays until it is gone or that failed."""

from datetime import timedelta
from typing import Any

import pytest

from runner.intent import host_keys
from runner.model.names import host_name
from runner.model.plan import AdapterError, SetMember, Wait, stamp
from runner.model.platform import Member
from runner.model.world import Outcome
from runner.slurm.decide.workers import clean_host
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.decide.workers.terms import LeaveTerms
from runner.slurm.notes import ControllerNotes, WorkerLeave, WorkerNotes
from runner.slurm.snapshot import Reservation, Snapshot
from runner.slurm.world import World
from tests.unit.leave_steps import (
    DRAINED,
    FULL,
    IN_USE,
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
from tests.unit.lifecycle import cluster, serving
from tests.unit.worlds import (
    KEY,
    ME,
    NOW,
    THEIR_CLAIM,
    THEY_HOLD_IT,
    UNREACHABLE,
    allocation,
    controller,
    keyless,
    not_found,
)

UNCONFIRMED = "the controller has not confirmed that it is gone"


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
    wanted = SetMember("no job is on the node", member, "deleting", changes, new_fence=True)
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
    member = leaving(note(), "deleting", **THEIR_CLAIM)
    assert step(at(member, seen(), "drain"), member) == waits(member, THEY_HOLD_IT)


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
    return clean_host.remove_from_host(now, member, note(), LeaveTerms(**terms))


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
    lent = leaving(note(), "deleting", host_touched=True).model_copy(update={"source_project_id": member.id})
    ([left], _) = step(outcome(lent, "removed"), lent)
    assert left.detail["munge_key_left_at"] == stamp(NOW)


def test_a_worker_whose_host_does_not_answer_goes_without_it_in_the_end() -> None:
    member = leaving(note(), "deleting")
    wanted = host_left(member, "the host did not answer")
    assert step(outcome(member, None, {}, done=["forget"]), member) == wanted


def test_a_record_of_what_is_gone_is_not_claimed() -> None:
    free = {"claimed_by": None, "lease_expires_at": None}
    member = serving(2, adapter_detail={"claimed_by": ME})
    found = clean_host.deleted(member, note(), {}, "why")
    assert {key: found.detail.get(key, "absent") for key in free} == free
    unclaimed = clean_host.deleted(serving(2), note(), {}, "why")
    assert not set(free) & set(unclaimed.detail) and found.detail == unclaimed.detail | free


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


def failing(member: Member, error: AdapterError, leave_note: WorkerLeave, **left: Any) -> dict[str, Any]:
    return left | WorkerNotes(leave=leave_note, last_adapter_error=error.as_note(NOW)).changes


def test_attempts_are_counted_while_the_node_is_still_in_slurm() -> None:
    error = AdapterError("apt_failed", "locked", "retryable")
    member = leaving(note(attempts=note().attempts.failed(NOW, "apt_failed")), "deleting")
    (changed, _), _ = step(outcome(member, None, {}, error, snapshot=seen(DRAINED)), member)
    assert changed.detail["leave"]["attempts"]["count"] == 2


def test_a_host_that_does_not_answer_is_waited_for_with_patience() -> None:
    error = UNREACHABLE
    for since in (None, NOW - timedelta(seconds=59)):
        member = leaving(note(unreachable_since=since), "deleting")
        first = since or NOW
        why = f"its host does not answer; at {stamp(first + timedelta(seconds=60))} it is removed without its host"
        changes = failing(member, error, note(unreachable_since=first), residue=["/etc/slurm"])
        wanted = [SetMember(why, member, "deleting", changes), Wait(why, host_name(member))], WantedPlays()
        now = outcome(member, None, {"residue": ["/etc/slurm"], "cpus": 2}, error)
        assert step(now, member, host_patience_seconds=60) == wanted
    member = leaving(note(unreachable_since=NOW - timedelta(seconds=60)), "deleting")
    found = step(outcome(member, None, {}, error), member, host_patience_seconds=60)
    assert found == ([], WantedPlays(forgets=[member]))


@pytest.mark.parametrize("code", IN_USE)
def test_what_is_in_the_way_of_a_removal_is_not_a_failed_attempt(code: str) -> None:
    error = AdapterError(code, "in the way")
    member = leaving(note(unreachable_since=NOW), "deleting")
    changes = failing(member, error, note())
    wanted = [SetMember(code, member, "deleting", changes), Wait("in the way", host_name(member))], WantedPlays()
    boss = cluster().members[0]
    shown_busy = outcome(member, None, {}, error, snapshot=seen(FULL))
    controller_failed = outcome(member, None, {}, error)
    controller_failed = controller_failed.later(
        outcomes={**controller_failed.outcomes, boss.id: Outcome(error=AdapterError("odd", "x"))}
    )
    not_shown = outcome(member, None, {}, error, snapshot=None)
    for now in (shown_busy, controller_failed, not_shown):
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
    stored = note(attempts=attempts)
    member = leaving(stored, "deleting")
    now = outcome(member, None, {}, error)
    assert now.policy.max_attempts == 3
    found = clean_host.remove_from_host(now, member, stored, LeaveTerms.model_validate({}))
    if before < 2 and klass == "retryable":
        why = f"task_failed: try {before + 1} of 3"
        again = stored.but(attempts=attempts.failed(NOW, "task_failed"))
        wait = Wait(f"the next tick tries again after {why}", host_name(member))
        assert found == (
            [SetMember(why, member, "deleting", failing(member, error, again)), wait],
            WantedPlays(),
        )
    else:
        over = failing(member, error, stored.but(result="failed", error=error.as_note(NOW)))
        assert found == writes("task_failed: disk full", member, "failed", over)
