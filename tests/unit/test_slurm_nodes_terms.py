"""What slurm_nodes decides with: names of nodes, reasons and owners of drains, obstacles, and nodes that are held."""

from typing import Any

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.slurm import hold, leave

from tests.unit.controller_views import DOWN, OWNER, REASON, drained, job, node, verdict


@pytest.mark.parametrize(("unread", "what"), [("nodes", "nodes"), ("jobs", "jobs"), ("reservations", "reservations")])
def test_a_list_that_was_not_answered_is_named(unread: str, what: str) -> None:
    lists: dict[str, Any] = {"nodes": {"a": drained()}, "jobs": [], "reservations": []}
    found = leave.obstacle("a", lists | {unread: None})
    assert found == verdict("unknown", f"The controller did not list its {what}. The adapter retries.", "state_unknown")


def test_an_obstacle_of_a_node_has_its_code_and_its_message() -> None:
    lists: dict[str, Any] = {"nodes": {"a": drained()}, "jobs": [], "reservations": []}
    assert leave.obstacle("a", lists) is None and leave.obstacle("b", lists) == verdict("absent")
    named = leave.obstacle("a", lists | {"jobs": [job("9", 9, "PENDING", required_nodes=["a"])]})
    by_name = "Job 9 waits for node a by name. Change it (scontrol update jobid=ID nodelist=) or cancel it."
    assert named == verdict("kept", by_name, "jobs_need_node")
    reserved = leave.obstacle("a", lists | {"reservations": [{"name": "r", "nodes": ["a"]}]})
    holds = "Reservation r holds node a. Take the node out of it, or delete it."
    assert reserved == verdict("kept", holds, "node_reserved")
    odd = leave.obstacle("a", lists | {"nodes": {"a": drained() | {"state": "FUTURE"}}})
    assert odd and (odd["did"], odd["code"]) == ("unknown", "state_unknown") and odd["reason"]
    used = leave.obstacle("a", lists | {"nodes": {"a": drained() | {"jobs": ["7"]}}})
    assert used and (used["did"], used["code"]) == ("kept", "not_drained") and "7" in str(used["reason"])


# -- names, reasons and owners -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a,b", "ALL", "", "-a", "a" * 65])
def test_a_name_of_more_than_one_node_is_refused(name: str) -> None:
    with pytest.raises(AdapterError) as raised:
        leave.check_names(["fine", name])
    message = f"{name!r} is not the name of one node. Correct the member's record, then retry."
    assert raised.value.as_dict() == {"code": "node_name_refused", "message": message, "class": "intervention"}


def test_a_reason_is_one_short_line_of_ours() -> None:
    assert leave.check_reason(f'{OWNER}:\t "new"\x00\x1b  disk\n') == f"{OWNER}: 'new' disk"
    assert leave.check_reason("gpuaas:" + "x" * 300) == "gpuaas:" + "x" * 193
    with pytest.raises(AdapterError) as raised:
        leave.check_reason("fan")
    message = "A drain's reason must start with gpuaas:, which marks it as the adapter's. Correct it, then retry."
    assert raised.value.as_dict() == {"code": "reason_refused", "message": message, "class": "intervention"}


@pytest.mark.parametrize(
    ("owner", "reason", "is_owner"),
    [
        ("gpuaas:*", REASON, True),
        ("gpuaas:*", "gpuaas:manual: x", False),
        ("gpuaas:*", None, False),
        ("gpuaas:", "gpuaas:manual: x", True),
        ("gpuaas:a", "gpuaas:a", True),
        ("gpuaas:a", "gpuaas:a: x", True),
        ("gpuaas:a", "gpuaas:a x", True),
        ("gpuaas:a", "gpuaas:ab", False),
        ("gpuaas:a", "gpuaas:aX", False),
        ("gpuaas:a", "fan", False),
        ("gpuaas:a", "", False),
        ("gpuaas:a", None, False),
        ("fan", "fan", False),
        ("fan:", "fan: x", False),
    ],
)
def test_a_drain_belongs_to_the_owner_in_its_reason(owner: str, reason: str | None, is_owner: bool) -> None:
    assert leave.owns(owner, reason) is is_owner


def test_a_drain_without_a_reason_is_not_ours() -> None:
    assert leave.standing_drain(drained(None)) == verdict("held_by_person")
    assert leave.standing_drain(drained("XXXX")) == verdict("held_by_person", "XXXX")


# -- nodes that a person set down ----------------------------------------------------------------------------


def test_no_node_is_held_if_one_of_them_has_a_name_that_means_others() -> None:
    def run(change: str, command: tuple[str, ...]) -> str:
        raise AssertionError(f"{change}: {command}")

    with pytest.raises(AdapterError, match="not the name of one node"):
        hold.hold_down(lambda: {"a": DOWN["b"], "b[1-2]": DOWN["b"]}, run)


def test_a_node_that_cannot_be_held_stops_the_restart() -> None:
    for answer, cause in (("refused", "refused"), ("", "Slurm gave no reason")):
        with pytest.raises(AdapterError) as raised:
            hold.hold_down(lambda: {"b": DOWN["b"]}, lambda *_, answer=answer: answer)
        message = (
            f"Node b was set down by a person (fan) and could not be drained ({cause}). A restart would return the"
            " node to service, so nothing was restarted. The adapter retries."
        )
        assert raised.value.as_dict() == {"code": "not_held", "message": message, "class": "retryable"}


def test_a_node_that_is_gone_or_unseen_afterwards_does_not_stop_the_restart() -> None:
    afterwards: tuple[Any, ...] = ({}, None)
    for after in afterwards:
        views: list[Any] = [after, {"b": DOWN["b"]}]
        assert hold.hold_down(views.pop, lambda *_: "") == {"b": "fan"} and views == []
    looks = [{"c": node()}]
    assert hold.hold_down(looks.pop, lambda *_: "") == {} and looks == [], "one look is enough"
