"""The module slurm_nodes over a stand-in of a cluster: it claims what the controller shows afterwards."""

from collections.abc import Callable
from typing import Any

import pytest
from ansible.module_utils.host.errors import AdapterError

from plugins.modules import slurm_nodes
from tests.unit.controller_views import NOTHING, OWNER, connect, drained, node


class FakeController:
    """scontrol over simulated nodes. A command may be ignored, which Slurm does without a message."""

    def __init__(self, **nodes: dict[str, Any]) -> None:
        self.nodes: dict[str, Any] = nodes
        self.jobs: list[Any] = []
        self.reservations: list[Any] | None = []
        self.commands: list[tuple[str, ...]] = []
        self.ignores: Callable[[tuple[str, ...]], bool] = lambda _command: False
        self.answers = True

    def look_at_nodes(self, _command: object) -> dict[str, Any]:
        if not self.answers:
            return {"nodes": None, "jobs": None, "reservations": None}
        nodes = {name: dict(node) for name, node in self.nodes.items()}
        return {"nodes": nodes, "jobs": self.jobs, "reservations": self.reservations}

    def run(self, *command: str) -> tuple[int, str, str]:
        self.commands.append(command)
        if self.ignores(command):
            return 0, "", ""
        settings = dict(option.partition("=")[::2] for option in command[2:])
        for name in settings["NodeName"].split(","):
            if command[1] == "delete":
                self.nodes.pop(name, None)
            elif settings["State"] == "DRAIN":
                self.nodes[name] |= {"flags": ["DRAIN"], "reason": settings["Reason"], "reason_by": "root"}
            else:
                self.nodes[name] |= {"flags": [], "reason": None}
        return 0, "", ""


def call(monkeypatch: pytest.MonkeyPatch, controller: FakeController, **asked: Any) -> dict[str, Any]:
    connect(monkeypatch, controller.look_at_nodes, controller.run)
    result: dict[str, Any] = slurm_nodes.Call(NOTHING | asked, False).run()
    return result


def test_a_drained_node_is_deleted_and_seen_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = FakeController(w=drained())
    assert call(monkeypatch, controller, delete=["w"])["nodes"]["w"]["did"] == "deleted"
    assert controller.nodes == {}


def test_a_node_that_slurm_did_not_delete_is_not_called_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = FakeController(w=drained())
    controller.ignores = lambda command: command[1] == "delete"
    answer = call(monkeypatch, controller, delete=["w"])["nodes"]["w"]
    assert (answer["did"], answer["code"]) == ("kept", "state_unknown")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"state": "MIXED"}, "not_drained"),
        ({"flags": []}, "not_drained"),
        ({"flags": ["DRAIN", "COMPLETING"]}, "not_drained"),
        ({"jobs": ["100_7"]}, "not_drained"),
        ({"state": "UNKNOWN"}, "state_unknown"),
    ],
)
def test_no_command_is_given_for_a_node_that_is_in_use(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], code: str
) -> None:
    controller = FakeController(w=drained() | changes)
    answer = call(monkeypatch, controller, delete=["w"])["nodes"]["w"]
    assert answer["code"] == code and controller.commands == [] and "w" in controller.nodes


def test_a_waiting_job_or_a_reservation_keeps_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = FakeController(w=drained())
    controller.jobs = [{"id": 9, "address": "9", "state": "PENDING", "nodes": [], "required_nodes": ["w"]}]
    assert call(monkeypatch, controller, delete=["w"])["nodes"]["w"]["code"] == "jobs_need_node"
    controller.jobs, controller.reservations = [], [{"name": "r", "nodes": ["w"]}]
    assert call(monkeypatch, controller, delete=["w"])["nodes"]["w"]["code"] == "node_reserved"
    controller.reservations = None
    assert call(monkeypatch, controller, delete=["w"])["nodes"]["w"]["code"] == "state_unknown"
    assert controller.commands == []


def test_only_the_owner_of_a_drain_lifts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {"ours": drained(), "theirs": drained("fan is loud"), "byhand": drained("gpuaas:manual: disk")}
    controller = FakeController(**nodes)
    answer = call(monkeypatch, controller, resume=[{"nodes": list(nodes), "owner": "gpuaas:*"}])["nodes"]
    assert {name: one["did"] for name, one in answer.items()} == {"ours": "resumed", "theirs": "left", "byhand": "left"}
    assert controller.nodes["ours"]["flags"] == [] and controller.nodes["byhand"]["flags"] == ["DRAIN"]


def test_a_node_that_slurm_did_not_resume_is_not_called_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = FakeController(w=drained())
    controller.ignores = lambda _command: True
    assert call(monkeypatch, controller, resume=[{"nodes": ["w"], "owner": OWNER}])["nodes"]["w"]["did"] == "kept"


def test_what_a_person_set_down_is_drained_with_the_persons_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = FakeController(
        fan=node("DOWN", reason="broken fan"),
        lost=node("DOWN", reason="Not responding", by="slurm"),
        ours=drained(),
        fine=node(),
    )
    answer = call(monkeypatch, controller, hold_down=True)
    assert answer["nodes"] == {"fan": {"did": "held", "code": None, "reason": "broken fan"}}
    assert controller.nodes["fan"]["flags"] == ["DRAIN"] and controller.nodes["fan"]["reason"] == "broken fan"
    assert len(controller.commands) == 1


def test_nothing_is_restarted_over_a_node_that_could_not_be_held(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = FakeController(fan=node("DOWN", reason="broken fan"))
    controller.ignores = lambda _command: True
    with pytest.raises(AdapterError) as refusal:
        call(monkeypatch, controller, hold_down=True)
    assert refusal.value.code == "not_held" and "broken fan" in refusal.value.message


def test_a_controller_without_answer_has_nothing_to_hold_and_takes_no_other_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = FakeController()
    controller.answers = False
    assert call(monkeypatch, controller, hold_down=True)["nodes"] == {}
    for asked in ({"delete": ["w"]}, {"cancel": ["9"]}, {"hold_down": True, "verify_delete": ["w"]}):
        with pytest.raises(AdapterError) as refusal:
            call(monkeypatch, controller, **asked)
        assert refusal.value.code == "slurm_silent"


def test_each_drain_is_shown_with_its_holder_and_whether_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = FakeController(
        a=drained(),
        b=drained("fan is loud") | {"state": "MIXED", "jobs": ["7"]},
        c=node(),
        d=drained("Kill task failed"),
    )
    assert call(monkeypatch, controller)["drains"] == {
        "a": {"reason": f"{OWNER}: disk", "held_by": "us", "is_drained": True},
        "b": {"reason": "fan is loud", "held_by": "person", "is_drained": False},
        "d": {"reason": "Kill task failed", "held_by": "slurm", "is_drained": True},
    }
