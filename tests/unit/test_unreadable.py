"""A record that cannot be read is not a record that is absent: nothing that destroys is concluded without it."""

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.act.inventory import build
from runner.model.plan import (
    Claim,
    Finish,
    ForgetSecrets,
    NewMember,
    Play,
    Refuse,
    SetInstance,
    SetMember,
    Step,
    Wait,
    Warn,
)
from runner.model.platform import Member, Operation, Unreadable
from runner.model.world import World
from runner.observe.world import observe
from runner.platform.answers import Listing
from runner.settings import Settings
from runner.slurm import notes
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from runner.slurm.notes import WorkerLeave, WorkerNotes
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, ask_whole, between, cluster, note_of, reported, serving, the, tick, when_stopped
from tests.unit.test_lifecycle_properties import WORKERS, meddle
from tests.unit.test_teardown import decommission, deleting, running
from tests.unit.worlds import NOW, add, allocation, instance, not_found, of_kind, settle, world

OPERATION = UUID(int=77)
NEVER = (Claim, Finish, ForgetSecrets, NewMember, Refuse, SetMember)


def unread(now: World, record: Member | Operation) -> World:
    """The same world, with one record that the platform gives in a form that cannot be used."""
    kind = "member"
    if isinstance(record, Operation):
        kind = "instance_operation" if record.of_instance else "member_operation"
    return now.later(
        members=tuple(one for one in now.members if one.id != record.id),
        operations=tuple(one for one in now.operations if one.id != record.id),
        instance_operations=tuple(one for one in now.instance_operations if one.id != record.id),
        unreadable=(Unreadable(kind, str(record.id), "status: Input should be a valid string"),),
    )


def without_allocation(now: World, number: int) -> World:
    """The same world, with nothing known of one allocation."""
    lost = UUID(int=100 + number)
    odd = Unreadable("allocation", str(lost), "insufficient_permissions, HTTP 403")
    kept = {key: one for key, one in now.allocations.items() if key != lost}
    return now.later(allocations=kept, unknown_allocations={lost: odd})


def with_allocation(now: World, number: int, **changes: Any) -> World:
    return now.later(
        allocations={**now.allocations, UUID(int=100 + number): allocation(number, **changes)}, unknown_allocations={}
    )


def assert_only_looked(steps: list[Step], plays: list[Play], before: str) -> None:
    assert [step for step in steps if isinstance(step, NEVER)] == []
    assert {step.status for step in of_kind(steps, SetInstance)} <= {before}
    assert {play.playbook for play in plays} <= {"observe"}


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_with_any_record_unreadable_nothing_is_changed_but_health(data: st.DataObject) -> None:
    slurm = FakeSlurm({f"w{number}": FakeNode() for number in WORKERS})
    now, count = running(*(serving(number) for number in WORKERS)), [0]
    for _ in range(data.draw(st.integers(0, 3))):
        now = meddle(data, now, slurm, count)
        now, _, _ = tick(now, slurm)
    if data.draw(st.booleans()):
        verb = data.draw(st.sampled_from(["decommission", "stop", "restart", "rotate_credentials"]))
        now = now.later(instance_operations=(ask_whole(verb, age=99),))
        now, _, _ = tick(now, slurm)
    now = meddle(data, now, slurm, count)
    records: list[Member | Operation] = [*now.members, *now.operations, *now.instance_operations]
    record = data.draw(st.sampled_from(records))
    odd, drains = unread(now, record), {name: one.reason for name, one in slurm.nodes.items()}
    after, steps, plays = tick(odd, slurm)
    if odd.instance.status == "deleted":
        assert steps == []
        return
    assert_only_looked(steps, plays, odd.instance.status)
    assert {name: one.reason for name, one in slurm.nodes.items()} == drains, "no drain is set or lifted"
    assert reported(after)[1] != "healthy" and reported(after)[2].count("record_unreadable") == 1
    assert of_kind(steps, Warn), "the log names the record"


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_member_whose_allocation_is_unknown_is_neither_touched_nor_forgotten(data: st.DataObject) -> None:
    slurm = FakeSlurm({f"w{number}": FakeNode() for number in WORKERS})
    now, count = running(*(serving(number) for number in WORKERS)), [0]
    number = data.draw(st.sampled_from(WORKERS))
    for _ in range(data.draw(st.integers(0, 2))):
        now = meddle(data, now, slurm, count)
        now, _, _ = tick(now, slurm)
    on_it = {one.id for one in now.members if one.allocation_id == UUID(int=100 + number) and one.status != "deleted"}
    if data.draw(st.booleans()):
        now = now.later(instance_operations=(decommission(99),))
    for _ in range(3):
        now, steps, plays = tick(without_allocation(now, number), slurm, seconds=400)
        for step in of_kind(steps, SetMember):
            assert step.member.id not in on_it or step.status != "deleted"
        if on_it:
            assert not of_kind(steps, ForgetSecrets)
            assert now.instance.status != "deleted"
        acts = {(kind, one) for play in plays for kind, one in play.acts if one in on_it}
        assert {kind for kind, _ in acts}.isdisjoint({"clean", "remove", "forget", "join", "start", "repair"})


