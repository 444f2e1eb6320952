"""Slurm's metrics of a cluster, from its snapshot. The names are Slurm's own and those of the older exporters."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from ansible.module_utils.slurm.jobs import parse_jobs
from ansible.module_utils.slurm.parse import parse_nodes

from runner.model.platform import Member, Operation
from runner.slurm.metrics import FAMILIES, LATE_DRAINS, SlurmMetrics
from runner.slurm.snapshot import Job, Node, Snapshot, count_gpus
from tests.unit.worlds import NOW, add, instance, node, snapshot, worker, world

METRICS = SlurmMetrics()
FIXTURES = Path(__file__).parent / "fixtures" / "slurm"


def nodes_of(*nodes: Node) -> dict[str, float]:
    found = METRICS.samples(snapshot({f"w{number}": one for number, one in enumerate(nodes)}))
    return {name: value for name, value in found.items() if value and name != "slurm_partitions"}


def with_jobs(*states: str) -> Snapshot:
    jobs = [Job(id=number, address=str(number), state=state, nodes=["w1"]) for number, state in enumerate(states, 1)]
    return snapshot({}).model_copy(update={"jobs": jobs})


def test_nodes_are_counted_by_base_state_and_by_each_of_their_flags() -> None:
    found = nodes_of(
        node(state="IDLE"),
        node(state="IDLE", flags=frozenset({"DRAIN", "DYNAMIC_NORM"})),
        node(state="MIXED", flags=frozenset({"DRAIN"}), jobs=["7"]),
        node(state="ALLOCATED"),
        node(state="DOWN", flags=frozenset({"NOT_RESPONDING"})),
        node(state="IDLE", flags=frozenset({"DRAIN", "COMPLETING"})),
        node(state="ERROR"),
    )
    assert {name.removeprefix("slurm_"): value for name, value in found.items()} == {
        "nodes": 7,
        "nodes_idle": 3,
        "nodes_mixed": 1,
        "nodes_alloc": 1,
        "nodes_down": 1,
        "nodes_drain": 3,
        "nodes_drained": 1,
        "nodes_draining": 2,
        "nodes_noresp": 1,
        "nodes_completing": 1,
    }


def test_jobs_have_the_same_counts_under_both_names() -> None:
    found = METRICS.samples(with_jobs("PENDING", "PENDING", "RUNNING", "COMPLETING", "SIGNALING"))
    for prefix in ("slurm_jobs", "slurm_queue"):
        counts = [found[f"{prefix}_{state}"] for state in ("pending", "running", "completing", "suspended")]
        assert counts == [2, 1, 1, 0]
    assert (found["slurm_jobs"], found["slurm_jobs_nodes_alloc"]) == (5, 3)


def test_gpus_are_allocated_idle_or_other() -> None:
    found = nodes_of(
        node(state="MIXED", gres="gpu:a100:4(S:0-1)", gres_used="gpu:a100:3(IDX:0-2)"),
        node(state="IDLE", gres="gpu:2,gpu:b:1", gres_used="gpu:0"),
        node(state="DOWN", gres="gpu:1"),
    )
    gpus = {name.removeprefix("slurm_gpus_"): value for name, value in found.items() if "gpus" in name}
    assert gpus == {"total": 8, "alloc": 3, "idle": 4, "other": 1, "utilization": 3 / 8}


@pytest.mark.parametrize(
    ("gres", "count"),
    [("gpu:(null):2(IDX:0-1)", 2), ("gpu:0", 0), ("gpu", 1), ("", 0), ("mps:5", 0), ("gpu:x:9999999", 1)],
)
def test_gpus_of_a_gres_text(gres: str, count: int) -> None:
    assert count_gpus(gres) == count


def test_what_the_controller_did_not_answer_is_absent_and_not_zero() -> None:
    silent = snapshot(None).model_copy(update={"jobs": None, "partitions": None})
    assert METRICS.samples(silent) == {}
    assert METRICS.samples(snapshot({}))["slurm_nodes"] == 0


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_recorded_output_of_both_versions_is_counted(version: str) -> None:
    nodes = parse_nodes((FIXTURES / version / "mixed" / "nodes.json").read_text())
    jobs = parse_jobs((FIXTURES / version / "mixed" / "jobs.json").read_text())
    read = Snapshot.model_validate({"observed_at": NOW, "controller": {}, "nodes": nodes, "jobs": jobs})
    found = METRICS.samples(read)
    assert (found["slurm_nodes_mixed"], found["slurm_jobs_running"], found["slurm_gpus_alloc"]) == (1, 1, 0)


@pytest.mark.parametrize("version", ["22.05", "24.11"])
def test_gpus_that_jobs_have_are_read_from_slurms_answer(version: str) -> None:
    answer = json.loads((FIXTURES / version / "mixed" / "nodes.json").read_text())
    answer["nodes"][0] |= {"gres": "gpu:a100:4", "gres_used": "gpu:a100:3(IDX:0-2)"}
    read = Snapshot.model_validate({"observed_at": NOW, "controller": {}, "nodes": parse_nodes(json.dumps(answer))})
    found = METRICS.samples(read)
    assert (found["slurm_gpus_total"], found["slurm_gpus_alloc"]) == (4, 3)


def test_every_sample_is_declared() -> None:
    whole = with_jobs("RUNNING").model_copy(update={"partitions": {"main": "UP"}, "nodes": {"w1": node()}})
    assert {*METRICS.samples(whole), *METRICS.record_samples(world())} == FAMILIES.keys()


def test_the_cluster_has_the_name_that_slurm_has() -> None:
    assert METRICS.cluster(instance(config={"cluster_name": "train"})) == "train"
    assert METRICS.cluster(instance(id=UUID(int=10 << 96))) == "gs0000000a"
    assert METRICS.cluster(instance(id=UUID(int=10 << 96), config={"cluster_name": "No\nName"})) == "gs0000000a"


def drained(seconds: Any, *, result: str | None = None, since: int = 600) -> tuple[Operation, Member]:
    asked = add(1, operation="drain", parameters={"deadline_seconds": seconds})
    leave = {
        "format": 2,
        "operation_id": str(asked.id),
        "verb": "drain",
        "started_at": (NOW - timedelta(seconds=since)).isoformat(),
        "result": result,
    }
    return asked, worker(asked, 1, status="draining", adapter_detail={"leave": leave})


@pytest.mark.parametrize(
    ("seconds", "result", "late"),
    [
        (599, None, 1),
        (600, None, 0),
        (599, "done", 0),
        (None, None, 0),
        ("1", None, 0),
        (-1, None, 0),
        (10**30, None, 0),
    ],
)
def test_a_drain_is_late_after_the_deadline_of_its_operation(seconds: Any, result: str | None, late: int) -> None:
    asked, member = drained(seconds, result=result)
    assert METRICS.record_samples(world(members=(member,), operations=(asked,))) == {LATE_DRAINS: late}


def test_a_drain_whose_operation_is_gone_is_not_late() -> None:
    _, member = drained(1)
    assert METRICS.record_samples(world(members=(member,))) == {LATE_DRAINS: 0}
