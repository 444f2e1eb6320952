"""Drift is repaired by the plays that set the cluster up, a bounded number of times; what persons changed stays."""

from datetime import timedelta
from itertools import pairwise
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.act import inventory
from runner.model.plan import SetInstance, SetMember
from runner.model.platform import InstanceStatus, Operation
from runner.model.world import Policy
from runner.slurm.app import SLURM
from runner.slurm.decide import VERBS
from runner.slurm.decide.instance.queue import Verb
from runner.slurm.decide.repair import STEADY
from tests.unit.drifting import DAEMONS, Drifting, a_cluster, note, repairs, world_of
from tests.unit.fake_slurm import FakeNode
from tests.unit.lifecycle import ask, serving, the, tick
from tests.unit.worlds import NOW, allocation, of_kind


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_stopped_daemon_of_the_controller_is_started_in_the_tick_that_sees_it(daemon: str) -> None:
    slurm, _, now = a_cluster(stopped={daemon})
    now, _, plays = tick(now, slurm)
    assert [(play.playbook, len(play.members)) for play in plays] == [("observe", 1), ("deploy", 1)]
    assert (now.instance.health, slurm.stopped) == ("healthy", set())
    ruler = now.members[0] if now.members[0].component_key == "controller" else now.members[-1]
    assert {key: note(now, ruler)[key] for key in ("why", "attempts", "outcome")} == {
        "why": f"{daemon}_not_active",
        "attempts": 1,
        "outcome": "repaired",
    }


def test_a_config_changed_by_hand_is_written_anew() -> None:
    slurm, one, now = a_cluster(config_changed=True)
    behind = the(now, one).adapter_detail | {"config_version": "sha256:as-it-was-written"}
    now, _, plays = tick(now.with_member(one.model_copy(update={"adapter_detail": behind})), slurm)
    assert [play.playbook for play in plays][:2] == ["observe", "deploy"], "no worker follows what was written by hand"
    assert (slurm.config_changed, now.instance.health) == (False, "healthy")


def test_an_unreadable_config_does_not_keep_what_serves_from_being_repaired() -> None:
    slurm, _, now = a_cluster(stopped={"slurmdbd"})
    odd = now.instance.model_copy(update={"config": {"slurm": {"Prolog": "/bin/evil"}}})
    now, _, plays = tick(now.later(instance=odd), slurm)
    (play,) = repairs(plays)
    hosts, _ = inventory.build(SLURM, odd, play.members, now.allocations)
    (shared,) = [group["vars"] for group in hosts["all"]["children"].values() if "vars" in group]
    assert shared["slurm_config_keep"] and shared["slurm_config"] == {}


def test_a_dead_worker_is_repaired_without_touching_any_other() -> None:
    slurm, one, now = a_cluster(dead={"w2"})
    now, _, plays = tick(now, slurm)
    (play,) = repairs(plays)
    assert play.playbook == "add_worker" and [member.id for member in play.members[1:]] == [one.id]
    assert (slurm.touched, now.instance.health) == (["w2"], "healthy")
    assert note(now, one)["outcome"] == "repaired"
    assert the(now, one).status == "ready"


def test_a_worker_is_repaired_once_two_observations_show_no_response() -> None:
    slurm, _, now = a_cluster(dead={"w2"}, given_up=False)
    now, _, plays = tick(now, slurm)
    assert repairs(plays) == [] and now.instance.health == "degraded"
    now, _, plays = tick(now, slurm)
    assert len(repairs(plays)) == 1 and now.instance.health == "healthy"


def test_every_unresponsive_worker_is_repaired_not_only_those_among_the_reasons() -> None:
    many = [serving(number) for number in range(2, 32)]
    names = {f"w{number}" for number in range(2, 32)}
    slurm = Drifting({name: FakeNode() for name in names}, dead=set(names), given_up=False)
    now = world_of(slurm, *many, allocations={one.id: one for one in (allocation(n) for n in range(1, 32))})
    now, _, _ = tick(now, slurm)
    now, _, plays = tick(now, slurm)
    assert len(repairs(plays)[0].members) == 31 and not slurm.dead


