"""rotate_credentials, tick by tick: which key is right is always known, and who missed the new one is named."""

from dataclasses import replace
from typing import Any

from runner.model.plan import Finish, Play, Refuse, SetInstance
from runner.model.platform import Member, Operation
from runner.model.world import Policy, World
from tests.unit.fake_keys import FakeKeys
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, ask_whole, cluster, serving, tick
from tests.unit.worlds import claimed_by_us, of_kind


def scenario(**changes: Any) -> tuple[World, FakeSlurm, Operation]:
    """A cluster of a controller and two workers, asked to rotate."""
    operation = ask_whole("rotate_credentials", **changes)
    live = dict.fromkeys(("controller", "w2", "w3"), "key-0")
    slurm = FakeSlurm({"w2": FakeNode(), "w3": FakeNode()}, keys=FakeKeys(live=live))
    now = cluster(serving(2), serving(3)).later(instance_operations=(operation,))
    return now, slurm, operation


def steps_of(plays: list[Play]) -> list[str]:
    return [str(play.terms["rotation_step"]) for play in plays if play.playbook == "rotate"]


def note(now: World) -> dict[str, Any]:
    return dict((now.instance.status_detail or {})["lifecycle"])


def workers(now: World) -> dict[str, Member]:
    return {one.adapter_detail["worker_hostname"]: one for one in now.members if one.component_key == "worker"}


def test_one_tick_stages_then_switches_then_succeeds() -> None:
    now, slurm, operation = scenario()
    now, steps, plays = tick(now, slurm)
    assert steps_of(plays) == ["stage", "switch"]
    assert slurm.keys == FakeKeys("key-1", None, dict.fromkeys(("controller", "w2", "w3"), "key-1"), {}, 1)
    (finish,) = of_kind(steps, Finish)
    assert (finish.operation.id, finish.status) == (operation.id, "succeeded")
    assert sorted(finish.result["rotated"]) == sorted(f"{one.component_key}-{one.id.hex[:8]}" for one in now.members)
    assert finish.result["missed"] == {}
    assert note(now)["result"] == "done"


def test_the_cluster_is_called_healthy_all_the_while_for_it_serves() -> None:
    now, slurm, _ = scenario()
    now, steps, _ = tick(now, slurm)
    assert {step.health for step in of_kind(steps, SetInstance)} == {"healthy"}
    assert now.instance.status_detail["unsettled"] is False  # type: ignore[index]


def test_no_note_result_or_step_holds_a_key() -> None:
    now, slurm, _ = scenario()
    now, steps, _ = tick(now, slurm)
    assert "key-" not in f"{steps}{now}"


def test_the_note_shows_switching_before_the_play_that_switches() -> None:
    now, slurm, _ = scenario()
    seen: list[str] = []
    usual = slurm.run

    def run(world: World, play: Play) -> World:
        seen.append(f"{note(world)['phase']}: {play.terms['rotation_step']}")
        return usual(world, play)

    slurm.run = run  # type: ignore[method-assign]
    tick(now, slurm)
    assert seen == ["staging: stage", "switching: switch"]


def test_a_host_that_cannot_be_prepared_stops_everything_and_nothing_is_left_staged() -> None:
    now, slurm, _ = scenario()
    slurm.breaks_on_host = {"w3"}
    now, steps, plays = tick(now, slurm)
    assert steps_of(plays) == ["stage", "drop"]
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error["code"]) == ("failed", "rotation_not_prepared")
    assert f"worker-{workers(now)['w3'].id.hex[:8]}" in finish.error["message"]
    assert set(slurm.keys.live.values()) == {"key-0"}
    assert (slurm.keys.current, slurm.keys.coming, slurm.keys.staged) == ("key-0", None, {})


def test_a_key_that_hosts_have_seen_and_that_came_to_nothing_is_never_used() -> None:
    now, slurm, _ = scenario()
    slurm.breaks_on_host = {"w3"}
    now, _, _ = tick(now, slurm)
    slurm.breaks_on_host = set()
    again = ask_whole("rotate_credentials")
    tick(now.later(instance_operations=(again,)), slurm)
    assert set(slurm.keys.live.values()) == {"key-2"}


def test_an_unreachable_worker_without_jobs_is_left_out_and_others_keep_the_new_key() -> None:
    now, slurm, _ = scenario()
    slurm.hosts_down = {"w3"}
    now, steps, plays = tick(now, slurm)
    assert steps_of(plays) == ["stage", "switch"]
    assert workers(now)["w3"] not in plays[-1].members
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error["code"]) == ("failed", "rotation_partly")
    named = f"worker-{workers(now)['w3'].id.hex[:8]}"
    assert finish.result["missed"] == {named: "host_unreachable"} and named in finish.error["message"]
    assert slurm.keys.live == {"controller": "key-1", "w2": "key-1", "w3": "key-0"}


