"""decide, by property: for any world and whatever a play brings back, some things always hold."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.model.plan import AdapterError, Finish, Play, Refuse, SetMember, Wait
from runner.model.platform import Member, MemberStatus, Operation
from runner.model.world import Outcome, World
from runner.slurm.decide import decide
from runner.slurm.notes import worker as worker_notes
from runner.slurm.readiness import worker_problem
from runner.slurm.snapshot import Snapshot
from tests.unit.worlds import (
    ME,
    NOW,
    add,
    after,
    allocation,
    controller,
    instance,
    joined,
    node,
    settle,
    snapshot,
    worker,
    world,
)

FORWARD = {
    "requested": {"requested", "reconciling", "ready", "failed"},
    "reconciling": {"reconciling", "ready", "failed"},
    "ready": {"ready"},
    "draining": {"draining"},
    "deleting": {"deleting"},
    "failed": {"failed", "deleted"},  # a new attempt on the same allocation takes its place
}
MEMBER_STATUS = st.sampled_from(list(MemberStatus))
ALLOCATION_STATUS = st.sampled_from(
    ["active", "active", "active", "provisioning", "releasing", "released", "new-status"]
)
ERRORS = st.sampled_from(
    [None, AdapterError("host_unreachable", "x", "retryable"), AdapterError("task_failed", "x", "intervention")]
)


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    status = draw(st.sampled_from(["accepted", "running"]))
    lease: dict[str, Any] = {}
    if status == "running":
        age = timedelta(seconds=draw(st.integers(-60, 60)))
        lease = {"claimed_by": draw(st.sampled_from([ME, "other"])), "lease_expires_at": NOW + age}
    return add(
        *draw(st.lists(st.integers(1, 9), max_size=4)),
        operation=draw(st.sampled_from(["add", "add", "add", "drain", "explode"])),
        component_key=draw(st.sampled_from(["worker", "worker", "worker", "controller", "other"])),
        status=status,
        **lease,
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    listed = draw(st.lists(operations(), max_size=3))
    members = [controller(status=draw(MEMBER_STATUS))]
    for operation in listed:
        for allocation_id in dict.fromkeys(operation.allocation_ids):
            if draw(st.booleans()):
                number = allocation_id.int - 100
                recorded = {"worker_hostname": f"w{number}", "cpus": 2, "memory_mb": 1000, "gpus": 0}
                members.append(worker(operation, number, status=draw(MEMBER_STATUS), adapter_detail=recorded))
    return world(
        instance=instance(status=draw(st.sampled_from(["requested", "deploying", "running", "failed", "stopped"]))),
        members=tuple(members),
        operations=tuple(listed),
        allocations={UUID(int=100 + n): allocation(n, status=draw(ALLOCATION_STATUS)) for n in range(1, 9)},
    )


@st.composite
def after_play(draw: st.DrawFn, before: World, play: Play) -> World:
    """Anything a play could bring back: errors, no answer, and a controller that shows whatever it shows."""
    outcomes: dict[UUID, Outcome] = {}
    nodes = {}
    for member in play.members:
        if draw(st.booleans()):
            continue
        name = f"w{member.allocation_id.int - 100}" if member.allocation_id else "w0"
        error = draw(ERRORS)
        report = joined(name).detail if member.component_key == "worker" else {}
        outcomes[member.id] = Outcome("joining", report, error)
        if draw(st.booleans()):
            nodes[name] = node(
                state=draw(st.sampled_from(["IDLE", "MIXED", "DOWN", "UNKNOWN"])),
                flags=draw(st.sets(st.sampled_from(["DYNAMIC_NORM", "DRAIN", "NOT_RESPONDING"]), max_size=2)),
            )
    seen = draw(st.sampled_from([None, snapshot(nodes), snapshot(None), snapshot(nodes, ping="DOWN")]))
    return after(before, play, outcomes, seen)


def is_shown(member: Member, seen: Snapshot | None) -> bool:
    return worker_problem(seen, worker_notes(member)) is None


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_tick_ends_with_every_operation_ended_or_waiting_for_a_reason(data: st.DataObject) -> None:
    start = data.draw(worlds())
    now, steps, play = settle(start, decide)
    if play:
        now, more, again = settle(data.draw(after_play(now, play)), decide)
        steps += more
        assert again is None, "a tick has one play"
    ended = {step.operation.id for step in steps if isinstance(step, Finish | Refuse)}
    waiting = [step for step in steps if isinstance(step, Wait)]
    for operation in start.operations:
        touched = operation.id in ended or any(str(operation.id)[:8] in step.subject for step in waiting)
        members = {m.id.hex[:8] for m in now.members if m.adapter_detail.get("operation_id") == str(operation.id)}
        held = any(step.subject.rpartition("-")[2] in members for step in waiting)
        played = play is not None and bool(now.played)
        assert touched or held or played, f"{operation.operation} {operation.status} is forgotten"


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_worker_becomes_ready_only_if_the_controller_shows_it_so(data: st.DataObject) -> None:
    now, _, play = settle(data.draw(worlds()), decide)
    if not play:
        return
    before = {member.id: member.status for member in now.members}
    after = data.draw(after_play(now, play))
    end, _, _ = settle(after, decide)
    for member in end.members:
        if member.component_key == "worker" and member.status == "ready" and before[member.id] != "ready":
            assert is_shown(member, after.snapshot)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_statuses_never_go_backwards(data: st.DataObject) -> None:
    start = data.draw(worlds())
    now, steps, play = settle(start, decide)
    if play:
        _, more, _ = settle(data.draw(after_play(now, play)), decide)
        steps += more
    for step in steps:
        if isinstance(step, SetMember):
            assert step.status in FORWARD[step.member.status], f"{step.member.status} -> {step.status}"


@settings(max_examples=200, deadline=None)
@given(worlds())
def test_no_play_touches_an_allocation_that_is_not_active_or_a_member_that_is_done(start: World) -> None:
    now, _, play = settle(start, decide)
    for member in play.members if play else ():
        assert member.allocation_id is not None
        if member.component_key == "worker":
            assert now.allocations[member.allocation_id].status == "active"
            assert member.status in ("requested", "reconciling")


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_second_tick_on_the_settled_world_does_nothing_new(data: st.DataObject) -> None:
    now, _, play = settle(data.draw(worlds()), decide)
    if play:
        now, _, _ = settle(data.draw(after_play(now, play)), decide)
    assert decide(now).idle or decide(now).play is not None
    assert decide(now) == decide(now)
