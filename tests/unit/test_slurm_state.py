"""What the parser makes of answers recorded from real clusters of both supported versions."""

import pytest
from ansible.module_utils.slurm.jobs import parse_jobs, with_jobs
from ansible.module_utils.slurm.parse import Node, expand_hostlist, is_serving, parse_daemon, parse_nodes

from tests.unit.recorded_slurm import VERSIONS, each_version, recorded


def nodes_in(version: str, situation: str) -> tuple[Node, Node]:
    """The cluster's two nodes; things are done to the first, except where a situation needs the second."""
    nodes = parse_nodes(recorded(version, situation, "nodes.json"))
    assert nodes is not None
    first, second = VERSIONS[version]
    return nodes[first], nodes[second]


@each_version
def test_idle_workers_serve_with_the_facts_slurm_has_of_them(version: str) -> None:
    node, _ = nodes_in(version, "idle")
    assert node["state"] == "IDLE"
    assert node["flags"] == ["DYNAMIC_NORM"]
    assert node["reason"] is None
    assert (node["cpus"], node["memory_mb"], node["gres"]) == (2, 24103, "")
    assert node["address"].count(".") == 3
    assert node["slurm_version"] is not None
    assert node["slurm_version"].startswith(version)
    assert node["slurmd_started_at"] is not None
    assert node["slurmd_started_at"].endswith("Z")
    assert (node["features"], node["partitions"]) == (["worker"], ["main"])
    assert is_serving(node)


@each_version
def test_a_node_with_a_job_is_mixed_and_names_the_job(version: str) -> None:
    nodes = parse_nodes(recorded(version, "mixed", "nodes.json"))
    jobs = parse_jobs(recorded(version, "mixed", "jobs.json"))
    assert nodes is not None
    assert jobs is not None
    busy, idle = (with_jobs(nodes, jobs)[name] for name in VERSIONS[version])
    assert (busy["state"], busy["jobs"]) == ("MIXED", ["5"])
    assert (idle["state"], idle["jobs"]) == ("IDLE", [])
    assert is_serving(busy)


@each_version
def test_jobs_are_those_that_still_hold_or_want_nodes(version: str) -> None:
    jobs = parse_jobs(recorded(version, "mixed", "jobs.json"))
    assert jobs is not None
    assert [(job["id"], job["state"]) for job in jobs] == [(5, "RUNNING"), (6, "PENDING"), (7, "PENDING")]
    running, wanting, waiting = jobs
    first, _ = VERSIONS[version]
    assert (running["nodes"], wanting["nodes"]) == ([first], [])
    assert (wanting["required_nodes"], waiting["required_nodes"]) == ([first], [])
    assert running["end_time"] is not None
    assert waiting["end_time"] is None


@each_version
def test_a_draining_node_keeps_its_job_in_sight(version: str) -> None:
    node, _ = nodes_in(version, "draining")
    assert (node["state"], "DRAIN" in node["flags"]) == ("MIXED", True)
    assert node["reason"] == "gpuaas:op-1 leaving"
    assert not is_serving(node)


@each_version
def test_a_drained_node_is_idle_and_does_not_serve(version: str) -> None:
    node, _ = nodes_in(version, "drained")
    assert (node["state"], "DRAIN" in node["flags"]) == ("IDLE", True)
    assert not is_serving(node)


@each_version
def test_a_node_set_down_gives_the_reason_a_person_gave(version: str) -> None:
    _, node = nodes_in(version, "down")
    assert (node["state"], node["reason"]) == ("DOWN", "broken fan")
    assert not is_serving(node)


@each_version
@pytest.mark.parametrize(("situation", "state"), [("not_responding", "IDLE"), ("down_not_responding", "DOWN")])
def test_an_unresponsive_node_does_not_serve_even_while_slurm_calls_it_idle(
    version: str, situation: str, state: str
) -> None:
    _, node = nodes_in(version, situation)
    assert (node["state"], "NOT_RESPONDING" in node["flags"]) == (state, True)
    assert not is_serving(node)


@each_version
def test_a_node_that_registered_with_less_than_it_claimed_does_not_serve(version: str) -> None:
    _, node = nodes_in(version, "invalid")
    assert "INVALID_REG" in node["flags"]
    assert node["reason"] is not None
    assert node["reason"].startswith("Low RealMemory")
    assert not is_serving(node)


@each_version
def test_a_deleted_node_is_absent_while_the_other_is_there(version: str) -> None:
    nodes = parse_nodes(recorded(version, "absent", "nodes.json"))
    assert nodes is not None
    assert list(nodes) == [VERSIONS[version][0]]


@each_version
@pytest.mark.parametrize("situation", ["controller_down", "munge_down"])
def test_a_controller_that_does_not_answer_leaves_nodes_and_jobs_unknown(version: str, situation: str) -> None:
    assert parse_nodes(recorded(version, situation, "nodes.json")) is None
    assert parse_jobs(recorded(version, situation, "jobs.json")) is None
    assert parse_daemon(recorded(version, situation, "config.txt"))["ping"] == "DOWN"


@pytest.mark.parametrize(
    "answer", [None, "", "{", "[]", '{"nodes": null}', '{"nodes": [{"name": "a"}]}', '{"nodes": ["a"]}', "{}"]
)
def test_an_answer_that_is_cut_off_or_malformed_is_unknown_and_not_empty(answer: str | None) -> None:
    assert parse_nodes(answer) is None


def test_no_nodes_at_all_is_a_valid_answer() -> None:
    assert parse_nodes('{"errors": [], "nodes": []}') == {}


@each_version
def test_the_daemon_reports_its_version_name_and_start(version: str) -> None:
    daemon = parse_daemon(recorded(version, "idle", "config.txt"))
    assert daemon["ping"] == "UP"
    assert daemon["cluster_name"] == "alpha"
    assert daemon["process_control"] == "linuxproc"
    assert daemon["slurm_version"] is not None
    assert daemon["slurm_version"].startswith(version)
    assert daemon["started_at"] is not None
    assert daemon["started_at"].startswith("2026-11-16T02:")


def test_a_job_that_is_completing_still_holds_its_nodes() -> None:
    jobs = parse_jobs('{"jobs": [{"job_id": 3, "job_state": ["COMPLETED", "COMPLETING"], "nodes": "a[1-2]"}]}')
    assert jobs is not None
    assert [(job["state"], job["nodes"]) for job in jobs] == [("COMPLETING", ["a1", "a2"])]


def test_a_job_in_an_unknown_state_still_holds_its_nodes() -> None:
    answer = '{"jobs": [{"job_id": %d, "job_state": ["%s"], "nodes": "a"}]}'
    jobs = parse_jobs(answer % (3, "TELEPORTING"))
    assert jobs is not None
    assert [(job["state"], job["nodes"]) for job in jobs] == [("TELEPORTING", ["a"])]
    assert parse_jobs(answer % (3, "TIMEOUT")) == []


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("", []),
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        ("bw[2,1]", ["bw2", "bw1"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("a,n[1,3-4]-gpu,b", ["a", "n1-gpu", "n3-gpu", "n4-gpu", "b"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_a_host_list_names_every_host(expression: str, names: list[str]) -> None:
    assert expand_hostlist(expression) == names
