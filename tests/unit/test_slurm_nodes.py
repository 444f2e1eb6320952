"""Which nodes may be drained, resumed or deleted, judged from answers recorded on real clusters."""

from typing import Any

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.slurm.jobs import parse_jobs, with_jobs
from ansible.module_utils.slurm.leave import check_names, check_reason, obstacle, owns, to_drain, to_resume
from ansible.module_utils.slurm.parse import parse_nodes
from ansible.module_utils.slurm.reservations import parse_reservations
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.recorded_slurm import VERSIONS, each_version, recorded


def seen(version: str, situation: str) -> dict[str, Any]:
    nodes = parse_nodes(recorded(version, situation, "nodes.json"))
    jobs = parse_jobs(recorded(version, situation, "jobs.json"))
    both = nodes is not None and jobs is not None
    return {"nodes": with_jobs(nodes or {}, jobs or []) if both else None, "jobs": jobs, "reservations": []}


def node(state: str = "IDLE", *flags: str, reason: str | None = None, jobs: list[int] | None = None) -> dict[str, Any]:
    return {"state": state, "flags": sorted(flags), "reason": reason, "jobs": jobs or []}


def world(found: dict[str, Any], jobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"nodes": {"w": found}, "jobs": jobs or [], "reservations": []}


def code(found: dict[str, Any], **more: Any) -> str | None:
    refusal = obstacle("w", {**world(found), **more})
    return refusal["code"] if refusal else None


@each_version
def test_a_drained_node_without_jobs_may_be_deleted(version: str) -> None:
    first, _ = VERSIONS[version]
    assert obstacle(first, {**seen(version, "drained"), "jobs": []}) is None


@each_version
@pytest.mark.parametrize("situation", ["idle", "mixed", "draining"])
def test_a_node_that_serves_or_still_drains_is_kept(version: str, situation: str) -> None:
    refusal = obstacle(VERSIONS[version][0], seen(version, situation))
    assert refusal is not None
    assert (refusal["did"], refusal["code"]) == ("kept", "not_drained")


@each_version
@pytest.mark.parametrize("situation", ["controller_down", "munge_down"])
def test_a_controller_that_does_not_answer_frees_no_node(version: str, situation: str) -> None:
    refusal = obstacle(VERSIONS[version][0], seen(version, situation))
    assert refusal is not None
    assert (refusal["did"], refusal["code"]) == ("unknown", "state_unknown")


@each_version
def test_a_deleted_node_is_absent_and_not_in_anybodys_way(version: str) -> None:
    refusal = obstacle(VERSIONS[version][1], seen(version, "absent"))
    assert refusal == {"did": "absent", "code": None, "reason": None}


def test_a_job_that_waits_for_the_node_by_name_holds_it() -> None:
    waiting = {"id": 9, "address": "9", "state": "PENDING", "nodes": [], "required_nodes": ["v", "w"], "end_time": None}
    assert code(node("IDLE", "DRAIN"), jobs=[waiting]) == "jobs_need_node"
    assert code(node("IDLE", "DRAIN"), jobs=[{**waiting, "required_nodes": ["v"]}]) is None


def test_a_job_seen_only_by_squeue_holds_its_node() -> None:
    assert code(node("IDLE", "DRAIN", jobs=[4])) == "not_drained"


def test_a_reservation_holds_its_nodes_and_unreadable_ones_hold_all() -> None:
    assert code(node("IDLE", "DRAIN"), reservations=[{"name": "r", "nodes": ["w"]}]) == "node_reserved"
    assert code(node("IDLE", "DRAIN"), reservations=[{"name": "r", "nodes": ["v"]}]) is None
    assert code(node("IDLE", "DRAIN"), reservations=None) == "state_unknown"


@pytest.mark.parametrize("state", ["UNKNOWN", "FUTURE", "ERROR"])
def test_a_state_that_shows_nothing_about_jobs_is_not_drained(state: str) -> None:
    assert code(node(state, "DRAIN")) == "state_unknown"


def test_a_drained_node_of_a_lost_host_may_be_deleted() -> None:
    assert code(node("DOWN", "DRAIN", "NOT_RESPONDING")) is None


