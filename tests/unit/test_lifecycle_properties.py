"""Whole lifecycles by property: random requests and faults, tick after tick."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.model.plan import Finish, SetMember
from runner.model.platform import Operation
from runner.model.world import World
from runner.slurm.components import WORKER
from runner.slurm.notes import worker as worker_notes
from runner.slurm.readiness import worker_problem
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, cluster, serving, tick
from tests.unit.worlds import NOW, add, of_kind

WORKERS = (2, 3, 4)
FREE = (5, 6, 7)
# Where a member may go in one write; back to service only ever out of a drain.
FORWARD = {
    "requested": {"reconciling", "ready", "failed"},
    "reconciling": {"reconciling", "ready", "failed"},
    "ready": {"ready", "draining", "deleting"},
    "draining": {"draining", "ready", "deleting"},
    "deleting": {"deleting", "deleted", "failed"},
    "failed": {"failed", "draining", "deleting", "deleted"},
    "deleted": {"deleted"},
}
HAPPENINGS = [
    *("nothing", "nothing", "job starts", "jobs end", "job names it", "person drains", "person resumes"),
    *("goes down", "state is unknown", "is being undrained", "is as before"),
]
TERMS = st.sampled_from(
    [
        {},
        {"deadline_seconds": 0, "on_deadline": "give_up"},
        {"deadline_seconds": 90, "on_deadline": "cancel"},
        {"deadline_seconds": 90, "on_deadline": "requeue"},
        {"host_patience_seconds": 90},
    ]
)


@st.composite
def requests(draw: st.DrawFn, now: World, age: int) -> Operation:
    verb = draw(st.sampled_from(["add", "drain", "resume", "remove", "replace"]))
    workers = [member for member in now.members if member.component_key == WORKER]
    if verb == "add":
        return add(draw(st.sampled_from(FREE)), created_at=NOW + timedelta(seconds=age))
    chosen = draw(st.lists(st.sampled_from(workers), min_size=1, max_size=2, unique_by=lambda one: one.id))
    fresh = tuple(draw(st.permutations(FREE))[: len(chosen)]) if verb == "replace" else ()
    return ask(verb, *chosen, allocations=fresh, parameters=draw(TERMS), age=age)


def meddle(data: st.DataObject, now: World, slurm: FakeSlurm, free_job: list[int]) -> World:
    """What happens between ticks: by users, operators and machines."""
    for name, fake in slurm.nodes.items():
        what = data.draw(st.sampled_from(HAPPENINGS))
        if what == "job starts" and fake.reason is None:
            free_job[0] += 1
            fake.jobs.add(free_job[0])
        elif what == "jobs end":
            fake.jobs.clear()
            fake.ending.clear()
        elif what == "job names it":
            free_job[0] += 1
            slurm.pending_on[free_job[0]] = name
        elif what == "person drains" and fake.reason is None:
            fake.reason = f"alice: {name}"
        elif what == "person resumes" and (fake.reason or "").startswith("alice"):
            fake.reason = None
        elif what == "goes down" and not fake.all_jobs:
            fake.state, fake.down_reason, fake.reason_by = "DOWN", "Not responding", "slurm"
        elif what in ("state is unknown", "is being undrained"):  # and nothing on the node tells that it is in use
            fake.jobs.clear()
            fake.ending.clear()
            fake.state = "UNKNOWN" if what == "state is unknown" else fake.state
            fake.flags |= {"UNDRAIN"} if what == "is being undrained" and fake.reason else set()
        elif what == "is as before":
            fake.state, fake.flags, fake.down_reason, fake.reason_by = None, set(), None, None
    slurm.answers = data.draw(st.integers(0, 4)) > 0
    slurm.slow_evictions = data.draw(st.booleans())
    slurm.hosts_down = set(data.draw(st.lists(st.sampled_from([f"w{n}" for n in (*WORKERS, *FREE)]), max_size=1)))
    if now.operations and data.draw(st.integers(0, 5)) == 0:
        now = now.later(operations=now.operations[1:])  # an operator cancels one
    if len(now.operations) < 3 and data.draw(st.booleans()):
        free_job[0] += 1
        now = now.later(operations=(*now.operations, data.draw(requests(now, free_job[0]))))
    return now


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_lifecycle_loses_a_job_goes_backwards_or_gets_stuck(data: st.DataObject) -> None:
    members = [serving(number) for number in WORKERS]
    slurm = FakeSlurm({f"w{number}": FakeNode() for number in WORKERS})
    now, free_job = cluster(*members), [0]
    for _ in range(data.draw(st.integers(1, 5))):
        now = meddle(data, now, slurm, free_job)
        theirs = {name: fake.reason for name, fake in slurm.nodes.items() if (fake.reason or "").startswith("alice")}
        now, steps, _ = tick(now, slurm)
        assert slurm.deleted_with_jobs == [], "a node with a job was to be deleted"
        assert slurm.refused_deletions == [], "a node that is in use, or may be, was to be deleted"
        for name, reason in theirs.items():
            if name in slurm.nodes:
                assert slurm.nodes[name].reason == reason, "a person's drain was touched"
        for step in of_kind(steps, SetMember):
            assert step.status in FORWARD[step.member.status], f"{step.member.status} -> {step.status}"
    _comes_to_rest(now, slurm)


def _comes_to_rest(now: World, slurm: FakeSlurm) -> None:
    """When faults are over and jobs have ended, everything that was accepted ends."""
    slurm.answers, slurm.hosts_down, slurm.pending_on = True, set(), {}
    slurm.nodes = {name: FakeNode(reason=fake.reason) for name, fake in slurm.nodes.items()}
    for _ in range(8):
        now, _, _ = tick(now, slurm, seconds=400)
    assert now.operations == (), [one.operation for one in now.operations]
    seen = slurm.seen()
    assert seen is not None
    for member in now.members:
        recorded: dict[str, Any] = member.adapter_detail
        if (
            member.component_key == WORKER
            and member.status == "ready"
            and "alice" not in str(recorded.get("drain_reason"))
        ):
            assert worker_problem(seen, worker_notes(member)) is None
        if member.component_key == WORKER and member.status == "deleted" and recorded.get("host_cleaned") is not None:
            serving_again = {m.adapter_detail.get("worker_hostname") for m in now.members if m.status != "deleted"}
            assert recorded.get("worker_hostname") not in seen.nodes or recorded["worker_hostname"] in serving_again  # type: ignore[operator]
    again, steps, _ = tick(now, slurm, seconds=1)
    assert not of_kind(steps, Finish)
    assert {m.id: m.status for m in again.members} == {m.id: m.status for m in now.members}


def test_allocations_used_here_exist() -> None:
    assert {UUID(int=100 + number) for number in (*WORKERS, *FREE)} <= set(cluster().allocations)
