"""Whole clusters by property: stops, starts and restarts together with other requests and faults."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runner.model.plan import SetMember
from runner.model.platform import Operation
from runner.model.world import World
from runner.slurm.decide import decide
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask_whole, between, cluster, serving, tick
from tests.unit.test_lifecycle_properties import FORWARD, WORKERS, requests
from tests.unit.worlds import of_kind, settle

# Only a stop takes a member back, and only a start brings it where it was.
MOVES = FORWARD | {
    "requested": FORWARD["requested"] | {"requested", "draining"},
    "reconciling": FORWARD["reconciling"] | {"requested", "draining"},
    "ready": FORWARD["ready"] | {"requested"},
    "draining": FORWARD["draining"] | {"requested"},
}
STOPS: list[dict[str, Any]] = [
    {},
    {"deadline_seconds": 0, "on_deadline": "give_up"},
    {"deadline_seconds": 90, "on_deadline": "cancel"},
    {"deadline_seconds": 90, "on_deadline": "requeue"},
]


@st.composite
def whole(draw: st.DrawFn, age: int) -> Operation:
    verb = draw(st.sampled_from(["stop", "stop", "start", "start", "restart"]))
    terms: dict[str, Any] = draw(st.sampled_from(STOPS)) if verb == "stop" else {}
    if verb == "restart":
        terms = draw(st.sampled_from([{}, {"patience_seconds": 90}]))
    return ask_whole(verb, parameters=terms, age=age)


def meddle(data: st.DataObject, now: World, slurm: FakeSlurm, count: list[int]) -> World:
    """Users, operators and machines between ticks."""
    count[0] += 1
    open_for_jobs = slurm.up and slurm.partitions["main"] == "UP"
    for name, fake in slurm.nodes.items():
        what = data.draw(st.sampled_from(["nothing", "job starts", "jobs end", "person drains", "person resumes"]))
        if what == "job starts" and fake.reason is None and open_for_jobs:
            fake.jobs.add(count[0] * 100 + len(fake.jobs))
        elif what == "jobs end":
            fake.jobs.clear()
        elif what == "person drains" and fake.reason is None and slurm.up:
            fake.reason = f"alice: {name}"
        elif what == "person resumes" and (fake.reason or "").startswith("alice") and slurm.up:
            fake.reason = None
    slurm.answers = data.draw(st.integers(0, 4)) > 0
    slurm.hosts_down = set(data.draw(st.lists(st.sampled_from([f"w{n}" for n in WORKERS]), max_size=1)))
    if now.instance_operations and data.draw(st.integers(0, 4)) == 0:
        now = now.later(instance_operations=now.instance_operations[1:])  # an operator cancels one
    if len(now.instance_operations) < 2 and data.draw(st.booleans()):
        now = now.later(instance_operations=(*now.instance_operations, data.draw(whole(count[0]))))
    if len(now.operations) < 2 and data.draw(st.integers(0, 2)) == 0:
        now = now.later(operations=(*now.operations, data.draw(requests(now, count[0]))))
    return now


def killed(data: st.DataObject, now: World, slurm: FakeSlurm) -> World:
    """A runner that dies in its first play, before or after the hosts have done it."""
    now, _, play = settle(now, decide)
    if play and data.draw(st.booleans()):
        slurm.run(now, play)
    return between(now, 200)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_whatever_is_asked_of_a_cluster_no_job_is_lost_and_nothing_gets_stuck(data: st.DataObject) -> None:
    slurm = FakeSlurm({f"w{number}": FakeNode() for number in WORKERS}, waiting={1, 2})
    slurm.partitions["night"] = "DOWN"
    now, count = cluster(*(serving(number) for number in WORKERS)), [0]
    for _ in range(data.draw(st.integers(1, 6))):
        now = meddle(data, now, slurm, count)
        theirs = {name: fake.reason for name, fake in slurm.nodes.items() if (fake.reason or "").startswith("alice")}
        if data.draw(st.integers(0, 4)) == 0:
            now = killed(data, now, slurm)
            continue
        now, steps, _ = tick(now, slurm)
        assert slurm.waiting >= {1, 2}, "what waits is kept"
        assert slurm.partitions["night"] == "DOWN", "a person's partition was opened"
        assert slurm.up or not any(fake.jobs for fake in slurm.nodes.values()), "stopped under a running job"
        assert now.instance.status != "stopped" or not slurm.up
        for name, reason in theirs.items():
            if name in slurm.nodes:
                assert slurm.nodes[name].reason == reason, "a person's drain was touched"
        for step in of_kind(steps, SetMember):
            assert step.status in MOVES[step.member.status], f"{step.member.status} -> {step.status}"
    _comes_to_rest(now, slurm, count)


def _comes_to_rest(now: World, slurm: FakeSlurm, count: list[int]) -> None:
    """When faults are over and jobs have ended, everything ends; and a stopped cluster can be started."""
    slurm.answers, slurm.hosts_down = True, set()
    slurm.nodes = {name: FakeNode(reason=fake.reason) for name, fake in slurm.nodes.items()}
    for _ in range(10):
        now, _, _ = tick(now, slurm, seconds=400)
    if now.instance.status == "stopped":
        assert now.instance_operations == ()
        now = now.later(instance_operations=(ask_whole("start", age=count[0] + 1),))
        for _ in range(8):
            now, _, _ = tick(now, slurm, seconds=400)
    assert (now.instance.status, now.instance_operations, now.operations) == ("running", (), ())
    assert slurm.up and slurm.partitions == {"main": "UP", "night": "DOWN"}
    assert {member.status for member in now.members} <= {"ready", "draining", "failed", "deleted"}
    # One whose only workers a person keeps drained, or failed to join, serves no user, and reports it.
    open_nodes = {name for name, fake in slurm.nodes.items() if fake.reason is None}
    ready = {one.adapter_detail.get("worker_hostname") for one in now.members if one.status == "ready"}
    serves = bool(ready & open_nodes)
    assert now.instance.health in ("healthy", "degraded", *(() if serves else ("unhealthy",)))
    now, _, _ = tick(now, slurm, seconds=1)
    assert tick(now, slurm)[2] == [], "nothing is left to do"
