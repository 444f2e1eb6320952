"""Every record of a cluster with 1,000 or 8,192 workers fits the platform's limits, whatever went wrong on them.

At 8,192 workers a record that grows by only two bytes for each of them is above the limit of 16 KiB. What is kept for
people is measured with as many workers as Slurm takes.

Over 300 lines, because every kind of record is measured with the same largest members.
"""

import functools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from runner.model import limits, play_history
from runner.model.instance_notes import Reason, StatusDetail
from runner.model.limits import RECORD_BYTES, RecordTooLarge, size
from runner.model.plan import AdapterError, Claim, Finish, Refuse, SetInstance, SetMember, stamp
from runner.model.platform import Member, Operation
from runner.model.work_notes import HAND_NAMES, HandNote, HandNotes, HostRun, PlayHistory, PlayRun
from runner.model.world import Outcome, Policy, World
from runner.report import hand_record
from runner.slurm import detail
from runner.slurm.causes import CAUSES, Finding
from runner.slurm.decide import decide
from runner.slurm.decide.workers.operations import _finish_add, _finish_leave
from runner.slurm.health import _reason, health
from runner.slurm.snapshot import Node, Snapshot
from tests.unit.lifecycle import ask, ask_whole
from tests.unit.worlds import NOW, claimed_by_us, controller, instance, snapshot, world

COUNTS = (1_000, 8_192)
MOST_WORKERS = 65_533
MESSAGE_LIMIT = 4096  # of an operation's error, in contract/openapi.yaml
MOST_IN_ONE_OPERATION = 1_000  # member_ids and allocation_ids there
LONG = "the package manager ended with 100, and its last line was: " + "é" * 1_000
ERROR = AdapterError("host_unreachable", LONG, "repairable", "worker-00000000", "Run slurmd")
LOST = Outcome("registering", {}, ERROR)
REPAIR = {"why": "worker_down", "attempts": 3, "last_at": stamp(NOW), "next_at": stamp(NOW), "outcome": "x" * 64}


def by_hand() -> HandNotes:
    """As large as it gets: with what cannot be read beside it."""
    found, _ = HandNotes.of({"notes": [{"odd": "x" * 100}] * 40})
    note = HandNote(
        correlation_id="c" * 128,
        verb="exec",
        who="user/" + "é" * 200,
        why="é" * 500,
        command="é" * 500,
        hosts=[f"worker-{number:08}" for number in range(HAND_NAMES)],
        hosts_count=MOST_WORKERS,
        started_at=NOW,
        ended_at=NOW,
        exit_code=255,
        problem="é" * 500,
    )
    for number in range(20):
        found = hand_record.with_note(found, note.but(correlation_id=f"{number:0128}"))
    return found


def run(count: int, number: int = 0, outcome: str = "host_unreachable") -> PlayRun:
    host = HostRun(outcome=outcome, first_at=NOW, last_at=NOW)
    return PlayRun(
        playbook="add_worker",
        started_at=NOW + timedelta(minutes=number),
        ended_at=NOW + timedelta(minutes=number + 1),
        result="failed",
        rule="r" * 80,
        why="é" * 500,
        correlation_id="c" * 128,
        hosts={f"worker-{one:08}": host for one in range(count)},
        hosts_count=count,
    )


def own_plays(count: int) -> PlayHistory:
    history = PlayHistory()
    for number in range(60):
        history = play_history.with_run(history, run(count if number % 20 == 19 else 9, number))
    return play_history.fitted(history, play_history.OWN_BYTES)


# What an instance keeps for people, at every write: as large as it gets.
FOR_PEOPLE = StatusDetail(own_plays=own_plays(100), by_hand=by_hand()).changes


@functools.cache
def workers(count: int) -> tuple[Member, ...]:
    """Serving workers, each with the notes that the longest life could have left on it."""
    recorded = detail.blank("worker", UUID(int=3)) | {
        "registered_in_controller": True,
        "phase": "serving",
        "cpus": 256,
        "memory_mb": 2_000_000,
        "gpus": 8,
        "repair": REPAIR,
        "last_adapter_error": ERROR.as_note(NOW).stored(),
    }
    return tuple(
        Member.model_construct(
            id=UUID(int=(number << 96) + number),
            app_instance_id=UUID(int=7),
            component_key="worker",
            allocation_id=UUID(int=100 + number),
            status="ready",
            adapter_detail=recorded | {"worker_hostname": f"gpu-node-{number:05}.rack-1"},
            correlation_id="corr",
            etag=None,
        )
        for number in range(1, count + 1)
    )


