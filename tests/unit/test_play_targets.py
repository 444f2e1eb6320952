"""The hosts, nodes, units and partitions that a play acts on (plugins/filter/slurm_targets.py)."""

from typing import Any

import pytest

from plugins.filter.slurm_targets import (
    SWITCH_LEAD_SECONDS,
    closed_partitions,
    drains_by_hand,
    drains_to_lift,
    drains_to_undo,
    followed_nodes,
    is_lost_node,
    joined_nodes,
    look_before_join,
    node_of_host,
    nodes_to_await,
    nodes_to_delete,
    restarted_nodes,
    switch_time,
    unprepared_hosts,
    worker_units,
)
from runner.slurm.node_rules import ANY_OPERATION, OUR_PREFIX, drain_holder

# What a worker's host can put in the place of a mapping.
ODD: list[Any] = [None, "text", ["slurmd"], 7, True]


def node(reason: str | None, *flags: str, by: str | None = "root") -> dict[str, Any]:
    return {"state": "IDLE", "flags": list(flags), "reason": reason, "reason_by": by, "jobs": []}


def look(**nodes: dict[str, Any]) -> dict[str, Any]:
    return {"snapshot": {"nodes": nodes}}


def host(name: str, **variables: Any) -> dict[str, Any]:
    return {"inventory_hostname": name, "gpuaas_app_instance_id": "ours", "slurm_node_name": name, **variables}


# -- joining ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"join_look": {"join_terms": 1}, "baseline_look": {"join_terms": 2}}, 1),
        ({"join_look": {"skipped": True}, "baseline_look": {"join_terms": 2}}, 2),
        ({"baseline_look": {"join_terms": 2}}, 2),
        ({"join_look": {"failed": True}}, None),
        ({"baseline_look": {"snapshot": {}}}, None),
        ({}, None),
    ],
)
def test_a_worker_joins_by_the_look_that_has_conditions(variables: dict[str, Any], expected: int | None) -> None:
    assert look_before_join(variables).get("join_terms") == expected


def test_slurmd_is_restarted_only_if_its_node_does_not_respond() -> None:
    seen = look(lost=node(None, "DYNAMIC_NORM", "NOT_RESPONDING"), fine=node(None, "DYNAMIC_NORM"))
    assert is_lost_node(seen, "lost")
    assert not any(is_lost_node(one, "fine") for one in (seen, {}, {"snapshot": {"nodes": None}}))
    assert not is_lost_node(seen, "absent")


def test_a_worker_has_joined_if_slurmd_was_set_up_for_this_instance() -> None:
    def worker(name: str, done: Any, **more: Any) -> dict[str, Any]:
        return host(name, slurmd_converged=done, probed_host={"hostname": name}, **more)

    workers = [
        worker("w1", {"failed": False}),
        worker("w2", {"failed": True}),
        worker("w3", {"unreachable": True}),
        worker("w4", {"failed": False}, gpuaas_app_instance_id="other"),
        host("w5"),
        *(worker("odd", answer) for answer in ODD),
    ]
    assert joined_nodes(workers, "ours") == ["w1"]


def test_only_drains_that_an_operation_set_are_lifted() -> None:
    nodes = {
        "ours": node("gpuaas:op-1: removed", "DRAIN"),
        "by-hand": node("gpuaas:manual: new disk", "DRAIN"),
        "person": node("broken fan", "DRAIN"),
        "slurm": node("Kill task failed", "DRAIN"),
        "down": node("gpuaas:op-1: removed"),
        "no-reason": node(None, "DRAIN", by=None),
        "not-asked": node("gpuaas:op-1: removed", "DRAIN"),
    }
    asked = ["ours", "by-hand", "person", "slurm", "down", "no-reason", "absent"]
    assert drains_to_lift(asked, look(**nodes)) == [{"nodes": ["ours"], "owner": ANY_OPERATION}]
    assert drains_to_lift(asked, look(**nodes), keep=True) == []
    assert drains_to_lift(asked, {"snapshot": {"nodes": None}}) == drains_to_lift(["down"], look(**nodes)) == []


# -- leaving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("looked", "expected"),
    [
        ({"hostname": "gs-4", "units_noted": ["slurmd"]}, "gs-4"),
        ({"hostname": "gs-4", "units_noted": ["munge"]}, None),
        ({"hostname": "taken", "units_noted": ["slurmd"]}, None),
        ({"hostname": "mine", "units_noted": ["slurmd"]}, "mine"),
        ({"hostname": "a b", "units_noted": ["slurmd"]}, None),
        ({"hostname": "-a", "units_noted": ["slurmd"]}, None),
        ({"hostname": "gs-4\n", "units_noted": ["slurmd"]}, None),
        ({"hostname": ["gs-4"], "units_noted": ["slurmd"]}, None),
        ({}, None),
    ],
)
def test_a_host_names_its_node_unless_another_member_has_the_name(looked: dict[str, Any], expected: str | None) -> None:
    assert node_of_host(looked, "m1", {"taken": "m2", "mine": "m1"}) == expected


def test_a_drain_by_hand_counts_as_the_persons() -> None:
    assert drains_by_hand([], "new disk") == []
    [order] = drains_by_hand(["w1", "w2"], "new disk")
    assert order == {"nodes": ["w1", "w2"], "reason": "gpuaas:manual: new disk"}
    assert drain_holder({"DRAIN"}, order["reason"], "root") == "person"