def test_an_unreachable_worker_with_jobs_holds_the_rotation_until_tries_are_used_up() -> None:
    now, slurm, _ = scenario()
    now = now.later(policy=Policy(max_attempts=2, retry_seconds=30))
    slurm.hosts_down, slurm.nodes["w3"].jobs = {"w3"}, {7}
    now, steps, plays = tick(now, slurm)
    assert (steps_of(plays), of_kind(steps, Finish)) == (["stage"], [])
    assert note(now)["attempts"]["count"] == 1 and "host_unreachable" in note(now)["waiting"]
    now, steps, plays = tick(now, slurm)
    assert steps_of(plays) == ["stage", "drop"]
    (finish,) = of_kind(steps, Finish)
    assert finish.error["code"] == "rotation_not_prepared" and "still runs jobs" in finish.error["message"]
    assert set(slurm.keys.live.values()) == {"key-0"}


def test_an_unreachable_worker_that_answers_again_is_prepared_with_the_rest() -> None:
    now, slurm, _ = scenario()
    slurm.hosts_down, slurm.nodes["w3"].jobs = {"w3"}, {7}
    now, _, _ = tick(now, slurm)
    slurm.hosts_down = set()
    now, steps, _ = tick(now, slurm)
    assert of_kind(steps, Finish)[0].status == "succeeded"
    assert set(slurm.keys.live.values()) == {"key-1"}


def test_the_next_try_is_not_made_before_it_is_due() -> None:
    now, slurm, _ = scenario()
    slurm.hosts_down, slurm.nodes["w3"].jobs = {"w3"}, {7}
    now, _, _ = tick(now, slurm, seconds=5)
    now, steps, plays = tick(now, slurm)
    assert plays == [] and of_kind(steps, Finish) == []


def test_a_worker_that_is_lost_between_the_two_plays_is_tried_again_then_named() -> None:
    now, slurm, _ = scenario()
    now = now.later(policy=Policy(max_attempts=2, retry_seconds=0))
    usual = slurm.run

    def run(world: World, play: Play) -> World:
        slurm.hosts_down = {"w3"} if play.terms["rotation_step"] == "switch" else set()
        return usual(world, play)

    slurm.run = run  # type: ignore[method-assign]
    now, steps, plays = tick(now, slurm)
    assert (steps_of(plays), of_kind(steps, Finish)) == (["stage", "switch"], [])
    now, steps, plays = tick(now, slurm)
    assert steps_of(plays) == ["switch"], "nothing is staged again: there is no way back"
    (finish,) = of_kind(steps, Finish)
    assert finish.error["code"] == "rotation_partly" and len(finish.result["missed"]) == 1


def test_an_unreachable_controller_stops_it_and_the_error_states_nothing_changed() -> None:
    now, slurm, _ = scenario()
    now = now.later(policy=Policy(max_attempts=1))
    slurm.hosts_down = {"controller"}
    _, steps, _ = tick(now, slurm)
    (finish,) = of_kind(steps, Finish)
    assert finish.error["code"] == "rotation_not_prepared" and "controller-" in finish.error["message"]
    assert slurm.keys.current == "key-0"


def test_a_worker_that_missed_it_gets_the_key_by_joining_anew() -> None:
    now, slurm, _ = scenario()
    slurm.hosts_down = {"w3"}
    now, _, _ = tick(now, slurm)
    slurm.hosts_down = set()
    lost = workers(now)["w3"]
    now, _, _ = tick(now.later(operations=(ask("remove", lost),)), slurm)
    again = ask("add", allocations=(3,))
    now, _, _ = tick(now.later(operations=(again,)), slurm)
    assert slurm.keys.live["w3"] == slurm.keys.current == "key-1"


def test_cancelled_before_the_switch_it_is_undone() -> None:
    now, slurm, operation = scenario()
    slurm.hosts_down, slurm.nodes["w3"].jobs = {"w3"}, {7}
    now, _, _ = tick(now, slurm)
    assert slurm.keys.coming
    now, _, plays = tick(now.without_operation(operation), slurm)
    assert steps_of(plays) == ["drop"] and note(now)["result"] == "cancelled"
    assert slurm.keys.coming is None and not slurm.keys.staged and slurm.keys.current == "key-0"