def altered(members: tuple[Member, ...], status: str, **recorded: Any) -> tuple[Member, ...]:
    return tuple(
        one.model_copy(update={"status": status, "adapter_detail": one.adapter_detail | recorded}) for one in members
    )


def seen(members: tuple[Member, ...], **changes: Any) -> Snapshot:
    fields = {"state": "IDLE", "flags": frozenset(), "cpus": 256, "memory_mb": 2_000_000, "gres": "gpu:8", "jobs": []}
    node = Node.model_validate(fields | changes)
    nodes = {str(one.adapter_detail["worker_hostname"]): node for one in members}
    return snapshot(None).model_copy(update={"nodes": nodes, "jobs": [], "partitions": {"main": "UP"}})


def under_way(verb: str, members: tuple[Member, ...], act: str | None, status: str = "running", **note: Any) -> World:
    """A cluster whose operation has come as far as the note shows, with the play of this tick behind it."""
    operation = claimed_by_us(ask_whole(verb, id=UUID(int=77)))
    recorded = {"operation_id": str(operation.id), "verb": verb, "since": stamp(NOW), "verdict": None, **note}
    reason = Reason(code="worker_down", message="x" * 400, member_id=str(UUID(int=1)), repair=REPAIR)
    shown = [one.stored() for one in limits.fit_reasons([reason] * 20)]
    status_detail = {"observed_at": stamp(NOW), "reasons": shown, "lifecycle": recorded, **FOR_PEOPLE}
    first = controller(status="ready", adapter_detail={"controller_hostname": "ctl"})
    played = {(act, one.id) for one in (first, *members)} if act else set()
    return world(
        instance=instance(status=status, health="healthy", status_detail=status_detail),
        members=(first, *members),
        instance_operations=(operation,),
        allocations={},
        played=frozenset(played),
        policy=Policy(max_attempts=1),
    )


def lost(now: World, phase: str) -> World:
    first, *others = now.members
    return now.later(outcomes={first.id: Outcome(phase)} | dict.fromkeys((one.id for one in others), LOST))


def rotation_without_workers(members: tuple[Member, ...]) -> World:
    return lost(under_way("rotate_credentials", members, "stage", phase="staging"), "staged").later(
        snapshot=seen(members)
    )


def rotation_that_all_missed(members: tuple[Member, ...]) -> World:
    return lost(under_way("rotate_credentials", members, "rotate", phase="switching"), "rotated")


def rotation_that_all_have(members: tuple[Member, ...]) -> World:
    now = under_way("rotate_credentials", members, "rotate", phase="switching")
    return now.later(outcomes={one.id: Outcome("rotated", {"switched_at": "1700000000.123456"}) for one in now.members})


def upgrade(members: tuple[Member, ...]) -> World:
    return lost(under_way("upgrade", members, "upgrade", phase="started"), "serving").later(snapshot=seen(members))


def rollback(members: tuple[Member, ...]) -> World:
    return lost(under_way("rollback", members, "rollback", phase="started"), "serving").later(snapshot=seen(members))


def stop(members: tuple[Member, ...]) -> World:
    return lost(under_way("stop", members, "stop", phase="stopping", partitions={"main": "UP"}), "stopped")


def start(members: tuple[Member, ...]) -> World:
    rested = altered(members, "requested", phase="stopped", stopped={"was": "ready", "phase": "serving"})
    now = under_way("start", rested, "start", "deploying", phase="starting", partitions={"main": "UP"})
    return lost(now, "serving").later(snapshot=seen(members))


def restart_of_a_dead_cluster(members: tuple[Member, ...]) -> World:
    return under_way("restart", members, "look").later(snapshot=seen(members, state="DOWN"))


def restart_from_which_no_worker_returns(members: tuple[Member, ...]) -> World:
    return lost(under_way("restart", members, "restart", after=stamp(NOW)), "serving").later(snapshot=seen(members))


