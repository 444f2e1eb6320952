"""A record that cannot be read is not a record that is absent: nothing that destroys is concluded without it."""

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.unit.teardown import decommission, deleting, running
from tests.unit.test_lifecycle_properties import WORKERS, meddle
from tests.unit.worlds import NOW, add, entitled, instance, of_kind, settle, world

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


def test_an_instance_at_rest_reports_the_problem_until_it_is_gone() -> None:
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


def test_a_tick_with_an_unreadable_operation_reads_everything() -> None:
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
    seen = observe(platform, cluster().instance, Settings(**own), SLURM, read_entitlements=entitled)
    assert seen.complete and [one.kind for one in seen.unreadable] == ["instance_operation"]


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