def test_only_nodes_of_stopped_workers_and_of_lost_hosts_are_deleted() -> None:
    stopped = host("h1", leaving_node="w1", decommission_stopped=True)
    never_joined = host("h2", leaving_node=None, decommission_stopped=True)
    runs = host("h3", leaving_node="w3")
    assert nodes_to_delete([stopped, runs], ["w9", "w1"]) == ["w1", "w9"]
    assert nodes_to_delete([runs], ["w9"]) == ["w9"]
    assert nodes_to_delete([never_joined, runs], []) == [], "the controller is asked, and each worker told"
    assert nodes_to_delete([runs], []) is None
    assert nodes_to_delete([{**runs, "decommission_stopped": "no"}], []) is None


# -- restarting and stopping -----------------------------------------------------------------------------------------


def test_a_restarted_worker_is_waited_for_if_it_took_jobs_before() -> None:
    workers = [
        host("w1", follow_done={"restarted": True}),
        host("w2", follow_done={"restarted": False}),
        host("w3", follow_done={"restarted": True}),
        host("w4", follow_done={"restarted": True}, gpuaas_app_instance_id="other"),
        host("w5", follow_done={"failed": True}),
        {"gpuaas_app_instance_id": "ours", "follow_done": {"restarted": True}},
        *(host("w6", follow_done=answer) for answer in ODD),
    ]
    assert followed_nodes(workers, "ours", ["w1", "w2", "w4", "w5", "w6"]) == ["w1"]


def test_a_restart_waits_for_the_slurmd_that_each_worker_started() -> None:
    workers = [
        host("w1", restart_done={"started": {"slurmd": 7.5}}),
        host("w2", restart_done={"started": {}}),
        host("w3", restart_done={"started": {"slurmd": 1.0}}, gpuaas_app_instance_id="other"),
        host("w4", restart_done={"started": {"slurmd": 1.0}}, slurm_node_name=None),
        host("w5"),
        *(host("w6", restart_done={"started": answer}) for answer in ODD),
        *(host("w7", restart_done=answer) for answer in ODD),
    ]
    assert restarted_nodes(workers, "ours") == {"w1": 7.5}


def test_every_partition_that_was_not_up_is_closed_again() -> None:
    states = {"a": "UP", "b": "DOWN", "c": "DRAIN", "d": "INACTIVE"}
    assert closed_partitions(states) == {"b": "DOWN", "c": "DRAIN", "d": "INACTIVE"}
    assert closed_partitions(None) == closed_partitions({}) == {}


def test_munge_stops_with_the_worker_unless_the_controller_is_on_the_same_machine() -> None:
    assert worker_units("a1", "a2") == ["slurmd", "munge"]
    assert worker_units("a1", "a1") == ["slurmd"]


# -- recovering ------------------------------------------------------------------------------------------------------


def mended(name: str, changed: bool, *units: str, **more: Any) -> dict[str, Any]:
    return host(name, recover_mended={"changed": changed, "units": dict.fromkeys(units, "active")}, **more)


def test_a_recovery_waits_for_started_workers_that_are_not_drained() -> None:
    workers = [
        mended("started", True, "munge", "slurmd"),
        mended("fine", False, "munge", "slurmd"),
        mended("held", True, "munge", "slurmd"),
        mended("no-slurmd", True, "munge"),
        mended("nameless", True, "slurmd", slurm_node_name=None),
        *(host("odd", recover_mended=answer) for answer in (*ODD, {"changed": True, "units": "slurmd"})),
    ]
    seen = look(held=node("disk", "DRAIN"), started=node(None))
    assert nodes_to_await(workers, seen) == ["started"]
    assert nodes_to_await(workers, {}) == ["started", "held"]


def test_a_recovery_lifts_the_adapters_drains_only_if_a_person_asks() -> None:
    workers = [mended("w1", False, "slurmd"), host("w2", recover_mended={"failed": True})]
    assert drains_to_undo(workers, True) == [{"nodes": ["w1"], "owner": OUR_PREFIX}]
    assert drains_to_undo(workers, False) == drains_to_undo(workers[1:], True) == []


# -- rotating the munge key ------------------------------------------------------------------------------------------


def test_a_host_without_the_staged_key_blocks_the_rotation() -> None:
    hosts = [
        host("ready", rotation_staged={"ready": True}),
        host("refused", rotation_staged={"msg": "no"}),
        host("silent"),
        host("never-asked"),
        *(host(f"odd-{number}", rotation_staged=answer) for number, answer in enumerate(ODD)),
    ]
    answering = [one["inventory_hostname"] for one in hosts if one["inventory_hostname"] != "silent"]
    held = ["refused", "never-asked", *(f"odd-{number}" for number in range(len(ODD)))]
    assert unprepared_hosts(hosts, answering, leave_out_silent=True) == held
    assert unprepared_hosts(hosts, answering, leave_out_silent=False) == [*held, "silent"]
    assert unprepared_hosts(hosts[:1], answering, leave_out_silent=False) == []


@pytest.mark.parametrize(("took", "lead"), [(0.0, SWITCH_LEAD_SECONDS), (2.0, SWITCH_LEAD_SECONDS), (30.0, 60.0)])
def test_the_switch_is_two_rounds_ahead_and_never_too_soon(took: float, lead: float) -> None:
    assert switch_time(1000.0 + took, 1000.0) == 1000.0 + took + lead