def decommission(members: tuple[Member, ...]) -> World:
    error = ERROR.as_note(NOW).stored()
    note = {"operation_id": str(UUID(int=77)), "verb": "decommission", "verdict": "failed", "error": error}
    note |= {"tried_for": str(UUID(int=77)), "since": stamp(NOW), "did": "cancel of job 1"}
    stuck = altered(members, "failed", leave=note, residue=["/var/lib/slurm"] * 20, host_cleaned=False)
    terms = {"terms_of": str(UUID(int=77)), "terms_since": stamp(NOW), "keep_logs": False, "secrets_forgotten": True}
    now = under_way("decommission", stuck, "drain", "deleting", phase="begun", **terms)
    gone = now.members[0].model_copy(update={"status": "deleted"})
    return now.later(members=(gone, *stuck))


CASES: dict[str, Callable[[tuple[Member, ...]], World]] = {
    "rotate_credentials, no worker answers": rotation_without_workers,
    "rotate_credentials, every worker missed it": rotation_that_all_missed,
    "rotate_credentials, every worker has it": rotation_that_all_have,
    "upgrade": upgrade,
    "rollback": rollback,
    "stop": stop,
    "start": start,
    "restart, no worker served": restart_of_a_dead_cluster,
    "restart, no worker returns": restart_from_which_no_worker_returns,
    "decommission": decommission,
}


def records(now: World) -> Iterator[tuple[str, Any]]:
    """Every record that decide asks to write until it has nothing more to write without a play."""
    for _ in range(6):
        steps = decide(now).before_play
        if sum(isinstance(step, Claim) for step in steps) > 1:
            return  # every host is claimed for a play: nothing more is written before it
        written: dict[UUID, Member] = {}
        for number, step in enumerate(steps):
            if isinstance(step, SetMember):
                filled = {**detail.filled(step.member), **step.detail}
                changed = {"status": step.status, "adapter_detail": filled}
                written[step.member.id] = step.member.model_copy(update=changed)
                if number % 500 == 0:
                    yield "adapter_detail", filled
            elif isinstance(step, SetInstance):
                yield "status_detail", step.detail
                changed = {"status": step.status, "health": step.health, "status_detail": step.detail}
                now = now.later(instance=now.instance.model_copy(update=changed))
            elif isinstance(step, Finish):
                yield "result", step.result
                yield "error", step.error or {}
                now = now.without_operation(step.operation)
            elif isinstance(step, Claim):
                now = now.after(step)
            elif isinstance(step, Refuse):
                raise AssertionError(f"refused: {step.why}")
        now = now.later(members=tuple(written.get(one.id, one) for one in now.members))
        if not steps or not now.instance_operations:
            return


def check_all(found: list[tuple[str, Any]]) -> dict[str, int]:
    largest: dict[str, int] = {}
    for kind, record in found:
        largest[kind] = max(largest.get(kind, 0), size(record))
        assert size(record) <= RECORD_BYTES, (kind, {key: size(value) for key, value in record.items()})
        assert kind != "error" or len(str(record.get("message"))) <= MESSAGE_LIMIT
    return largest


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("case", CASES)
def test_records_of_an_instance_operation_fit(case: str, count: int) -> None:
    largest = check_all(list(records(CASES[case](workers(count)))))
    assert "status_detail" in largest, f"{case} wrote no note: the world of this test does not lead there"
    assert "result" in largest or case in ("rotate_credentials, no worker answers", "restart, no worker served")


def member_operation(verb: str, members: tuple[Member, ...]) -> Finish:
    targets = members[:MOST_IN_ONE_OPERATION]
    if verb == "add":
        operation = Operation(id=UUID(int=5), operation="add", status="running", correlation_id="c")
        return _finish_add(operation, altered(targets, "failed"))
    asked = ask(verb, *targets, id=UUID(int=5))
    note: dict[str, Any] = {"operation_id": str(asked.id), "since": stamp(NOW)}
    note["verb"] = "drain" if verb == "drain" else "remove"
    note |= {"verdict": "failed", "error": ERROR.as_note(NOW).stored()}
    note["did"] = "cancel of job " + ", ".join(map(str, range(4_000_000_000, 4_000_000_020))) + " and 900 more"
    left = altered(targets, "failed", leave=note, host_cleaned=False)
    return _finish_leave(asked, left, left if verb == "replace" else ())


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("verb", ["add", "drain", "resume", "remove", "replace"])
def test_results_of_a_member_operation_fit(verb: str, count: int) -> None:
    finish = member_operation(verb, workers(count))
    check_all([("result", finish.result), ("error", finish.error)])
    assert finish.result["more_members"] + len(finish.result["members"]) == MOST_IN_ONE_OPERATION


