"""What members and operations wait for, in a sentence, from the platform's records alone."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from runner.model.platform import Member, Operation
from runner.slurm import waiting
from runner.slurm.notes import WorkerLeave, WorkerNotes
from runner.slurm.waiting import NO_RUNNER
from tests.unit.lifecycle import ask, ask_whole, serving
from tests.unit.worlds import NOW, add, claimed_by_us, controller, instance, worker

PATIENCE = timedelta(seconds=90)
SOON = NOW + timedelta(seconds=10)


def draining(operation: Operation, status: str = "draining", verb: str = "drain", **noted: Any) -> Member:
    left = {key: noted.pop(key) for key in ("unreachable_since", "result") if key in noted}
    leave = WorkerLeave.model_validate({"operation_id": operation.id, "verb": verb, "started_at": NOW, **left})
    return serving(2, status=status, adapter_detail=WorkerNotes(leave=leave, **noted).changes)


def of_operation(
    operation: Operation, *members: Member, others: tuple[Operation, ...] = (), now: datetime = SOON, **changes: Any
) -> str | None:
    shown = instance(**{"status": "running", "created_at": NOW} | changes)
    found = (controller(status=changes.get("controller", "ready")), *members)
    return waiting.of_operation(operation, shown, found, (operation, *others), now, PATIENCE)


# -- members ---------------------------------------------------------------------------------------------------------


def test_a_draining_worker_names_its_jobs_and_until_when_they_run() -> None:
    member = draining(ask("drain"), jobs=["41", "42_7"], jobs_remaining=2, jobs_end_by=NOW + timedelta(hours=1))
    assert waiting.of_member(member, [], NOW) == "waits for job 41, 42_7 (end by 04:04:05Z at the latest)"


def test_a_draining_worker_counts_the_jobs_that_its_record_does_not_list() -> None:
    asked = ask("drain")
    assert "job 41 and 6 more (no known end)" in str(
        waiting.of_member(draining(asked, jobs=["41"], jobs_remaining=7), [], NOW)
    )
    assert "waits for 7 job(s)" in str(waiting.of_member(draining(asked, jobs_remaining=7), [], NOW))


@pytest.mark.parametrize(
    ("terms", "then"),
    [
        ({}, "the drain is given up"),
        ({"on_deadline": "requeue"}, "they are requeued"),
        ({"on_deadline": "cancel"}, "they are cancelled"),
    ],
)
def test_a_draining_worker_shows_its_deadline_and_what_happens_then(terms: dict[str, Any], then: str) -> None:
    asked = ask("drain", parameters={"deadline_seconds": 600, **terms})
    member = draining(asked, jobs=["41"], jobs_remaining=1)
    shown = waiting.of_member(member, [ask("add"), asked], NOW)
    assert shown == f"waits for job 41 (no known end); at the deadline, 03:14:05Z, {then}"


@pytest.mark.parametrize("seconds", [None, "600", -1, 10**18, 1.5])
def test_a_deadline_that_cannot_be_read_is_not_shown(seconds: Any) -> None:
    asked = ask("drain", parameters={"deadline_seconds": seconds})
    shown = waiting.of_member(draining(asked, jobs=["41"], jobs_remaining=1), [asked], NOW)
    assert shown == "waits for job 41 (no known end)"


def test_a_time_on_another_day_has_its_date() -> None:
    member = draining(ask("drain"), jobs=["41"], jobs_end_by=NOW + timedelta(days=2))
    assert "end by 2026-01-04 03:04:05Z" in str(waiting.of_member(member, [], NOW))


def test_a_leaving_worker_names_jobs_that_wait_for_its_node() -> None:
    member = draining(ask("remove"), verb="remove", jobs=[], jobs_remaining=0, jobs_naming_node=["9"])
    assert waiting.of_member(member, [], NOW) == "waits for job 9, which names the node"


def test_a_worker_without_jobs_waits_until_its_node_is_drained() -> None:
    member = draining(ask("drain"), jobs=[], jobs_remaining=0, node_state="COMPLETING+DRAIN")
    assert waiting.of_member(member, [], NOW) == "waits until its node is drained; it is COMPLETING+DRAIN"


def test_a_removal_shows_since_when_the_host_does_not_answer() -> None:
    member = draining(ask("remove"), status="deleting", verb="remove", unreachable_since=NOW)
    assert waiting.of_member(member, [], SOON) == "waits for its host, which has not answered since 03:04:05Z"


@pytest.mark.parametrize(
    "member",
    [
        serving(2),
        draining(ask("drain"), result="done", jobs=["41"], jobs_remaining=1),
        draining(ask("drain"), status="deleted", jobs=["41"], jobs_remaining=1),
        draining(ask("drain"), status="failed", jobs=["41"], jobs_remaining=1),
        draining(ask("resume"), verb="resume", jobs=["41"], jobs_remaining=1),
    ],
    ids=["ready", "drained", "deleted", "failed", "resumed"],
)
def test_a_member_that_waits_for_nothing_shows_nothing(member: Member) -> None:
    assert waiting.of_member(member, [], NOW) is None


def test_a_member_that_is_tried_again_shows_when() -> None:
    due = WorkerNotes(attempt=1, next_attempt_at=SOON).changes
    member = worker(add(2), 2, status="reconciling", adapter_detail=due)
    assert waiting.of_member(member, [], NOW) == "retries at 03:04:15Z"
    assert waiting.of_member(member, [], SOON) is None


# -- operations ------------------------------------------------------------------------------------------------------


def test_an_operation_on_members_shows_what_each_of_them_waits_for() -> None:
    asked = claimed_by_us(ask("drain"))
    member = draining(asked, jobs=["41"], jobs_remaining=1)
    assert of_operation(asked, member) == "w2 waits for job 41 (no known end)"
    other = draining(ask("drain"), jobs=["99"], jobs_remaining=1)
    assert "99" not in str(of_operation(asked, member, other))


def test_an_operation_on_many_members_names_some_and_counts_the_rest() -> None:
    asked = claimed_by_us(ask("drain"))
    shown = str(of_operation(asked, *(draining(asked, jobs=[str(n)], jobs_remaining=1) for n in range(1, 9))))
    assert shown.count("waits for job") == 5 and shown.endswith("; and 3 more members wait")


def test_an_operation_waits_for_one_on_the_instance() -> None:
    stop = claimed_by_us(ask_whole("stop"))
    for asked in (ask("drain", serving(2)), ask_whole("restart")):
        assert of_operation(asked, others=(stop,)) == f"waits: {stop.label} is under way"


def test_an_operation_waits_while_a_cancelled_one_is_undone() -> None:
    note = {"format": 2, "operation_id": str(ask("x").id), "verb": "stop", "started_at": "2026-01-02T03:04:05Z"}
    assert of_operation(ask("drain"), status_detail={"lifecycle": note}) == "waits: stop of the instance is under way"


def test_an_operation_on_the_instance_shows_its_own_note() -> None:
    asked = claimed_by_us(ask_whole("stop"))
    note = {"format": 2, "operation_id": str(asked.id), "verb": "stop", "started_at": "2026-01-02T03:04:05Z"}
    assert of_operation(asked, status_detail={"lifecycle": note | {"phase": "stopping"}}) == "stopping"
    noted = note | {"phase": "stopping", "waiting": "waits for job 4"}
    assert of_operation(asked, status_detail={"lifecycle": noted}) == "waits for job 4"


def test_an_operation_waits_for_an_earlier_one_on_the_same_member() -> None:
    member = serving(2)
    first, second = ask("drain", member), ask("remove", member, age=1)
    assert of_operation(second, others=(first,)) == f"waits: {first.label} is about the same member and came first"
    assert "came first" not in str(of_operation(first, others=(second,)))
    assert "came first" not in str(of_operation(ask("remove", serving(3), age=1), others=(first,)))


def test_an_add_of_a_new_cluster_waits_for_its_controller() -> None:
    shown = of_operation(add(2), status="deploying", controller="reconciling")
    assert shown == "waits for the controller, which is reconciling"


def test_a_running_operation_names_the_runner_that_holds_it() -> None:
    held = claimed_by_us(ask("resume", serving(2)))
    assert of_operation(held) == f"{held.claimed_by} works on it"
    assert of_operation(held, now=NOW + timedelta(hours=1)) == "no runner holds it now; the next run continues"


def test_an_unclaimed_operation_shows_that_no_runner_seems_to_work() -> None:
    asked = ask("resume", serving(2))
    assert of_operation(asked) == "waits for a runner to take it"
    late = of_operation(asked, now=NOW + PATIENCE)
    assert late == f"nothing has taken it since 03:04:05Z; {NO_RUNNER}"
    new = of_operation(add(2), now=NOW + PATIENCE, status="requested", controller="requested")
    assert NO_RUNNER in str(new)
    behind = of_operation(asked, others=(claimed_by_us(ask_whole("stop")),), now=NOW + PATIENCE)
    assert NO_RUNNER not in str(behind), "it waits for another operation"


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled"])
def test_an_operation_that_has_ended_waits_for_nothing(status: str) -> None:
    asked = ask("drain").model_copy(update={"status": status})
    assert of_operation(asked, draining(asked, jobs=["41"], jobs_remaining=1)) is None
