"""Workers that are removed or replaced: what is done for which world, tick by tick, on a cluster in memory."""

from typing import Any
from uuid import UUID

import pytest

from runner.model.plan import AdapterError, Finish, Play, Refuse, Wait
from runner.model.platform import Member
from runner.model.world import Outcome, World
from runner.slurm.decide import decide
from runner.slurm.decide.workers.results import member_result
from runner.slurm.snapshot import Reservation
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.leave_steps import IN_USE
from tests.unit.lifecycle import ask, cluster, playbooks, serving, the, tick
from tests.unit.worlds import add, of_kind, worker


def test_remove_waits_for_the_job_then_takes_it_out_of_slurm_and_off_the_host() -> None:
    one, other = serving(2), serving(3)
    slurm = FakeSlurm({"w2": FakeNode({7}), "w3": FakeNode({9})})
    now = cluster(one, other, operations=(ask("remove", one),))
    now, _, plays = tick(now, slurm)
    assert the(now, one).status == "draining" and "w2" in slurm.nodes
    slurm.nodes["w2"].jobs.clear()
    now, steps, plays = tick(now, slurm)
    assert [play.playbook for play in plays] == ["drain_worker", "remove_worker"]
    gone = the(now, one)
    assert gone.status == "deleted" and gone.adapter_detail["host_cleaned"] is True
    assert gone.adapter_detail["allocation_released_by"] == "platform"
    assert set(slurm.nodes) == {"w3"} and slurm.nodes["w3"].jobs == {9}
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]


@pytest.mark.parametrize("obstacle", ["pending job", "reservation", "no answer"])
def test_remove_waits_while_something_needs_the_node_or_nothing_is_known(obstacle: str) -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    if obstacle == "pending job":
        slurm.pending_on[11] = "w2"
    elif obstacle == "reservation":
        slurm.reservations["maint"] = "w2"
    else:
        slurm.answers = False
    now = cluster(one, operations=(ask("remove", one),))
    for _ in range(2):
        now, steps, _ = tick(now, slurm)
        assert "w2" in slurm.nodes and the(now, one).status == "draining"
        assert of_kind(steps, Wait)
    slurm.pending_on.clear()
    slurm.reservations.clear()
    slurm.answers = True
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "deleted"


@pytest.mark.parametrize(("state", "flags"), [("UNKNOWN", set()), (None, {"UNDRAIN"}), ("ERROR", set())])
def test_a_node_that_may_be_in_use_is_not_asked_to_be_deleted(state: str | None, flags: set[str]) -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, _, _ = tick(cluster(one, operations=(ask("remove", one),)), slurm)
    node = slurm.nodes["w2"]
    node.jobs, node.state, node.flags = set(), state, flags
    now, _, plays = tick(now, slurm)
    assert playbooks(plays) == ["drain_worker"] and slurm.refused_deletions == []
    node.state, node.flags = None, set()
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "deleted"


def test_a_removal_waits_for_a_lost_host_then_continues_and_reports_it_uncleaned() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, hosts_down={"w2"})
    now = cluster(one, operations=(ask("remove", one, parameters={"host_patience_seconds": 100}),))
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "deleting" and "w2" in slurm.nodes
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "deleting"
    now, steps, _ = tick(now, slurm)
    gone = the(now, one)
    assert gone.status == "deleted" and gone.adapter_detail["host_cleaned"] is False
    assert gone.adapter_detail["host_left"]
    assert "w2" not in slurm.nodes
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]


def test_a_released_allocation_is_not_dialled_and_its_node_is_taken_out() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    now = cluster(one, operations=(ask("remove", one),))
    released = now.allocations[UUID(int=102)].model_copy(update={"status": "released"})
    now, _, plays = tick(now.later(allocations={**now.allocations, released.id: released}), slurm)
    assert all(member.component_key == "controller" for play in plays for member in play.members)
    assert the(now, one).status == "deleted" and "w2" not in slurm.nodes


