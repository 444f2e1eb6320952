"""One call of slurm_nodes as a whole: every command, every verdict, and every text that an operator reads."""

from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.slurm import leave

from plugins.modules import slurm_nodes
from tests.unit.controller_views import (
    DOWN,
    NO_ANSWER,
    NOTHING,
    OWNER,
    REASON,
    Cluster,
    connect,
    drained,
    job,
    node,
    verdict,
)

IGNORED = "Slurm accepted the command, but the node did not change. The adapter retries."


class Clock:
    """Time that passes only in sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    def made(cluster: Cluster, *, dry: bool = False, clock: Clock | None = None, **asked: Any) -> dict[str, Any]:
        connect(monkeypatch, cluster.seen, cluster.run)
        monkeypatch.setattr(slurm_nodes, "time", clock or Clock())
        found: dict[str, Any] = slurm_nodes.Call(NOTHING | asked, dry).run()
        return found

    return made


Calling = Callable[..., dict[str, Any]]


def test_a_call_without_requests_returns_the_cluster_as_it_is(call: Calling) -> None:
    cluster = Cluster({"a": node(), "b": drained()})
    assert call(cluster) == {
        "nodes": {},
        "jobs": {},
        "drains": {"b": {"reason": REASON, "held_by": "us", "is_drained": True}},
        "changes": [],
        "snapshot": {"nodes": {"a": node(), "b": drained()}, "jobs": [], "reservations": []},
    }
    assert cluster.commands == []


# -- drain ---------------------------------------------------------------------------------------------------


def test_nodes_are_drained_by_one_command_and_judged_by_the_next_look(call: Calling) -> None:
    before = {name: node("MIXED") for name in ("kept", "gone", "done", "taken")} | {"ours": drained()}
    after = {"kept": node("MIXED"), "done": drained(), "taken": drained("fan"), "ours": drained()}
    cluster = Cluster(before, after)
    names = ["taken", "ours", "kept", "gone", "done", "absent", "done"]
    found = call(cluster, drain=[{"nodes": names, "reason": REASON}])
    assert cluster.commands == [
        ("scontrol", "update", "NodeName=done,gone,kept,taken", "State=DRAIN", f"Reason={REASON}")
    ]
    assert found["changes"] == ["nodes done,gone,kept,taken drained"]
    assert found["nodes"] == {
        "absent": verdict("absent", "The controller has no node absent."),
        "ours": verdict("already_draining", REASON),
        "kept": verdict("kept", IGNORED, "not_drained"),
        "gone": verdict("absent", "Node gone was deleted meanwhile."),
        "done": verdict("drained", REASON),
        "taken": verdict("held_by_person", "fan"),
    }


def test_what_slurm_answers_is_the_reason_of_a_node_that_stays(call: Calling) -> None:
    for answer, reason in (((" output \n", ""), "output"), (("output", "refused"), "refused")):
        cluster = Cluster({"a": node()}, answers=[answer])
        found = call(cluster, drain=[{"nodes": ["a"], "reason": REASON}])
        assert found["nodes"] == {"a": verdict("kept", reason, "not_drained")}


def test_a_dry_run_changes_nothing_and_names_the_changes(call: Calling) -> None:
    cluster = Cluster({"a": node(), "b": node("DOWN", reason="fan")})
    found = call(cluster, dry=True, drain=[{"nodes": ["a"], "reason": REASON}], hold_down=True)
    assert (cluster.commands, found["changes"]) == ([], ["nodes a drained"])
    reason = "Nothing was changed: this is a dry run."
    assert found["nodes"] == {"a": verdict("kept", reason, "not_drained")}


def test_a_request_for_nodes_that_need_no_change_gives_no_command(call: Calling) -> None:
    cluster = Cluster({"a": drained(), "b": node()})
    found = call(
        cluster, drain=[{"nodes": ["a"], "reason": REASON}], resume=[{"nodes": ["b"], "owner": OWNER}], delete=["c"]
    )
    assert (cluster.commands, found["changes"]) == ([], [])


def test_an_order_without_a_change_does_not_end_the_orders_after_it(call: Calling) -> None:
    cluster = Cluster({"a": drained(), "b": node()})
    drains = [{"nodes": [name], "reason": REASON} for name in "ab"]
    assert call(cluster, dry=True, drain=drains)["changes"] == ["nodes b drained"]
    resumes = [{"nodes": [name], "owner": OWNER} for name in "ba"]
    assert call(cluster, dry=True, resume=resumes)["changes"] == ["nodes a resumed"]


def test_a_drain_that_slurm_set_itself_is_held_by_slurm(call: Calling) -> None:
    low_memory = node("IDLE", "DRAIN", reason="Low RealMemory", by="slurm")
    drains = call(Cluster({"a": low_memory, "b": low_memory | {"reason_by": "root"}}))["drains"]
    assert {name: one["held_by"] for name, one in drains.items()} == {"a": "slurm", "b": "person"}


# -- resume --------------------------------------------------------------------------------------------------


def test_only_drains_of_the_owner_are_lifted_and_judged_by_the_next_look(call: Calling) -> None:
    before = {name: drained() for name in ("done", "gone", "kept", "taken")}
    before |= {"free": node(), "theirs": drained("fan"), "blank": drained(None)}
    after = before | {"done": node(), "kept": drained(), "taken": drained("fan")}
    del after["gone"]
    cluster = Cluster(before, after)
    found = call(cluster, resume=[{"nodes": [*before, "absent"], "owner": OWNER}])
    assert cluster.commands == [("scontrol", "update", "NodeName=done,gone,kept,taken", "State=UNDRAIN")]
    assert found["changes"] == ["nodes done,gone,kept,taken resumed"]
    assert found["nodes"] == {
        "absent": verdict("absent", "The controller has no node absent."),
        "free": verdict("left", "Node free is not drained."),
        "theirs": verdict("left", "Another owner drained theirs: fan."),
        "blank": verdict("left", "Another owner drained blank: no reason given."),
        "done": verdict("resumed"),
        "gone": verdict("absent", "Node gone was deleted meanwhile."),
        "kept": verdict("kept", IGNORED),
        "taken": verdict("resumed"),
    }


def test_a_resumed_node_is_shown_once_it_answers(call: Calling) -> None:
    unresponsive = {"a": node("IDLE", "NOT_RESPONDING"), "other": node("IDLE", "NOT_RESPONDING")}
    orders = [{"nodes": ["a"], "owner": OWNER}]
    clock = Clock()
    cluster = Cluster({"a": drained()}, unresponsive, unresponsive, unresponsive | {"a": node()})
    assert call(cluster, clock=clock, resume=orders)["nodes"] == {"a": verdict("resumed")}
    assert clock.sleeps == [0.2, 0.2]
    clock, cluster = Clock(), Cluster({"a": drained()}, unresponsive)
    clock.sleep = lambda seconds: (clock.sleeps.append(seconds), setattr(clock, "now", clock.now + 5))  # type: ignore
    assert call(cluster, clock=clock, resume=orders)["nodes"] == {"a": verdict("resumed")}
    assert clock.sleeps == [0.2] * 3 and clock.now == 15.0, "at ten seconds it is asked once more"
    clock, cluster = Clock(), Cluster({"a": drained()}, unresponsive)
    call(cluster, clock=clock, dry=True, resume=orders)
    assert clock.sleeps == []


# -- delete --------------------------------------------------------------------------------------------------


def test_nodes_are_checked_and_deleted_by_one_command(call: Calling) -> None:
    before = {"busy": node("MIXED"), "done": drained(), "kept": drained()}
    cluster = Cluster(before, {"busy": node("MIXED"), "kept": drained()})
    found = call(cluster, delete=["kept", "done", "busy", "absent"])
    assert cluster.commands == [("scontrol", "delete", "NodeName=done,kept")]
    assert found["changes"] == ["nodes done,kept deleted"]
    busy = leave.obstacle("busy", {"nodes": before, "jobs": [], "reservations": []})
    assert found["nodes"] == {
        "absent": verdict("absent"),
        "busy": busy,
        "done": verdict("deleted"),
        "kept": verdict("kept", IGNORED, "state_unknown"),
    }


def test_a_check_for_deletion_changes_nothing(call: Calling) -> None:
    before = {"busy": node("MIXED"), "free": drained()}
    cluster = Cluster(before)
    found = call(cluster, verify_delete=["free", "busy"])
    busy = leave.obstacle("busy", {"nodes": before, "jobs": [], "reservations": []})
    assert found["nodes"] == {"busy": busy, "free": verdict("deletable")} and cluster.commands == []


# -- a controller that does not answer -----------------------------------------------------------------------


def error_of(call: Calling, cluster: Cluster, **asked: Any) -> tuple[str, str, str]:
    with pytest.raises(AdapterError) as raised:
        call(cluster, **asked)
    return raised.value.code, raised.value.message, raised.value.error_class


def test_a_controller_that_does_not_answer_is_a_retryable_error(call: Calling) -> None:
    before = "slurm_silent", NO_ANSWER.format(when=""), "retryable"
    after = "slurm_silent", NO_ANSWER.format(when=" after the changes"), "retryable"
    for asked in ({"delete": ["a"]}, {"verify_delete": ["a"]}, {"drain": [{"nodes": ["a"], "reason": REASON}]}):
        assert error_of(call, Cluster(None), **asked) == before
    assert error_of(call, Cluster(None)) == after
    assert error_of(call, Cluster({}, None), delete=["a"], hold_down=True) == before
    assert error_of(call, Cluster({"a": drained()}, None), delete=["a"]) == before
    assert error_of(call, Cluster({"a": drained()}, {}, None), delete=["a"]) == after
    assert error_of(call, Cluster({}, None), verify_delete=["a"], hold_down=True) == before
    held_only = call(Cluster(None), hold_down=True)
    assert (held_only["nodes"], held_only["drains"], held_only["snapshot"]["nodes"]) == ({}, {}, None)


# -- nodes that a person set down ----------------------------------------------------------------------------


def test_nodes_that_a_person_set_down_are_drained_with_their_reason(call: Calling) -> None:
    after = DOWN | {name: node("DOWN", "DRAIN", reason="fan") for name in "ab"}
    cluster = Cluster(DOWN, after)
    found = call(cluster, hold_down=True)
    assert cluster.commands == [
        ("scontrol", "update", "NodeName=a", "State=DRAIN", "Reason=set down by a person"),
        ("scontrol", "update", "NodeName=b", "State=DRAIN", "Reason=fan"),
    ]
    assert found["changes"] == ["node a held", "node b held"]
    assert found["nodes"] == {"a": verdict("held", "set down by a person"), "b": verdict("held", "fan")}


@pytest.mark.parametrize("reason", [REASON, "Kill task failed"])
def test_a_node_that_no_person_set_down_is_not_held(call: Calling, reason: str) -> None:
    cluster = Cluster({"a": node("DOWN", reason=reason)})
    assert call(cluster, hold_down=True)["nodes"] == {} and cluster.commands == []


# -- jobs ----------------------------------------------------------------------------------------------------


def test_the_kinds_of_evictions_come_in_order(call: Calling) -> None:
    jobs = [job("7", 7), job("8", 8, "PENDING", required_nodes=["a"]), job("9", 9)]
    cluster = Cluster({"a": node()}, jobs=jobs)
    found = call(cluster, requeue=["7"], unpin=["8"], cancel=["9"])
    assert cluster.commands == [
        ("scontrol", "requeue", "7"),
        ("scontrol", "update", "JobId=8", "NodeList="),
        ("scancel", "9"),
    ]
    assert found["changes"] == ["jobs 7 requeued", "job 8 unpinned", "jobs 9 cancelled"]
    assert found["jobs"] == {
        "7": verdict("kept", "Job 7 is RUNNING."),
        "8": verdict("kept", "Job 8 still names its nodes."),
        "9": verdict("kept", "Job 9 is RUNNING."),
    }