def test_decommission_with_an_unreadable_member_keeps_secrets_and_instance() -> None:
    one, other = serving(2), serving(3)
    slurm = FakeSlurm({"w2": FakeNode(), "w3": FakeNode()})
    now, steps, plays = tick(unread(running(one, other, asked=(decommission(),)), other), slurm)
    assert_only_looked(steps, plays, "running")
    now = deleting(now.later(members=(now.members[0], one)))
    now, steps, plays = tick(now, slurm)
    assert_only_looked(steps, plays, "deleting")
    assert reported(now) == ("deleting", "degraded", ["record_unreadable"])
    # Once it can be read, everything goes on and the last secret goes with the last host.
    now, steps, _ = tick(now.later(members=(*now.members, other), unreadable=()), slurm)
    assert now.instance.status == "deleted" and sorted(slurm.cleaned) == ["ctl", "w2", "w3"]


def test_a_drain_whose_operation_is_unreadable_is_not_lifted() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode(jobs={7})})
    asked = ask("drain", one)
    now, _, _ = tick(cluster(one, operations=(asked,)), slurm)
    reason = slurm.nodes["w2"].reason
    now, steps, plays = tick(unread(now, now.operations[0]), slurm)
    assert_only_looked(steps, plays, "running")
    assert slurm.nodes["w2"].reason == reason and the(now, one).status == "draining"
    now, _, _ = tick(now.later(unreadable=()), slurm)
    assert slurm.nodes["w2"].reason is None, "known to be over, it is undone"


def test_a_running_cluster_is_looked_at_and_its_health_names_the_record() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    now = between(cluster(one), 300)
    now, _, plays = tick(unread(now, add(9)), slurm, seconds=1)
    assert [play.playbook for play in plays] == ["observe"]
    (reason,) = (now.instance.status_detail or {})["reasons"]
    assert (reason["code"], reason["kind"], reason["health"]) == ("record_unreadable", "member_operation", "degraded")
    assert reason["id"] in reason["message"] and now.instance.health == "degraded"
    now, steps, plays = tick(now, slurm, seconds=1)
    assert plays == [] and of_kind(steps, SetInstance) == [], "written once, not at every tick"
    now, _, _ = tick(between(now.later(unreadable=()), 300), slurm)
    assert reported(now) == ("running", "healthy", [])