@given(
    state=st.sampled_from(["IDLE", "MIXED", "ALLOCATED", "DOWN", "UNKNOWN", "ERROR", "FUTURE"]),
    flags=st.sets(st.sampled_from(["DRAIN", "UNDRAIN", "COMPLETING", "NOT_RESPONDING", "PLANNED", "DYNAMIC_NORM"])),
    on_it=st.lists(st.integers(1, 9), max_size=2),
    wanted=st.booleans(),
    reserved=st.booleans(),
)
def test_no_node_that_anything_needs_is_ever_free(
    state: str, flags: set[str], on_it: list[int], wanted: bool, reserved: bool
) -> None:
    jobs = (
        [{"id": 9, "address": "9", "state": "PENDING", "nodes": [], "required_nodes": ["w"], "end_time": None}]
        if wanted
        else []
    )
    reservations = [{"name": "r", "nodes": ["w"]}] if reserved else []
    free = code(node(state, *flags, jobs=on_it), jobs=jobs, reservations=reservations) is None
    drained = "DRAIN" in flags and not flags & {"UNDRAIN", "COMPLETING"} and state in ("IDLE", "DOWN")
    assert free == (drained and not on_it and not wanted and not reserved)


def test_only_nodes_without_a_drain_are_drained_so_that_no_reason_is_overwritten() -> None:
    nodes = {
        "serving": node("MIXED"),
        "ours": node("IDLE", "DRAIN", reason="gpuaas:op-1: disk"),
        "theirs": node("IDLE", "DRAIN", reason="fan is loud"),
    }
    wanted, left = to_drain(["serving", "ours", "theirs", "gone"], nodes)
    assert wanted == ["serving"]
    assert {name: verdict["did"] for name, verdict in left.items()} == {
        "ours": "already_draining",
        "theirs": "held_by_person",
        "gone": "absent",
    }
    assert left["theirs"]["reason"] == "fan is loud"


def test_only_a_drain_of_the_same_owner_is_lifted() -> None:
    nodes = {
        "ours": node("IDLE", "DRAIN", reason="gpuaas:op-1: disk"),
        "longer": node("IDLE", "DRAIN", reason="gpuaas:op-12: disk"),
        "theirs": node("IDLE", "DRAIN", reason="fan is loud"),
        "serving": node("IDLE"),
    }
    wanted, left = to_resume([*nodes, "gone"], "gpuaas:op-1", nodes)
    assert wanted == ["ours"]
    assert {name: verdict["did"] for name, verdict in left.items()} == {
        "longer": "left",
        "theirs": "left",
        "serving": "left",
        "gone": "absent",
    }


@pytest.mark.parametrize(
    ("owner", "reason", "whose"),
    [
        ("gpuaas:", "gpuaas:op-1: disk", True),
        ("gpuaas:op-1", "gpuaas:op-1", True),
        ("gpuaas:op-1", None, False),
        ("", "fan is loud", False),
        ("fan", "fan is loud", False),
    ],
)
def test_an_owner_is_known_by_the_start_of_the_reason(owner: str, reason: str | None, whose: bool) -> None:
    assert owns(owner, reason) is whose


@pytest.mark.parametrize("name", ["", "ALL", "all", "a,b", "a[1-3]", "a b", "-a", "a=b", "a\n"])
def test_a_name_that_could_mean_other_nodes_is_refused(name: str) -> None:
    with pytest.raises(AdapterError) as refusal:
        check_names([name])
    assert refusal.value.code == "node_name_refused"


def test_a_reason_is_one_line_with_our_prefix() -> None:
    assert check_reason('gpuaas:op-1:  the\n"new"\x1b disk ') == "gpuaas:op-1: the 'new' disk"
    with pytest.raises(AdapterError):
        check_reason("fan is loud")


@each_version
def test_reservations_are_read_with_every_node_they_hold(version: str) -> None:
    answer = recorded(version, "reserved", "reservations.txt")
    letter = VERSIONS[version][0][0]
    assert parse_reservations(answer) == [
        {"name": "both", "nodes": [f"lv-{letter}w1", f"lv-{letter}w2"]},
        {"name": "maint", "nodes": [f"lv-{letter}w1"]},
    ]


@each_version
def test_no_reservations_is_an_answer_of_its_own(version: str) -> None:
    assert parse_reservations(recorded(version, "idle", "reservations.txt")) == []


@pytest.mark.parametrize("answer", [None, "", "\n", "slurm_load_reservations error", "ReservationName=a Nodes"])
def test_reservations_that_cannot_be_read_are_unknown_and_not_none(answer: str | None) -> None:
    assert parse_reservations(answer) is None
