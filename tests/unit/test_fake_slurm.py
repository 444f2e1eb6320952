"""The stand-in for Slurm is held to what was recorded of Slurm 22.05 and 24.11, and to facts of its documents."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from runner.model.plan import Play
from tests.error_codes import classes
from tests.unit.fake_node import FakeNode
from tests.unit.fake_packages import FIRST, NEXT
from tests.unit.fake_slurm import FakeSlurm
from tests.unit.lifecycle import cluster, serving
from tests.unit.recorded_slurm import RECORDED
from tests.unit.worlds import NOW

GONE = {"CANCELLED", "COMPLETED"}
# What was done to the two nodes when each folder was recorded.
SITUATIONS: dict[str, tuple[FakeNode, FakeNode]] = {
    "idle": (FakeNode(), FakeNode()),
    "mixed": (FakeNode({5}), FakeNode()),
    "draining": (FakeNode({5}, "gpuaas:op-1 leaving"), FakeNode()),
    "drained": (FakeNode(reason="gpuaas:op-1 leaving"), FakeNode()),
    "not_responding": (FakeNode(), FakeNode(flags={"NOT_RESPONDING"})),
    "down": (FakeNode(flags={"NOT_RESPONDING"}), FakeNode(state="DOWN", down_reason="broken fan")),
    "down_not_responding": (
        FakeNode(),
        FakeNode(state="DOWN", flags={"NOT_RESPONDING"}, down_reason="Not responding"),
    ),
}


def recorded_nodes(folder: Path) -> list[tuple[str, set[str], str]]:
    """State, flags and reason by node, as either version writes them."""
    found = []
    for one in json.loads((folder / "nodes.json").read_text())["nodes"]:
        states = [one["state"]] if isinstance(one["state"], str) else one["state"]
        first, *more = [state.upper() for state in states]
        found.append((first, {*more, *one.get("state_flags", [])}, one["reason"]))
    return found


def recorded_jobs(folder: Path) -> set[tuple[str, str, bool, bool]]:
    """Of each job that has not ended: its id, its state, whether it has a node, and whether it names one."""
    found = set()
    for one in json.loads((folder / "jobs.json").read_text())["jobs"]:
        state = one["job_state"] if isinstance(one["job_state"], str) else one["job_state"][0]
        if state not in GONE:
            pending = state == "PENDING"
            found.add((str(one["job_id"]), state, bool(one["nodes"]), pending and bool(one["required_nodes"])))
    return found


@pytest.mark.parametrize("version", ["22.05", "24.11"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_nodes_and_jobs_are_shown_as_the_recorded_slurm_shows_them(version: str, situation: str) -> None:
    first, second = SITUATIONS[situation]
    slurm = FakeSlurm({"a": first, "b": second})
    if situation in ("mixed", "draining"):
        slurm.pending_on, slurm.waiting = {6: "a"}, {7}
    seen = slurm.seen()
    assert seen and seen.nodes and seen.jobs is not None
    shown = [(node.state, set(node.flags), node.reason or "") for node in seen.nodes.values()]
    assert shown == recorded_nodes(RECORDED / version / situation)
    jobs = {(job.address, job.state, bool(job.nodes), bool(job.required_nodes)) for job in seen.jobs}
    assert jobs == recorded_jobs(RECORDED / version / situation)


def work(**orders: Any) -> Play:
    """A play that only has the controller do something."""
    return Play("", "drain_worker", (cluster().members[0],), work=orders)


def run(slurm: FakeSlurm, play: Play, seconds: int = 0) -> Any:
    return slurm.run(cluster(serving(2)).later(now=NOW + timedelta(seconds=seconds)), play).snapshot


@pytest.mark.parametrize("how", ["cancel", "requeue"])
def test_an_ended_job_is_completing_on_its_node_until_a_later_look(how: str) -> None:
    slurm = FakeSlurm({"w2": FakeNode({7}, "gpuaas:x")})
    seen = run(slurm, work(**{how: ["7"]}))
    node = seen.nodes["w2"]
    assert (node.state, node.flags & {"COMPLETING", "DRAIN"}, node.jobs) == ("IDLE", {"COMPLETING", "DRAIN"}, ["7"])
    assert [(job.address, job.state, job.nodes) for job in seen.jobs] == [("7", "COMPLETING", ["w2"])]
    assert slurm._delete("w2") is not None and "w2" in slurm.nodes
    seen = run(slurm, work(), seconds=60)
    assert "COMPLETING" not in seen.nodes["w2"].flags and seen.nodes["w2"].jobs == []
    assert slurm.waiting == ({7} if how == "requeue" else set())


@pytest.mark.parametrize(
    ("how", "address", "left"),
    [
        ("cancel", "100_7", {"100_8", "200+0", "200+1", "9"}),
        ("requeue", "100_7", {"100_8", "200+0", "200+1", "9"}),
        ("cancel", "200+1", {"100_7", "100_8", "200+0", "9"}),
        ("cancel", "200+0", {"100_7", "100_8", "9"}),
        ("requeue", "200+1", {"100_7", "100_8", "9"}),
        ("cancel", "9", {"100_7", "100_8", "200+0", "200+1"}),
    ],
)
def test_an_address_ends_what_slurm_ends_by_it(how: str, address: str, left: set[str]) -> None:
    slurm = FakeSlurm({"w2": FakeNode({"100_7", "200+0"}), "w3": FakeNode({"100_8", "200+1", "9"})})
    run(slurm, work(**{how: [address]}))
    assert {job for fake in slurm.nodes.values() for job in fake.jobs} == left


def test_a_registration_takes_a_down_node_back_and_leaves_a_drained_one_drained() -> None:
    down, drained = FakeNode(state="DOWN", down_reason="Not responding"), FakeNode(state="DOWN", reason="alice: fan")
    for node in (down, drained):
        node.register()
    assert (down.shown_state, sorted(down.shown_flags)) == ("IDLE", ["DYNAMIC_NORM"])
    assert (drained.shown_state, sorted(drained.shown_flags)) == ("IDLE", ["DRAIN", "DYNAMIC_NORM"])


def test_a_drain_of_a_node_that_is_down_or_unknown_shows_both() -> None:
    slurm = FakeSlurm({"w2": FakeNode(state="DOWN"), "w3": FakeNode(state="UNKNOWN")})
    seen = run(slurm, work(drain=[{"nodes": ["w2", "w3"], "reason": "gpuaas:x"}]))
    assert [(node.state, "DRAIN" in node.flags) for node in seen.nodes.values()] == [("DOWN", True), ("UNKNOWN", True)]


def test_a_node_whose_munge_key_differs_from_the_controllers_does_not_answer() -> None:
    slurm = FakeSlurm({"w2": FakeNode(), "w3": FakeNode()})
    slurm.keys.live = {"controller": "key-1", "w2": "key-1", "w3": "key-0"}
    seen = slurm.seen()
    assert seen and seen.nodes
    assert {name: "NOT_RESPONDING" in node.flags for name, node in seen.nodes.items()} == {"w2": False, "w3": True}


def move(verb: str, change: str) -> Play:
    return Play("", verb, cluster(serving(2)).members, terms={"slurm_change": change, "slurm_version": ""})


def versions(slurm: FakeSlurm) -> tuple[str | None, str | None, str | None]:
    seen = slurm.seen()
    assert seen and seen.nodes
    return seen.controller.package_version, seen.controller.slurm_version, seen.nodes["w2"].slurm_version


def test_an_upgrade_changes_packages_and_daemons_and_a_rollback_returns_once() -> None:
    slurm = FakeSlurm({"w2": FakeNode({7})})
    assert versions(slurm) == (FIRST, "22.05.8", "22.05.8")
    run(slurm, move("upgrade", "a"))
    assert versions(slurm) == (NEXT, "22.05.9", "22.05.9") and slurm.nodes["w2"].jobs == {7}
    assert slurm.restarts == {"slurmdbd": 1, "slurmctld": 1, "w2": 1}
    run(slurm, move("upgrade", "b"))
    assert slurm.restarts == {"slurmdbd": 1, "slurmctld": 1, "w2": 1}, "nothing is left to do"
    run(slurm, move("rollback", "c"))
    assert versions(slurm) == (FIRST, "22.05.8", "22.05.8")
    world = slurm.run(cluster(serving(2)), move("rollback", "d"))
    (outcome,) = world.outcomes.values()
    assert outcome.error and outcome.error.code == "nothing_to_return_to"


def test_a_move_that_is_cut_off_after_its_packages_shows_daemons_that_are_outdated() -> None:
    slurm = FakeSlurm({"w2": FakeNode()})
    slurm.packages.installed["ctl"] = NEXT
    seen = slurm.seen()
    assert seen and seen.controller.outdated == ["slurmdbd", "slurmctld"]
    assert (seen.controller.package_version, seen.controller.slurm_version) == (NEXT, "22.05.8")


@pytest.mark.parametrize("module", ["fake_keys.py", "fake_packages.py", "fake_slurm.py"])
def test_the_stand_in_raises_codes_with_classes_that_they_have(module: str) -> None:
    text = (Path(__file__).parent / module).read_text()
    raised = re.findall(r'AdapterError\("(\w+)", f?"[^"]*"(?:, "(\w+)")?', text)
    assert raised
    assert [one for one in raised if (one[1] or "intervention") not in classes()[one[0]]] == []