def test_a_worker_whose_bootstrap_failed_is_cleaned_by_remove() -> None:
    one = worker(add(2), 2, status="failed")
    slurm = FakeSlurm()
    now, _, plays = tick(cluster(one, operations=(ask("remove", one),)), slurm)
    assert the(now, one).status == "deleted"
    assert [play.playbook for play in plays] == ["remove_worker"]


def test_replace_brings_the_new_one_first_and_then_takes_the_old_one_out() -> None:
    old = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    now, steps, plays = tick(cluster(old, operations=(ask("replace", old, allocations=(5,)),)), slurm)
    assert [play.playbook for play in plays] == ["add_worker", "drain_worker", "remove_worker"]
    assert set(slurm.nodes) == {"w5"}
    assert the(now, old).status == "deleted"
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "succeeded" and len(finish.result["members"]) == 2


def test_a_replacement_that_fails_leaves_the_old_one_serving() -> None:
    old = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})}, hosts_down={"w5"})
    now = cluster(old, operations=(ask("replace", old, allocations=(5,)),))
    for _ in range(4):
        now, _, plays = tick(now, slurm, seconds=300)
        assert {play.playbook for play in plays} <= {"add_worker", "observe"}
    assert not now.operations
    assert the(now, old).status == "ready" and slurm.nodes["w2"].reason is None


@pytest.mark.parametrize(
    "change",
    [
        {"status": "release_failed"},
        {"status": "provisioning"},
        {"connection": {"host": "10.0.0.2", "port": 22, "username": "ops", "host_keys": []}},
    ],
)
def test_a_host_whose_record_is_not_usable_is_waited_for_and_not_forgotten(change: Any) -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    now = cluster(one, operations=(ask("remove", one, parameters={"host_patience_seconds": 0}),))
    odd = now.allocations[UUID(int=102)].model_copy(update=change)
    now, steps, _ = tick(now.later(allocations={**now.allocations, odd.id: odd}), slurm)
    assert the(now, one).status == "deleting" and "w2" in slurm.nodes
    assert of_kind(steps, Wait)


def test_patience_with_a_host_starts_anew_when_it_has_answered() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, hosts_down={"w2"})
    now = cluster(one, operations=(ask("remove", one, parameters={"host_patience_seconds": 100}),))
    now, _, _ = tick(now, slurm)
    slurm.hosts_down = set()
    slurm.breaks_on_host = {"w2"}
    now, _, _ = tick(now, slurm)
    slurm.hosts_down, slurm.breaks_on_host = {"w2"}, set()
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "deleting" and "w2" in slurm.nodes, "it was forgotten too early"


# -- homes -----------------------------------------------------------------------------------------------------


def test_homes_go_only_from_the_hosts_of_workers_whose_operation_asks_for_it() -> None:
    one, two = serving(2), serving(3)
    slurm = FakeSlurm({"w2": FakeNode(), "w3": FakeNode()})
    asked = (ask("remove", one, parameters={"remove_homes": True}), ask("remove", two))
    _, _, plays = tick(cluster(one, two, operations=asked), slurm)
    removals = [play for play in plays if play.playbook == "remove_worker"]
    assert {member.id for play in removals for member in play.members} >= {one.id, two.id}
    assert [play.terms["decommission_homes_of"] for play in removals] == [[str(one.id)]]


@pytest.mark.parametrize(
    ("verb", "value"), [("drain", True), ("remove", "yes"), ("remove", 1), ("replace", "true"), ("remove", None)]
)
def test_remove_homes_is_refused_unless_it_is_a_plain_yes_for_a_removal(verb: str, value: Any) -> None:
    one = serving(2)
    named = {"allocation_ids": add(5).allocation_ids} if verb == "replace" else {}
    operation = ask(verb, one, parameters={"remove_homes": value}).model_copy(update=named)
    plan = decide(cluster(one, operations=(operation,)))
    (refusal,) = of_kind(plan.steps, Refuse)
    assert refusal.code == "parameters_invalid" and plan.play is None


