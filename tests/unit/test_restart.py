"""Every daemon of a cluster is restarted once, jobs continue, and it ends within its bound: on a cluster in memory."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from runner.model.plan import AdapterError, Finish, Play, Refuse
from runner.model.world import World
from runner.slurm.decide import decide
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask_whole, between, cluster, killed_in, note_of, reported, serving, tick
from tests.unit.worlds import NOW, UNREACHABLE, of_kind, settle

ONCE = {"slurmdbd": 1, "slurmctld": 1, "w2": 1, "w3": 1}


def two() -> FakeSlurm:
    return FakeSlurm({"w2": FakeNode({7}), "w3": FakeNode()})


def asked(*members: Any, **parameters: Any) -> World:
    workers = members or (serving(2), serving(3))
    return cluster(*workers, whole=(ask_whole("restart", parameters=parameters),))


def ended(steps: list[Any]) -> list[tuple[str, str | None]]:
    return [(end.status, (end.error or {}).get("code")) for end in of_kind(steps, Finish)]


def restart_play(now: World, slurm: FakeSlurm) -> tuple[World, Play]:
    """Up to the play, with the look before it carried out."""
    now, _, first = settle(now, decide)
    assert first and first.playbook == "observe"
    now, _, play = settle(slurm.run(now, first), decide)
    assert play and play.playbook == "restart"
    return now, play


def test_every_daemon_is_restarted_in_one_run_and_jobs_run_on() -> None:
    slurm = two()
    now, steps, plays = tick(asked(), slurm)
    assert [play.playbook for play in plays] == ["observe", "restart"] and len(plays[1].members) == 3
    assert ended(steps) == [("succeeded", None)]
    assert slurm.restarts == ONCE and slurm.nodes["w2"].jobs == {7}
    assert reported(now) == ("running", "healthy", [])


def test_a_second_restart_restarts_every_daemon_a_second_time() -> None:
    slurm = two()
    now, _, _ = tick(asked(), slurm)
    _, steps, _ = tick(now.later(instance_operations=(ask_whole("restart"),)), slurm)
    assert ended(steps) == [("succeeded", None)]
    assert slurm.restarts == dict.fromkeys(ONCE, 2)


def test_a_node_that_a_person_set_down_stays_out_of_service_over_a_restart() -> None:
    slurm = two()
    slurm.nodes["w3"] = FakeNode(state="DOWN", down_reason="alice: bad fan", reason_by="alice")
    tick(asked(), slurm)
    assert slurm.restarts == ONCE and slurm.nodes["w3"].reason == "alice: bad fan"


def test_the_instance_reports_a_restart_while_it_goes_on() -> None:
    now, _ = restart_play(asked(), two())
    assert reported(now) == ("running", "progressing", ["restarting"])


def test_the_time_is_the_controllers_and_after_the_start_of_its_daemons() -> None:
    now = asked()
    behind = now.later(now=NOW - timedelta(hours=5))  # the runner's own clock is far off
    _, play = restart_play(behind, two())
    assert datetime.fromisoformat(play.terms["restart_since"]) == NOW + timedelta(seconds=1)


@pytest.mark.parametrize("done", [False, True])
def test_a_killed_runners_successor_does_only_what_is_left(done: bool) -> None:
    slurm = two()
    now = killed_in(asked(), slurm, "restart", done=done)
    moment = note_of(now)["after"]
    now, steps, plays = tick(now, slurm)
    assert [play.playbook for play in plays] == ["restart"] and plays[0].terms == {"restart_since": moment}
    assert ended(steps) == [("succeeded", None)]
    assert slurm.restarts == ONCE, "nothing was restarted twice"


def test_a_restart_is_not_done_before_every_worker_that_served_serves_again() -> None:
    slurm = two()
    now, play = restart_play(asked(), slurm)
    now = slurm.run(now, play)
    seen = slurm.seen()
    assert seen and seen.nodes
    away = seen.nodes["w3"].model_copy(update={"flags": frozenset({"NOT_RESPONDING"})})
    now = now.later(snapshot=seen.model_copy(update={"nodes": {**seen.nodes, "w3": away}}))
    now, steps, more = settle(now, decide)
    assert ended(steps) == [] and more is None
    assert len(note_of(now)["left"]) == 1 and "waits for worker-" in note_of(now)["waiting"]


def test_a_slurmctld_that_is_the_old_one_still_is_not_done() -> None:
    slurm = two()
    now, play = restart_play(asked(), slurm)
    old = slurm.seen()
    now, steps, _ = settle(slurm.run(now, play).later(snapshot=old), decide)
    assert ended(steps) == [] and "has not been restarted yet" in note_of(now)["waiting"]


def test_a_controller_that_took_two_tries_takes_its_workers_with_it() -> None:
    slurm = two()
    now, play = restart_play(asked(), slurm)
    slurm.ctl_error = UNREACHABLE
    now, steps, _ = settle(slurm.run(now, play), decide)
    assert ended(steps) == [] and slurm.restarts == {}
    slurm.ctl_error = None
    _, steps, plays = tick(between(now), slurm)
    assert len(plays[0].members) == 3 and slurm.restarts == ONCE
    assert ended(steps) == [("succeeded", None)]


def test_what_is_noted_of_many_workers_fits_what_the_platform_takes() -> None:
    members = [serving(n % 7 + 2, adapter_detail={"worker_hostname": f"w{n}"}) for n in range(300)]
    slurm = FakeSlurm({f"w{n}": FakeNode() for n in range(150)})
    slurm.hosts_down = {f"w{n}" for n in range(300)}
    now = asked(*members, patience_seconds=100)
    for _ in range(3):
        now, steps, _ = tick(now, slurm)
        assert len(json.dumps(now.instance.status_detail)) < 16_000
    assert ended(steps) == [("failed", "restart_incomplete")]
    assert len(json.dumps(of_kind(steps, Finish)[0].result)) < 16_000


def test_later_ticks_ask_only_those_that_are_left() -> None:
    one, other = serving(2), serving(3)
    slurm = two()
    slurm.hosts_down.add("w3")
    now, steps, _ = tick(asked(one, other), slurm)
    assert ended(steps) == []
    slurm.hosts_down.clear()
    now, steps, plays = tick(now, slurm)
    assert [member.id for member in plays[0].members[1:]] == [other.id]
    assert ended(steps) == [("succeeded", None)]


def test_after_its_patience_it_fails_and_names_who_is_missing() -> None:
    one, other = serving(2), serving(3)
    slurm = two()
    slurm.hosts_down.add("w3")
    now = asked(one, other, patience_seconds=100)
    for _ in range(2):
        now, steps, _ = tick(now, slurm)
        assert ended(steps) == []
    now, steps, _ = tick(now, slurm)
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error["code"]) == ("failed", "restart_incomplete")
    assert list(finish.result["missing"]) == [f"worker-{other.id.hex[:8]}"]
    assert now.instance.status == "running"


def test_what_no_waiting_can_help_is_not_waited_for() -> None:
    slurm = two()
    slurm.ctl_error = None
    now, play = restart_play(asked(), slurm)
    slurm.ctl_error = AdapterError("host_key_mismatch", "another machine answers", "intervention")
    _, steps, _ = settle(slurm.run(now, play), decide)
    assert ended(steps) == [("failed", "restart_incomplete")]


def test_a_worker_that_did_not_serve_before_is_not_waited_for_but_named() -> None:
    one, other = serving(2), serving(3)
    slurm = FakeSlurm({"w2": FakeNode()}, hosts_down={"w3"})
    _, steps, _ = tick(asked(one, other), slurm)
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "succeeded"
    assert list(finish.result["not_restarted"]) == [f"worker-{other.id.hex[:8]}"]


def test_a_drained_worker_is_restarted_and_stays_drained() -> None:
    slurm = two()
    slurm.nodes["w3"].reason = "alice: bad fan"
    _, steps, _ = tick(asked(), slurm)
    assert ended(steps) == [("succeeded", None)]
    assert slurm.restarts == ONCE and slurm.nodes["w3"].reason == "alice: bad fan"


def test_what_a_person_closed_is_closed_afterwards() -> None:
    slurm = two()
    slurm.partitions = {"main": "UP", "night": "DRAIN"}
    tick(asked(), slurm)
    assert slurm.partitions == {"main": "UP", "night": "DRAIN"}


def test_a_cluster_whose_slurmctld_is_down_is_brought_back() -> None:
    slurm = two()
    slurm.up = False
    now, steps, _ = tick(asked(), slurm)
    assert ended(steps) == [("succeeded", None)] and slurm.up
    assert reported(now) == ("running", "healthy", [])


def test_a_controller_that_cannot_be_reached_is_waited_for_and_nothing_is_restarted() -> None:
    slurm = two()
    slurm.answers = False
    now = asked(patience_seconds=100)
    for _ in range(2):
        now, steps, plays = tick(now, slurm)
        assert ended(steps) == [] and [play.playbook for play in plays] == ["observe"]
    now, steps, _ = tick(now, slurm)
    assert ended(steps) == [("failed", "restart_incomplete")] and slurm.restarts == {}


def test_called_off_it_undoes_nothing_and_closes_what_was_closed() -> None:
    slurm = two()
    slurm.partitions = {"main": "UP", "night": "DOWN"}
    now = killed_in(asked(), slurm, "restart", done=True)
    slurm.partitions["night"] = "UP"  # as slurmctld has it, if the runner died before it was closed
    now, _, _ = tick(now.later(instance_operations=()), slurm)
    assert slurm.partitions == {"main": "UP", "night": "DOWN"} and slurm.restarts == ONCE
    assert reported(now) == ("running", "degraded", ["partition_closed"]) and note_of(now)["result"] == "cancelled"


@pytest.mark.parametrize("parameters", [{"patience_seconds": -1}, {"patience_seconds": "soon"}, {"jobs": "kill"}])
def test_terms_that_make_no_sense_are_refused(parameters: dict[str, Any]) -> None:
    _, steps, plays = tick(asked(**parameters), two())
    assert [refusal.code for refusal in of_kind(steps, Refuse)] == ["parameters_invalid"] and plays == []


def stop_responding(slurm: FakeSlurm, *names: str) -> None:
    """The controller shows these workers as not responding, before the restart and after it."""
    usual = slurm.seen

    def seen() -> Any:
        found: Any = usual()
        away = {name: found.nodes[name].model_copy(update={"flags": frozenset({"NOT_RESPONDING"})}) for name in names}
        return found.model_copy(update={"nodes": found.nodes | away})

    slurm.seen = seen  # type: ignore[method-assign]


def test_every_worker_that_did_not_serve_is_excused_however_many_there_are() -> None:
    many = [serving(number) for number in range(2, 302)]
    slurm = FakeSlurm({f"w{number}": FakeNode() for number in range(2, 302)})
    stop_responding(slurm, *(f"w{number}" for number in range(3, 302)))
    now, steps, _ = tick(asked(*many), slurm)
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.result["excused_count"], len(finish.result["excused"])) == ("succeeded", 299, 20)
    marked = [one for one in now.members if one.adapter_detail.get("excused_by") == str(finish.operation.id)]
    assert len(marked) == 299


def test_a_restart_that_version_1_0_began_excuses_the_workers_in_its_note() -> None:
    slurm = two()
    now, _ = restart_play(asked(), slurm)
    stop_responding(slurm, "w3")
    named = next(one for one in now.members if one.adapter_detail.get("worker_hostname") == "w3")
    status = dict(now.instance.status_detail or {})
    status["lifecycle"] = status["lifecycle"] | {"excused": [f"worker-{named.id.hex[:8]}"]}
    old = between(now.later(instance=now.instance.model_copy(update={"status_detail": status})))
    _, steps, _ = tick(old, slurm)
    assert ended(steps) == [("succeeded", None)]