def test_an_instance_at_rest_says_so_and_stops_saying_it() -> None:
    slurm = FakeSlurm({"w2": FakeNode()})
    before = when_stopped(slurm, serving(2))
    now, _, _ = tick(unread(before, add(9)), slurm)
    assert reported(now)[2] == ["record_unreadable", "stopped"] and now.instance.status == "stopped"
    assert note_of(now) == note_of(before), "what the stop noted is kept"
    assert (now.instance.status_detail or {})["unsettled"] is True, "the next tick reads everything again"
    now, _, _ = tick(now.later(unreadable=()), slurm)
    assert reported(now) == reported(before)
    assert (now.instance.status_detail or {})["unsettled"] is False


def test_a_deploy_waits_for_a_record_and_then_goes_on() -> None:
    asked = add(2, 3)
    now, steps, plays = tick(unread(world(operations=(asked,)), asked), FakeSlurm())
    assert_only_looked(steps, plays, "requested")
    now, _, _ = tick(now.later(unreadable=(), operations=(asked,)), FakeSlurm())
    assert reported(now)[::2] == ("running", [])


# -- allocations ---------------------------------------------------------------------------------------------


def test_a_removal_waits_while_its_allocation_is_unknown() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    now, steps, plays = tick(without_allocation(cluster(one, operations=(ask("remove", one),)), 2), slurm)
    assert the(now, one).status == "deleting" and "remove_worker" not in [play.playbook for play in plays]
    assert any("HTTP 403" in step.why for step in of_kind(steps, Wait))
    assert "w2" in slurm.nodes and now.operations != ()
    gone = now.later(allocations={**now.allocations, UUID(int=102): not_found(2)}, unknown_allocations={})
    now, _, _ = tick(gone, slurm)
    assert the(now, one).status == "deleted" and the(now, one).adapter_detail["host_cleaned"] is False
    assert now.operations == ()


def test_a_removal_goes_on_when_the_allocation_can_be_read_again() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    now, _, _ = tick(without_allocation(cluster(one, operations=(ask("remove", one),)), 2), slurm)
    now, _, _ = tick(with_allocation(now, 2), slurm)
    assert the(now, one).status == "deleted" and the(now, one).adapter_detail["host_cleaned"] is True


@pytest.mark.parametrize("touched", [True, False])
def test_a_teardown_cleans_the_others_and_keeps_a_member_without_allocation_record(touched: bool) -> None:
    one, other = serving(2), serving(3)
    if not touched:
        other = serving(3, status="requested", adapter_detail={"worker_hostname": None, "phase": "requested"})
        other.adapter_detail["registered_in_controller"] = False
    slurm = FakeSlurm({"w2": FakeNode(), **({"w3": FakeNode()} if touched else {})})
    now = without_allocation(running(one, other, asked=(decommission(),)), 3)
    for _ in range(3):
        now, steps, _ = tick(now, slurm, seconds=700)
        assert not of_kind(steps, ForgetSecrets)
    assert the(now, one).status == "deleted" and the(now, other).status == "deleting"
    assert now.instance.status == "deleting" and "record_unreadable" in reported(now)[2]
    gone = now.later(allocations={**now.allocations, UUID(int=103): not_found(3)}, unknown_allocations={})
    now, steps, _ = tick(gone, slurm)
    assert of_kind(steps, ForgetSecrets) and now.instance.status == "deleted"


def test_a_person_can_abandon_a_member_whose_allocation_stays_unknown() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode()})
    asked = decommission(abandon_unreachable=True, host_patience_seconds=600)
    now = without_allocation(running(one, asked=(asked,)), 2)
    for _ in range(4):
        now, _, _ = tick(now, slurm, seconds=400)
    assert now.instance.status == "deleted"
    assert "record_unreadable" in the(now, one).adapter_detail["host_left"]


def test_an_add_that_names_an_unknown_allocation_waits_unclaimed() -> None:
    now = without_allocation(cluster(operations=(add(4),)), 4)
    steps = decide(now).steps
    assert not of_kind(list(steps), Claim) and not of_kind(list(steps), Refuse)
    assert any("HTTP 403" in step.why for step in of_kind(list(steps), Wait))