def test_cancelled_after_the_switch_began_it_is_brought_to_its_end() -> None:
    now, slurm, operation = scenario()
    now = now.later(instance_operations=(claimed_by_us(operation),))
    status = dict(now.instance.status_detail or {})
    status["lifecycle"] = {"operation_id": str(operation.id), "verb": "rotate_credentials", "verdict": None}
    status["lifecycle"] |= {"since": "2026-01-02T03:04:05Z", "phase": "switching", "attempt": 0, "without": {}}
    slurm.keys.coming = "key-1"
    now = replace(now, instance=now.instance.model_copy(update={"status_detail": status}), instance_operations=())
    now, _, plays = tick(now, slurm)
    assert steps_of(plays) == ["switch"] and note(now)["result"] == "done"
    assert set(slurm.keys.live.values()) == {"key-1"}


def test_operations_on_members_wait_for_it() -> None:
    now, slurm, _ = scenario()
    slurm.hosts_down, slurm.nodes["w3"].jobs = {"w3"}, {7}
    now = now.later(operations=(ask("add", allocations=(5,)),))
    now, _, plays = tick(now, slurm, seconds=5)
    assert {play.playbook for play in plays} == {"rotate"}
    slurm.hosts_down = set()
    now, _, _ = tick(now, slurm, seconds=60)
    now, _, _ = tick(now, slurm)
    now, _, _ = tick(now, slurm)
    assert slurm.keys.live["w5"] == slurm.keys.current == "key-1"


def test_parameters_are_refused_and_nothing_is_touched() -> None:
    now, slurm, _ = scenario(parameters={"key": "mine"})
    _, steps, plays = tick(now, slurm)
    assert plays == [] and of_kind(steps, Refuse)[0].code == "parameters_invalid"


def test_members_that_are_not_in_service_are_not_part_of_it() -> None:
    now, slurm, _ = scenario()
    failed = serving(4, status="failed")
    _, _, plays = tick(now.later(members=(*now.members, failed)), slurm)
    assert all(failed not in play.members for play in plays)


def test_allowed_only_while_the_instance_runs() -> None:
    now, slurm, _ = scenario(age=0)
    stopped = now.instance.model_copy(update={"status": "stopped"})
    _, steps, plays = tick(now.later(instance=stopped), slurm)
    assert plays == [] and of_kind(steps, Refuse)[0].code == "instance_state"


def switching(now: World, operation: Operation, **note: Any) -> World:
    """A rotation whose first play is over, as the note of the instance has it."""
    status = dict(now.instance.status_detail or {})
    status["lifecycle"] = {"operation_id": str(operation.id), "verb": "rotate_credentials", "verdict": None}
    status["lifecycle"] |= {"since": "2026-01-02T03:04:05Z", "phase": "switching", "attempt": 0} | note
    return now.later(instance=now.instance.model_copy(update={"status_detail": status}))


def test_a_rotation_that_version_1_0_began_is_finished_without_the_hosts_it_left_out() -> None:
    now, slurm, operation = scenario()
    unreachable = workers(now)["w3"]
    slurm.keys.coming, slurm.keys.staged = "key-1", {"controller": "key-1", "w2": "key-1"}
    now = switching(now, operation, without={f"worker-{unreachable.id.hex[:8]}": "host_unreachable"})
    _, steps, plays = tick(now, slurm)
    assert steps_of(plays) == ["switch"] and unreachable not in plays[0].members
    (finish,) = of_kind(steps, Finish)
    assert (finish.error["code"], finish.result["missed_count"]) == ("rotation_partly", 1)


def test_each_worker_that_the_switch_leaves_out_has_it_in_its_own_record() -> None:
    now, slurm, operation = scenario()
    many = tuple(serving(number) for number in range(2, 402))
    unreachable = {f"w{number}" for number in range(3, 402)}
    slurm.nodes = {f"w{number}": FakeNode() for number in range(2, 402)}
    slurm.hosts_down = unreachable
    now = now.later(members=(now.members[0], *many))
    now, steps, plays = tick(now, slurm)
    assert [len(play.members) for play in plays] == [401, 2], "all but one are left out, not only those in a sample"
    assert note(now)["left_out_count"] == 399 and len(note(now)["left_out"]) == 20
    left = {"operation_id": str(operation.id), "code": "host_unreachable"}
    assert all(
        one.adapter_detail["rotation_left_out"] == left for name, one in workers(now).items() if name in unreachable
    )
    (finish,) = of_kind(steps, Finish)
    assert finish.result["missed_count"] == 399 and "and 379 more" in finish.error["message"]


def test_a_worker_that_an_earlier_rotation_left_out_takes_part_in_the_next() -> None:
    now, slurm, _ = scenario()
    slurm.hosts_down = {"w3"}
    now, _, _ = tick(now, slurm)
    slurm.hosts_down = set()
    now, steps, plays = tick(now.later(instance_operations=(ask_whole("rotate_credentials"),)), slurm)
    assert len(plays[-1].members) == 3 and of_kind(steps, Finish)[0].status == "succeeded"
    assert workers(now)["w3"].adapter_detail["rotation_left_out"] is None
