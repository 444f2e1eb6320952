"""Workers on their way out: what is done for which world, tick by tick, on a cluster in mind."""

from typing import Any
from uuid import UUID

import pytest

from runner.model.plan import AdapterError, Claim, Finish, Play, Refuse, SetMember, Wait
from runner.model.platform import Member, Operation
from runner.model.world import Outcome, World
from runner.slurm.decide import decide
from runner.slurm.decide.workers import clean_host
from runner.slurm.decide.workers.results import member_result
from runner.slurm.snapshot import Reservation
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, cluster, serving, the, tick
from tests.unit.worlds import add, controller, of_kind, worker


def test_drain_marks_the_node_with_our_prefix_the_operation_and_the_operators_words() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    drain = ask("drain", one, parameters={"reason": "disk swap"})
    tick(cluster(one, operations=(drain,)), slurm)
    assert slurm.nodes["w2"].reason == f"gpuaas:{drain.id}: disk swap"


def test_a_node_stays_draining_over_ticks_until_its_job_is_gone() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now = cluster(one, operations=(ask("drain", one),))
    for _ in range(3):
        now, steps, plays = tick(now, slurm)
        member = the(now, one)
        assert (member.status, member.adapter_detail["phase"]) == ("draining", "draining")
        assert member.adapter_detail["jobs_remaining"] == 1 and member.adapter_detail["jobs"] == ["7"]
        assert not of_kind(steps, Finish)
        assert [play.playbook for play in plays] == ["drain_worker"]
    slurm.nodes["w2"].jobs.clear()
    now, steps, _ = tick(now, slurm)
    assert the(now, one).adapter_detail["phase"] == "drained"
    assert [finish.status for finish in of_kind(steps, Finish)] == ["succeeded"]


def test_many_drains_are_one_play_and_one_call() -> None:
    members = [serving(number) for number in (2, 3, 4)]
    slurm = FakeSlurm({f"w{number}": FakeNode() for number in (2, 3, 4)})
    _, _, plays = tick(cluster(*members, operations=(ask("drain", *members),)), slurm)
    (play,) = plays
    (order,) = play.work["drain"]
    assert order["nodes"] == ["w2", "w3", "w4"]


@pytest.mark.parametrize("policy", ["requeue", "cancel"])
def test_at_the_deadline_remaining_jobs_are_ended_as_chosen_and_it_is_said(policy: str) -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7, 8})})
    terms = {"deadline_seconds": 100, "on_deadline": policy}
    now = cluster(one, operations=(ask("drain", one, parameters=terms),))
    now, _, plays = tick(now, slurm)
    assert slurm.nodes["w2"].jobs == {7, 8}
    now, _, plays = tick(now, slurm)
    assert slurm.nodes["w2"].jobs == {7, 8}  # 60 s: not yet
    now, steps, plays = tick(now, slurm)
    assert [play.work[policy] for play in plays if play.work.get(policy)] == [["7", "8"]]
    assert of_kind(steps, Finish) == [], "the jobs are being cleared away"
    now, steps, _ = tick(now, slurm)
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "succeeded"
    assert finish.result["members"][str(one.id)]["did"] == f"{policy} of job 7, 8"


def test_giving_up_at_the_deadline_undrains_loses_nothing_and_fails_the_operation() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now = cluster(one, operations=(ask("drain", one, parameters={"deadline_seconds": 0, "on_deadline": "give_up"}),))
    now, steps, _ = tick(now, slurm)
    assert slurm.nodes["w2"].reason is None and slurm.nodes["w2"].jobs == {7}
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error["code"]) == ("failed", "drain_deadline")
    assert the(now, one).status == "ready"


def test_a_drain_set_by_a_person_is_respected_reported_and_never_undone() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7}, reason="alice: bad fan")})
    now = cluster(one, operations=(ask("drain", one, parameters={"deadline_seconds": 100}),))
    now, _, _ = tick(now, slurm)
    assert the(now, one).adapter_detail["drain_reason"] == "alice: bad fan"
    assert the(now, one).adapter_detail["drain_held_by"] == "person"
    now, _, _ = tick(now, slurm)
    now, steps, _ = tick(now, slurm, seconds=1)  # the deadline: given up, but not undone
    assert slurm.nodes["w2"].reason == "alice: bad fan"
    assert [finish.status for finish in of_kind(steps, Finish)] == ["failed"]
    assert the(now, one).status == "draining"
    now, steps, plays = tick(now, slurm)
    assert not plays and not of_kind(steps, SetMember), "it settles"


def test_cancelling_a_drain_undrains_what_was_ours() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, _, _ = tick(cluster(one, operations=(ask("drain", one),)), slurm)
    assert slurm.nodes["w2"].reason
    now, _, _ = tick(now.later(operations=()), slurm, seconds=1)
    assert slurm.nodes["w2"].reason is None
    assert the(now, one).status == "ready"
    _, steps, plays = tick(now, slurm)
    assert not plays and not of_kind(steps, SetMember), "it settles"