def test_a_controller_whose_allocation_is_unknown_is_not_dialled() -> None:
    now = without_allocation(cluster(serving(2)), 1)
    hosts, problems = build(SLURM, now.instance, now.members, now.allocations)
    assert [problem.code for problem in problems.values()] == ["record_unreadable"]
    assert [name for name in hosts["all"]["hosts"] if name.startswith("controller")] == []


def test_the_health_of_a_running_cluster_names_an_unknown_allocation() -> None:
    now, _, _ = tick(between(without_allocation(cluster(serving(2)), 2), 300), FakeSlurm({"w2": FakeNode()}))
    (reason,) = (now.instance.status_detail or {})["reasons"]
    assert (reason["code"], reason["kind"], reason["id"]) == ("record_unreadable", "allocation", str(UUID(int=102)))
    assert now.instance.health == "degraded"


def test_a_teardown_does_not_take_an_unknown_controller_for_gone() -> None:
    one = serving(2)
    slurm = FakeSlurm({"w2": FakeNode(jobs={7})}, answers=False)
    now, _, plays = tick(without_allocation(running(one, asked=(decommission(),)), 1), slurm)
    assert {play.playbook for play in plays} == {"drain_worker"}, "its workers' hosts are not asked behind its back"
    assert the(now, one).status == "draining" and slurm.cleaned == []


def test_a_tick_with_an_unreadable_operation_is_not_quiet() -> None:
    class Platform:
        project = instance().project_id

        def now(self) -> datetime:
            return NOW

        def __getattr__(self, name: str) -> Any:
            def answer(*_: object, **__: object) -> Listing[Any]:
                found: Listing[Any] = Listing()
                if name == "instance_operations":
                    found.unreadable.append(Unreadable("instance_operation", None, "id: Field required"))
                return found

            return answer

    own: Any = {"base_url": "http://127.0.0.1:1", "project_id": Platform.project}
    platform: Any = Platform()
    seen = observe(platform, cluster().instance, Settings(**own), SLURM)
    assert seen.complete and [one.kind for one in seen.unreadable] == ["instance_operation"]


def test_a_new_deploy_waits_for_its_controllers_allocation() -> None:
    now, steps, plays = tick(without_allocation(world(instance=instance()), 1), FakeSlurm())
    assert plays == [] and now.instance.status != "failed"
    assert not [step for step in of_kind(steps, SetMember) if step.status == "failed"]


@pytest.mark.parametrize("verb", ["drain", "resume", "remove"])
@pytest.mark.parametrize(
    "bad", [{"repair": {"format": 9}}, {"worker_hostname": "-oProxyCommand=x"}, {"fence": "seven"}, {"attempt": -1}]
)
def test_an_operation_that_has_begun_stops_at_a_note_that_cannot_be_read(verb: Any, bad: dict[str, Any]) -> None:
    """Neither is the node changed, nor is the operation ended as if the worker had no node."""
    begun = WorkerLeave(operation_id=OPERATION, verb=verb, started_at=NOW)
    worker = serving(2, adapter_detail=WorkerNotes(leave=begun).changes | bad, status="draining")
    now, steps, play = settle(cluster(worker, operations=(ask(verb, worker, id=OPERATION),)), decide)
    assert play is None and len(now.operations) == 1 and the(now, worker).status == "draining"
    left = notes.worker(the(now, worker)).leave
    assert left == begun and "note_" in " ".join(one.why for one in of_kind(steps, Wait))


def test_an_operation_whose_result_is_noted_ends_beside_a_note_that_cannot_be_read() -> None:
    done = WorkerLeave(operation_id=OPERATION, verb="drain", started_at=NOW, result="done")
    worker = serving(2, adapter_detail=WorkerNotes(leave=done).changes | {"fence": "seven"}, status="draining")
    _, steps, _ = settle(cluster(worker, operations=(ask("drain", worker, id=OPERATION),)), decide)
    assert [one.status for one in of_kind(steps, Finish)] == ["succeeded"]