def test_repair_is_tried_a_bounded_number_of_times_with_growing_pauses() -> None:
    slurm, one, now = a_cluster(dead={"w2"}, held_down={"w2"})
    began: list[int] = []
    for second in range(0, 1200, 10):
        now, _, plays = tick(now, slurm, seconds=10)
        began += [second] * len(repairs(plays))
    assert len(began) == now.policy.max_attempts == len(slurm.touched)
    pauses = [later - sooner for sooner, later in pairwise(began)]
    assert pauses[0] >= 30 and pauses[1] >= 60
    (reason,) = now.instance.status_detail["reasons"]  # type: ignore[index]
    assert reason["code"] == "worker_down" and reason["class"] == "drift"
    assert "Nothing more is tried" in reason["message"] and reason["repair"]["attempts"] == 3
    assert the(now, one).adapter_detail["last_adapter_error"]["class"] == "drift"


def test_a_repair_that_breaks_off_leaves_the_true_reason_not_the_unknown() -> None:
    slurm, _, now = a_cluster(stopped={"slurmdbd"}, held_down={"slurmdbd"}, breaks_off=True)
    now, _, plays = tick(now, slurm)
    assert [play.playbook for play in plays] == ["observe", "deploy", "observe"]
    assert now.instance.health == "degraded"
    (reason,) = now.instance.status_detail["reasons"]  # type: ignore[index]
    assert reason["code"] == "slurmdbd_not_active" and reason["repair"]["outcome"] == "unit_failed"


def test_a_daemon_that_stops_again_and_again_spends_its_tries_and_the_bound_holds() -> None:
    slurm, _, now = a_cluster()
    count = 0
    for _ in range(8):
        slurm.stopped = {"slurmdbd"}
        now, _, plays = tick(now, slurm, seconds=70)
        count += len(repairs(plays))
    assert count == now.policy.max_attempts
    assert slurm.stopped == {"slurmdbd"}


def test_after_a_while_in_order_the_count_begins_anew() -> None:
    slurm, _, now = a_cluster(stopped={"slurmdbd"})
    now, _, _ = tick(now, slurm)
    ruler = next(one for one in now.members if one.component_key == "controller")
    assert note(now, ruler)["attempts"] == 1
    now, _, _ = tick(now, slurm, seconds=int(STEADY.total_seconds()))
    assert note(now, ruler)["attempts"] == 1, "not long enough yet"
    now, _, _ = tick(now, slurm)
    assert note(now, ruler) == {}


def test_an_unreachable_host_costs_no_attempt_and_is_reported() -> None:
    slurm, one, now = a_cluster(dead={"w2"}, hosts_down={"w2"})
    dials = 0
    for _ in range(20):
        now, _, plays = tick(now, slurm)
        dials += len(repairs(plays))
    assert slurm.touched == [] and 5 < dials < 15
    assert (note(now, one)["attempts"], note(now, one)["outcome"]) == (0, "host_unreachable")
    (reason,) = now.instance.status_detail["reasons"]  # type: ignore[index]
    assert "host_unreachable" in reason["message"]
    slurm.hosts_down.clear()
    for _ in range(3):
        now, _, _ = tick(now, slurm)
    assert (slurm.touched, now.instance.health) == (["w2"], "healthy")


def test_a_worker_that_comes_back_by_itself_shows_no_old_trouble() -> None:
    slurm, one, now = a_cluster(dead={"w2"}, hosts_down={"w2"})
    now, _, _ = tick(now, slurm)
    assert the(now, one).adapter_detail["last_adapter_error"]["code"] == "host_unreachable"
    slurm.dead.clear()
    now, _, _ = tick(now, slurm)
    assert now.instance.health == "healthy" and note(now, one) == {}
    assert the(now, one).adapter_detail["last_adapter_error"] is None


def test_a_runner_killed_in_the_middle_has_counted() -> None:
    slurm, one, now = a_cluster(dead={"w2"}, held_down={"w2"})
    attempts = 0
    for _ in range(20):
        ahead, steps, plays = tick(now, slurm)
        if repairs(plays):
            # Only what was written before the play is known afterwards.
            attempts += 1
            (written,) = [step for step in of_kind(steps, SetMember) if step.detail.get("repair")][:1]
            shown = {**the(now, one).adapter_detail, **written.detail}
            ahead = now.with_member(the(now, one).model_copy(update={"adapter_detail": shown}))
            ahead = ahead.later(now=now.now + timedelta(seconds=60))
        now = ahead
    assert attempts == now.policy.max_attempts