def test_homes_that_are_left_stand_in_the_operations_result() -> None:
    left = [f"/home/u{number}: kept" for number in range(5)]
    one = serving(2)
    found = member_result(one.model_copy(update={"adapter_detail": {**one.adapter_detail, "homes_left": left}}), None)
    assert found["homes_left"] == left[:3]
    assert "homes_left" not in member_result(one, None)


@pytest.mark.parametrize("lost", [False, True])
def test_a_worker_is_not_deleted_before_the_controller_shows_that_its_node_is_gone(lost: bool) -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, ghosts={"w2"}, hosts_down={"w2"} if lost else set())
    now = cluster(one, operations=(ask("remove", one, parameters={"host_patience_seconds": 0}),))
    for _ in range(2):
        now, steps, _ = tick(now, slurm)
        assert the(now, one).status == "deleting" and len(now.operations) == 1
        assert any("has not confirmed" in wait.why for wait in of_kind(steps, Wait))
    slurm.ghosts.clear()
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "deleted" and "w2" not in slurm.nodes


def test_a_removal_that_fails_on_its_host_is_tried_a_bounded_number_of_times() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()}, breaks_on_host={"w2"})
    now = cluster(one, operations=(ask("remove", one),))
    tried = 0
    for _ in range(now.policy.max_attempts + 3):
        now, _, plays = tick(now, slurm, seconds=4000)
        tried += sum(play.playbook == "remove_worker" for play in plays)
    assert tried == now.policy.max_attempts
    assert the(now, one).status == "failed" and now.operations == ()


def refuses(slurm: FakeSlurm, code: str) -> None:
    """The worker's host answers this to its removal, whatever the controller shows."""
    on_host = slurm._on_host

    def answer(play: Play, member: Member) -> Outcome:
        if play.playbook != "remove_worker":
            return on_host(play, member)
        return Outcome("stopping", {}, AdapterError(code, "not now", "retryable", host="w2"))

    slurm._on_host = answer  # type: ignore[method-assign]


@pytest.mark.parametrize("code", IN_USE)
def test_a_host_that_calls_its_free_node_in_use_is_tried_a_bounded_number_of_times(code: str) -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    refuses(slurm, code)
    now = cluster(one, operations=(ask("remove", one),))
    for _ in range(now.policy.max_attempts + 1):
        now, _, _ = tick(now, slurm, seconds=4000)
    assert the(now, one).status == "failed" and now.operations == ()
    assert the(now, one).adapter_detail["last_adapter_error"]["code"] == code


@pytest.mark.parametrize("why", ["reserved", "reservations unknown", "no snapshot", "controller failed"])
def test_a_node_that_the_controller_shows_in_use_is_waited_for_without_limit(why: str) -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    refuses(slurm, "state_unknown")
    run = slurm.run

    def changed_meanwhile(now: World, play: Play) -> World:
        then = run(now, play)
        if play.playbook != "remove_worker" or then.snapshot is None:
            return then
        if why == "controller failed":
            failed = Outcome("serving", {}, AdapterError("slurm_silent", "no answer", "retryable"))
            return then.later(outcomes={**then.outcomes, play.members[0].id: failed})
        held = [Reservation(name="maint", nodes=["w2"])] if why == "reserved" else None
        seen = then.snapshot.model_copy(update={"reservations": held})
        return then.later(snapshot=None if why == "no snapshot" else seen)

    slurm.run = changed_meanwhile  # type: ignore[method-assign, assignment]
    now = cluster(one, operations=(ask("remove", one),))
    for _ in range(now.policy.max_attempts + 3):
        now, _, _ = tick(now, slurm, seconds=4000)
    assert the(now, one).status == "deleting" and len(now.operations) == 1