NODES: dict[str, dict[str, Any]] = {
    "worker_down": {"state": "DOWN", "reason": "é" * 1_000, "reason_by": "slurm"},
    "worker_not_responding": {"flags": {"NOT_RESPONDING"}, "reason": "é" * 1_000},
    "worker_invalid": {"flags": {"INVALID_REG", "DRAIN"}, "reason": "é" * 1_000, "reason_by": "slurm"},
    "worker_not_schedulable": {"flags": {"REBOOT_ISSUED"}, "reason": "é" * 1_000},
    "worker_drained": {"flags": {"DRAIN"}, "reason": "Kill task failed" + "é" * 1_000, "reason_by": "root"},
    "worker_held_by_person": {"flags": {"DRAIN"}, "reason": "é" * 1_000, "reason_by": "root"},
    "worker_wrong_resources": {"cpus": 1},
    "worker_version_unfit": {"slurm_version": "19.05.1"},
}


@pytest.mark.parametrize(("code", "count"), [*((code, COUNTS[0]) for code in NODES), ("worker_down", COUNTS[1])])
def test_health_of_a_cluster_whose_workers_all_have_one_trouble_fits(code: str, count: int) -> None:
    members = (controller(status="ready"), *workers(count))
    found = seen(workers(count), **NODES[code])
    _, reasons = health(found, members, Policy())
    assert code in {one.code for one in reasons} and reasons[-1].message == f"and {left(reasons, count)} more"
    made = detail.of_instance(instance(status="running", status_detail=FOR_PEOPLE), found, members, reasons, NOW)
    check_all([("status_detail", made)])
    check_all([("adapter_detail", members[1].adapter_detail | detail.of_worker(found, "gpu-node-00001.rack-1"))])


def left(reasons: list[Reason], count: int) -> int:
    """How many of the workers are not among the reasons that name one."""
    return count - sum(one.member_id is not None for one in reasons)


@pytest.mark.parametrize("code", sorted(CAUSES))
def test_twenty_reasons_of_the_longest_kind_fit_beside_a_note(code: str) -> None:
    member = workers(COUNTS[0])[0]
    reasons = limits.fit_reasons([_reason(Finding(code, "é" * 4_000, member), Policy())] * 65_533)
    assert len(reasons) > 5 and size([one.stored() for one in reasons]) <= limits.REASONS_BYTES + 200


def test_plays_and_work_by_hand_are_as_large_with_the_most_workers_as_with_few() -> None:
    few, most = size(own_plays(100).stored()), size(own_plays(MOST_WORKERS).stored())
    assert most <= play_history.OWN_BYTES and 0 < most - few < 50, "the digits of a count"
    assert size(by_hand().stored()) <= hand_record.NOTES_BYTES + hand_record.ODD_BYTES + 100
    assert own_plays(MOST_WORKERS).plays[-1].hosts_count == MOST_WORKERS


@pytest.mark.parametrize("outcome", ["ok", "host_unreachable"])
def test_plays_on_the_most_workers_fit_into_the_result_of_an_operation(outcome: str) -> None:
    finish = member_operation("drain", workers(COUNTS[0]))
    history = PlayHistory()
    for number in range(50):
        history = play_history.with_run(history, run(MOST_WORKERS if number % 25 == 24 else 9, number, outcome))
    made = play_history.in_result(finish.result, history)
    assert size(made) <= RECORD_BYTES and made["members"] == finish.result["members"] and made["plays"]
    assert len(made["plays"]) + made["more_plays"] == 50
    assert size(play_history.in_result({"big": "x" * (RECORD_BYTES - 200)}, history)) <= RECORD_BYTES


def test_reasons_are_counted_once_however_often_they_are_fitted() -> None:
    once = limits.fit_reasons([Reason(code="x", message=str(number)) for number in range(50)])
    assert limits.fit_reasons(once) == once and once[-1].message == "and 30 more"


def test_a_record_over_the_limit_is_refused_with_the_part_that_is_too_large() -> None:
    limits.check("member 1", {"status": "ready", "adapter_detail": {"a": "x" * (RECORD_BYTES - 10)}})
    with pytest.raises(RecordTooLarge, match=r"record_too_large: adapter_detail of member 1 .* largest part is 'big'"):
        limits.check("member 1", {"adapter_detail": {"small": 1, "big": "x" * RECORD_BYTES}})