def test_repair_can_be_switched_off() -> None:
    one = serving(2)
    slurm = Drifting({"w2": FakeNode()}, dead={"w2"}, stopped={"slurmdbd"})
    now, _, plays = tick(world_of(slurm, one, policy=Policy(repair=False)), slurm)
    assert repairs(plays) == [] and slurm.touched == []
    assert "GPUAAS_REPAIR" in str(now.instance.status_detail)


def test_a_cluster_that_another_runner_is_stopping_is_not_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERBS, "stop", Verb((InstanceStatus.RUNNING,), lambda _world, _operation: []))
    slurm, _, now = a_cluster(stopped={"slurmctld"})
    theirs = Operation(
        id=uuid4(),
        operation="stop",
        status="running",
        correlation_id="corr-3",
        created_at=NOW,
        claimed_by="another",
        lease_expires_at=NOW + timedelta(hours=1),
    )
    _, _, plays = tick(now.later(instance_operations=(theirs,)), slurm)
    assert repairs(plays) == [] and slurm.stopped == {"slurmctld"}


def test_a_stopped_instance_is_left_alone() -> None:
    slurm, _, now = a_cluster(stopped={"slurmctld"})
    stopped = now.instance.model_copy(update={"status": "stopped"})
    _, _, plays = tick(now.later(instance=stopped), slurm)
    assert plays == []


def test_a_worker_that_an_operation_is_at_is_left_to_it() -> None:
    slurm, one, now = a_cluster(dead={"w2"})
    _, _, plays = tick(now.later(operations=(ask("drain", one),)), slurm)
    assert repairs(plays) == []


@pytest.mark.parametrize("reason", ["alice: bad fan", "gpuaas:manual: hot", "gpuaas:1234: left over"])
def test_nothing_is_repaired_behind_a_drain(reason: str) -> None:
    one = serving(2)
    slurm = Drifting({"w2": FakeNode(reason=reason), "w3": FakeNode()}, dead={"w2"})
    now, _, plays = tick(world_of(slurm, one, serving(3)), slurm)
    assert repairs(plays) == [] and slurm.nodes["w2"].reason == reason
    assert now.instance.health == ("degraded" if "1234" in reason else "healthy")


def test_health_is_never_progressing_while_something_is_repaired() -> None:
    slurm, _, now = a_cluster(stopped={"slurmctld"})
    _, steps, _ = tick(now, slurm)
    assert {step.health for step in of_kind(steps, SetInstance)} == {"healthy"}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_breaks_tries_are_bounded_and_a_persons_drain_is_never_touched(data: st.DataObject) -> None:
    names = ("w2", "w3")
    slurm = Drifting({name: FakeNode() for name in names})
    now = world_of(slurm, serving(2), serving(3))
    for _ in range(data.draw(st.integers(2, 10))):
        slurm.stopped |= set(data.draw(st.lists(st.sampled_from(DAEMONS), max_size=2)))
        slurm.dead |= set(data.draw(st.lists(st.sampled_from(names), max_size=2)))
        slurm.held_down = set(data.draw(st.lists(st.sampled_from([*names, *DAEMONS]), max_size=3)))
        slurm.hosts_down = set(data.draw(st.lists(st.sampled_from(names), max_size=1)))
        slurm.answers = data.draw(st.integers(0, 4)) > 0
        slurm.breaks_off = data.draw(st.booleans())
        for name in names:
            slurm.nodes[name].reason = data.draw(st.sampled_from([None, None, "alice: bad fan"]))
        before, slurm.touched = {name: slurm.nodes[name].reason for name in names}, []
        now, _, plays = tick(now, slurm, seconds=data.draw(st.sampled_from([5, 60, 700])))
        assert {name: slurm.nodes[name].reason for name in names} == before, "a drain was touched"
        assert not [name for name in slurm.touched if before.get(name)], "repaired behind a drain"
        assert len(slurm.touched) == len(set(slurm.touched)), "twice in a tick"
        for member in now.members:
            repaired = note(now, member)
            assert repaired.get("attempts", 0) <= now.policy.max_attempts
            assert repaired.get("outcome") != "trying", "a play was left without a recorded outcome"
            assert member.status == "ready"
        if not slurm.answers and plays:
            assert now.instance.health == "unknown"
