"""Which ssh keys identify a host: the platform's, else those it showed before anything was run on it, and no others."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.act import plays
from runner.act.inventory import build
from runner.act.play_queue import PlaySlot
from runner.act.play_secrets import Access
from runner.cli.trust import with_key
from runner.intent import host_keys
from runner.intent.connection import read_target
from runner.intent.host_keys import CHANGED, PINNED
from runner.loop.dry_run import dry_run
from runner.model.errors import RequestError
from runner.model.plan import AdapterError, Pin, Play, shown, stamp
from runner.model.world import Outcome
from runner.settings import Settings
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from tests.unit.key_notes import CONTROLLER, OTHER, RSA, code_of, first_play, pinned, without_keys
from tests.unit.lifecycle import cluster, serving, the
from tests.unit.worlds import (
    KEY,
    NOW,
    add,
    allocation,
    controller,
    instance,
    keyless,
    node,
    of_kind,
    settle,
    snapshot,
    worker,
    world,
)


def test_keys_of_all_hosts_are_pinned_at_once_before_the_first_play() -> None:
    start = without_keys(world(operations=(add(2, 3),)), 1, 2, 3)
    now, steps, play = first_play(start)
    assert play is not None and len(play.members) == 3
    (step,) = of_kind(steps, Pin)
    assert {one.allocation_id for one in step.members} == {UUID(int=101), UUID(int=102), UUID(int=103)}
    assert all(member.adapter_detail[PINNED]["keys"] == [KEY] for member in play.members)
    tree, problems = build(SLURM, now.instance, play.members, now.allocations)
    assert problems == {}
    assert all(KEY in host["ansible_ssh_common_args"] for host in tree["all"]["hosts"].values())


def test_only_hosts_without_given_keys_are_scanned() -> None:
    _, steps, play = first_play(without_keys(world(operations=(add(2, 3),)), 3))
    (step,) = of_kind(steps, Pin)
    assert [one.allocation_id for one in step.members] == [UUID(int=103)]
    assert play is not None and [PINNED in one.adapter_detail for one in play.members] == [False, False, True]


def test_a_plan_shows_the_pinning_before_the_play_and_touches_no_host() -> None:
    rows = [shown(step) for step in dry_run(without_keys(world(operations=(add(2),)), 1, 2), SLURM)]
    steps = [row["step"] for row in rows]
    assert steps.index("pin host keys") < steps.index("run playbooks/deploy.yml")
    assert "worker-" in rows[steps.index("pin host keys")]["subject"]


def test_two_members_on_one_machine_have_one_pin() -> None:
    up = controller(status="ready", adapter_detail=CONTROLLER | pinned(OTHER))
    same = instance(
        status="running",
        placement_intent={
            "mode": "same_node",
            "controller_allocation_id": str(UUID(int=101)),
            "worker_allocation_ids": [str(UUID(int=101))],
        },
    )
    start = world(instance=same, members=(up,), operations=(add(1),), snapshot=snapshot({}))
    _, steps, play = first_play(without_keys(start, 1), shows=KEY)
    assert of_kind(steps, Pin) == [] and play is not None
    assert [one.adapter_detail[PINNED]["keys"] for one in play.members] == [[OTHER], [OTHER]]


def test_a_host_without_readable_keys_fails_in_the_play_and_is_scanned_once() -> None:
    no_key = AdapterError("host_unreachable", "it shows no key", "retryable")
    start = without_keys(world(operations=(add(2),)), 2)
    now, scans = start, list[Pin]()
    for _ in range(20):
        plan = decide(now)
        if plan.play:
            break
        pins = of_kind(plan.steps, Pin)
        scans += pins
        for step in plan.before_play:
            now = now.after(step)
        if pins:
            now = now.later(key_scan_errors={one.id: no_key for one in pins[0].members})
    assert plan.play and len(scans) == 1
    _, problems = build(SLURM, now.instance, plan.play.members, now.allocations)
    assert [problem.code for problem in problems.values()] == ["host_key_missing"], "it must not be dialled"


def test_no_play_runs_without_a_reachable_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansible_runner.run", lambda **_: pytest.fail("something was run"))
    no_key = AdapterError("host_unreachable", "it shows no key", "retryable")
    first, other = controller(status="reconciling"), worker(add(2), 2)
    now = without_keys(world(members=(first, other)), 1).later(key_scan_errors={first.id: no_key})
    step = Play("", "deploy", (first, other), frozenset({("join", first.id), ("join", other.id)}))
    slot = PlaySlot(requested=True, hosts=1, forks=1)
    result = plays.play(
        step, now, SLURM, Access({}), Settings.model_construct(), on_member_event=print, give_up=bool, slot=slot
    )
    assert result.outcomes == {first.id: Outcome(error=no_key)}


@pytest.mark.parametrize(
    "touched",
    [
        {"status": "ready"},
        {"status": "draining"},
        {"status": "reconciling", "adapter_detail": {"phase": "munge"}},
        {"status": "reconciling", "adapter_detail": {"phase": "preflight"}},
        {"status": "reconciling", "adapter_detail": {"host_touched": True}},
        {"status": "requested", "adapter_detail": {"phase": "stopped", "stopped": {"was": "ready"}}},
        {"status": "deleting"},
        {"status": "failed"},
    ],
)
def test_a_member_that_lost_its_note_is_not_pinned_again(touched: dict[str, Any]) -> None:
    member = worker(add(2), 2, **touched)
    assert not host_keys.is_first_sight(keyless(2), member)
    assert code_of(keyless(2), member) == "host_key_missing"


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.just(KEY) | st.just("10.0.0.2"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["keys", "at", "address"]), inner),
    max_leaves=6,
)


@given(note=junk.filter(lambda value: value is not None))
def test_an_unreadable_note_is_neither_trusted_nor_replaced(note: Any) -> None:
    member = worker(add(2), 2, adapter_detail={PINNED: note})
    assert not host_keys.is_first_sight(keyless(2), member)
    wanted = isinstance(note, dict) and set(note) == {"keys", "at", "address"} and note["keys"] == [KEY]
    found = code_of(keyless(2), member)
    assert found == "host_key_note_invalid" or (found is None and wanted)
    assert found is None or code_of(allocation(2), member) == found, "given keys do not make a spoilt note good"


@pytest.mark.parametrize("name", [PINNED, CHANGED])
def test_nothing_is_run_on_a_host_whose_key_note_a_newer_runner_wrote(name: str) -> None:
    recorded = {"phase": "serving", "worker_hostname": "w2", **pinned(), name: {"format": 2, "later": True}}
    member = worker(add(2), 2, status="ready", adapter_detail=recorded)
    assert code_of(keyless(2), member) == code_of(allocation(2), member) == "note_newer"
    assert not host_keys.is_first_sight(keyless(2), member)
    tree, problems = build(SLURM, instance(), (member,), {member.allocation_id: allocation(2)})  # type: ignore[dict-item]
    assert problems[member.id].code == "note_newer" and not tree["all"]["hosts"]
    with pytest.raises(RequestError, match="use the newer runner"):
        with_key(member, keyless(2), KEY)


def test_a_newer_key_note_takes_back_no_error_of_the_host() -> None:
    error = AdapterError("host_key_mismatch", "another machine").as_note(NOW).stored()
    member = serving(2, adapter_detail={PINNED: {"format": 2}, "last_adapter_error": error})
    now, steps, _ = settle(cluster(member), decide)
    assert the(now, member).notes.error_code == "note_newer"
    assert "its host is known again" not in [step.why for step in steps]


def test_by_hand_a_member_without_keys_is_left_out_with_what_to_do() -> None:
    now = without_keys(world(), 1)
    _, problems = build(SLURM, now.instance, now.members, now.allocations)
    (problem,) = problems.values()
    assert problem.code == "host_key_missing" and "gpuaas-slurm run" in problem.message


# -- the platform's keys, later ------------------------------------------------------------------------------


def test_keys_given_later_are_used_if_they_agree_with_the_pin() -> None:
    member = serving(2, adapter_detail=pinned(KEY, RSA))
    assert read_target(allocation(2), member).key_body == KEY.split()[1]
    only = allocation(2, connection={"host": "10.0.0.2", "username": "ops", "host_keys": [RSA]})
    assert read_target(only, member).key_type == "ssh-rsa"


def test_keys_that_contradict_the_pin_are_an_error_until_a_person_trusts_one() -> None:
    member = serving(2, adapter_detail=pinned(OTHER))
    up = controller(status="ready", adapter_detail=CONTROLLER)
    running = instance(status="running", health="healthy", status_detail={"observed_at": stamp(NOW)})
    start = world(instance=running, members=(up, member), snapshot=snapshot({"w2": node()}), played=frozenset({()}))
    now, _, _ = settle(start, decide)
    written = next(one for one in now.members if one.id == member.id)
    error = written.adapter_detail["last_adapter_error"]
    assert (written.status, error["code"], error["class"]) == ("ready", "host_key_contradicted", "intervention")
    assert "gpuaas-slurm trust" in error["message"]
    assert now.instance.health == "degraded"
    assert [one["code"] for one in now.instance.status_detail["reasons"]] == ["host_key_contradicted"]  # type: ignore[index]
    trusted = written.model_copy(update={"adapter_detail": with_key(written, allocation(2), KEY)})
    now, _, _ = settle(now.with_member(trusted), decide)
    assert now.instance.health == "healthy"


def test_a_worker_is_not_repaired_while_keys_contradict_and_is_once_one_is_trusted() -> None:
    member = serving(2, adapter_detail=pinned(OTHER))
    up = controller(status="ready", adapter_detail=CONTROLLER)
    running = instance(status="running", health="healthy", status_detail={"observed_at": stamp(NOW)})
    down = snapshot({"w2": node(state="DOWN")})
    start = world(instance=running, members=(up, member), snapshot=down, played=frozenset({()}))
    now, _, play = settle(start, decide)
    assert play is None
    written = next(one for one in now.members if one.id == member.id)
    trusted = written.model_copy(update={"adapter_detail": with_key(written, allocation(2), KEY)})
    _, _, play = settle(now.with_member(trusted), decide)
    assert play is not None and ("repair", member.id) in play.acts