def test_a_worker_a_person_undrained_serves_again() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    now, _, _ = tick(cluster(one, operations=(ask("drain", one),)), slurm)
    assert the(now, one).status == "draining"
    slurm.nodes["w2"].reason = None
    now, _, _ = tick(now.later(instance=now.instance.model_copy(update={"status_detail": {}})), slurm)
    assert the(now, one).status == "ready"


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
    ("make", "code"),
    [
        (lambda one: ask("drain"), "no_members"),
        (lambda one: ask("drain", one, one), "member_twice"),
        (lambda one: ask("drain", serving(3)), "member_not_found"),
        (lambda one: ask("remove", controller(status="ready")), "controller_not_supported"),
        (lambda one: ask("replace", one), "allocations_required"),
        (lambda one: ask("replace", one, allocations=(5, 6)), "replace_uneven"),
        (lambda one: ask("drain", one, parameters={"deadline_seconds": -1}), "parameters_invalid"),
        (
            lambda one: ask("drain", one, parameters={"on_deadline": "explode", "deadline_seconds": 1}),
            "parameters_invalid",
        ),
        (lambda one: ask("drain", one, parameters={"on_deadline": "cancel"}), "parameters_invalid"),
        (lambda one: ask("drain", one, parameters={"reason": "x\nNodeName=evil"}), "parameters_invalid"),
        (lambda one: ask("drain", one, parameters={"force": True}), "parameters_invalid"),
    ],
)
def test_what_cannot_be_asked_is_refused_and_touches_nothing(make: Any, code: str) -> None:
    one = serving(2)
    (refusal,) = decide(cluster(one, operations=(make(one),))).steps
    assert isinstance(refusal, Refuse) and refusal.code == code and refusal.why


@pytest.mark.parametrize(
    ("verb", "status"), [("drain", "failed"), ("drain", "deleted"), ("remove", "deleted"), ("replace", "deleted")]
)
def test_a_member_in_a_state_that_does_not_allow_it_is_refused(verb: str, status: str) -> None:
    one = serving(2, status=status)
    allocations = (5,) if verb == "replace" else ()
    (refusal,) = decide(cluster(one, operations=(ask(verb, one, allocations=allocations),))).steps
    assert isinstance(refusal, Refuse) and refusal.code == "member_state"


def test_two_operations_on_one_member_go_in_order_of_creation() -> None:
    one, other = serving(2), serving(3)
    drain, remove = ask("drain", one), ask("remove", one, age=1)
    elsewhere = ask("drain", other, age=2)
    slurm = FakeSlurm({"w2": FakeNode({7}), "w3": FakeNode()})
    now, steps, _ = tick(cluster(one, other, operations=(drain, remove, elsewhere)), slurm)
    claimed = {claim.subject.id for claim in of_kind(steps, Claim) if isinstance(claim.subject, Operation)}
    assert claimed == {drain.id, elsewhere.id}
    assert any("came first" in wait.why for wait in of_kind(steps, Wait))
    slurm.nodes["w2"].jobs.clear()
    now, _, _ = tick(now, slurm)
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "deleted" and the(now, other).status == "draining"


def test_a_worker_given_back_is_looked_at_until_it_is_seen_serving() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now = cluster(one, operations=(ask("drain", one, parameters={"deadline_seconds": 0}),))
    slurm.distrusts_resumed = True
    now, _, _ = tick(now, slurm)
    assert the(now, one).status == "draining" and now.operations == ()
    assert now.instance.status_detail["unsettled"] is True  # type: ignore[index]
    slurm.distrusts_resumed = False
    now, _, plays = tick(now, slurm)
    assert [play.playbook for play in plays] == ["observe"]
    assert the(now, one).status == "ready"


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


def test_a_handed_back_operation_is_claimed_again_by_the_same_runner() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, _, _ = tick(cluster(one, operations=(ask("drain", one),)), slurm)
    assert now.operations[0].claimed_by == now.runner_id
    assert [type(step) for step in decide(now).steps] == [Claim]


# -- homes -----------------------------------------------------------------------------------------------------


def test_homes_go_only_from_the_hosts_of_workers_whose_operation_says_so() -> None:
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


@pytest.mark.parametrize("code", clean_host.NOT_YET)
def test_a_host_that_calls_its_free_node_in_use_is_tried_a_bounded_number_of_times(code: str) -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    refuses(slurm, code)
    now = cluster(one, operations=(ask("remove", one),))
    for _ in range(now.policy.max_attempts + 1):
        now, _, _ = tick(now, slurm, seconds=4000)
    assert the(now, one).status == "failed" and now.operations == ()
    assert the(now, one).adapter_detail["last_adapter_error"]["code"] == code


@pytest.mark.parametrize("why", ["reserved", "not told", "no snapshot", "controller failed"])
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


def test_a_cancelled_drain_is_not_concluded_while_the_controller_is_silent() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode({7})})
    now, _, _ = tick(cluster(one, operations=(ask("drain", one),)), slurm)
    slurm.answers = False
    now, _, _ = tick(now.later(operations=()), slurm)
    assert the(now, one).adapter_detail["leave"].get("result") is None and slurm.nodes["w2"].reason
    slurm.answers = True
    now, _, _ = tick(now, slurm)
    assert the(now, one).adapter_detail["leave"]["result"] == "cancelled" and slurm.nodes["w2"].reason is None
