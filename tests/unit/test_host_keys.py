"""By which keys a host is known: the platform's, else those it showed before anything was run on it, and no others."""

import base64
import subprocess
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.act import keyscan, plays
from runner.act.inventory import build
from runner.act.play_queue import PlaySlot
from runner.cli.trust import with_key
from runner.intent import host_keys
from runner.intent.connection import read_target
from runner.intent.errors import IntentError
from runner.intent.host_keys import CHANGED, PINNED
from runner.loop.dry_run import dry_run
from runner.model.errors import RequestError
from runner.model.plan import AdapterError, Pin, Play, SetMember, Step, shown, stamp
from runner.model.platform import Allocation, Member
from runner.model.world import Outcome, World
from runner.settings import Settings
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from runner.slurm.member_reports import MemberReports
from runner.translate import MemberEvent, parse_event
from tests.unit.lifecycle import ask, serving
from tests.unit.worlds import (
    KEY,
    NOW,
    add,
    allocation,
    controller,
    instance,
    keyless,
    mine,
    node,
    of_kind,
    settle,
    snapshot,
    worker,
    world,
)

OTHER = "ssh-ed25519 " + "B" * 68
RSA = "ssh-rsa " + "C" * 372
CONTROLLER = {"phase": "serving", "controller_hostname": "ctl"}


def without_keys(now: World, *numbers: int) -> World:
    return now.later(allocations={**now.allocations, **{UUID(int=100 + one): keyless(one) for one in numbers}})


def pinned(*keys: str) -> dict[str, Any]:
    return host_keys.pin(keys or (KEY,), "10.0.0.2", stamp(NOW))


def first_play(start: World, shows: str = KEY) -> tuple[World, list[Step], Play | None]:
    """Decide and carry out in mind, with hosts that show this key, until a play is asked for."""
    now, steps = start, list[Step]()
    for _ in range(50):
        plan = decide(now)
        steps += plan.steps
        if plan.idle or plan.play:
            return now, steps, plan.play
        for step in plan.writes:
            for one in step.members if isinstance(step, Pin) else ():
                note = host_keys.pin([shows], "10.0.0.9", stamp(NOW))
                now = now.after(SetMember("", one, one.status, note, consumes_outcome=False))
            now = now if isinstance(step, Pin) else now.after(step)
    raise AssertionError("does not settle")


def code_of(one: Allocation, member: Member) -> str | None:
    try:
        read_target(one, member)
    except IntentError as error:
        return error.code
    return None


# -- first sight ---------------------------------------------------------------------------------------------


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
    words = [row["step"] for row in rows]
    assert words.index("pin host keys") < words.index("run playbooks/deploy.yml")
    assert "worker-" in rows[words.index("pin host keys")]["subject"]


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
    silent = AdapterError("host_unreachable", "it shows no key", "retryable")
    start = without_keys(world(operations=(add(2),)), 2)
    now = start
    while not (plan := decide(now)).play:
        pins = of_kind(plan.steps, Pin)
        for step in plan.writes:
            now = now.after(step)
        if pins:
            now = now.later(key_scan_errors={one.id: silent for one in pins[0].members})
    _, problems = build(SLURM, now.instance, plan.play.members, now.allocations)
    assert [problem.code for problem in problems.values()] == ["host_key_missing"], "it must not be dialled"


def test_no_play_runs_without_a_reachable_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ansible_runner.run", lambda **_: pytest.fail("something was run"))
    silent = AdapterError("host_unreachable", "it shows no key", "retryable")
    first, other = controller(status="reconciling"), worker(add(2), 2)
    now = without_keys(world(members=(first, other)), 1).later(key_scan_errors={first.id: silent})
    step = Play("", "deploy", (first, other), frozenset({("join", first.id), ("join", other.id)}))
    slot = PlaySlot(requested=True, forks=1, number=1)
    result = plays.play(
        step, now, SLURM, {}, Settings.model_construct(), on_member_event=print, give_up=bool, slot=slot
    )
    assert result.outcomes == {first.id: Outcome(error=silent)}


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
    told = next(one for one in now.members if one.id == member.id)
    error = told.adapter_detail["last_adapter_error"]
    assert (told.status, error["code"], error["class"]) == ("ready", "host_key_contradicted", "intervention")
    assert "gpuaas-slurm trust" in error["message"]
    assert now.instance.health == "degraded"
    assert [one["code"] for one in now.instance.status_detail["reasons"]] == ["host_key_contradicted"]  # type: ignore[index]
    trusted = told.model_copy(update={"adapter_detail": with_key(told, allocation(2), KEY)})
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
    told = next(one for one in now.members if one.id == member.id)
    trusted = told.model_copy(update={"adapter_detail": with_key(told, allocation(2), KEY)})
    _, _, play = settle(now.with_member(trusted), decide)
    assert play is not None and ("repair", member.id) in play.acts


# -- another key ---------------------------------------------------------------------------------------------

MISMATCH = AdapterError("host_key_mismatch", host_keys.KEY_CHANGED_MESSAGE, "intervention")


def after_mismatch(**changes: Any) -> tuple[World, Member, Member]:
    """Two workers, of which one was to be repaired and showed another key."""
    bad, good = serving(2, adapter_detail=pinned()), serving(3)
    up = controller(status="ready", adapter_detail=CONTROLLER)
    trying = {"repair": {"why": "worker_down", "attempts": 1, "next_at": stamp(NOW), "outcome": "trying"}}
    bad = bad.model_copy(update={"adapter_detail": bad.adapter_detail | trying})
    seen = snapshot({"w2": node(state="DOWN"), "w3": node()})
    running = instance(status="running", health="healthy", status_detail={"observed_at": stamp(NOW)})
    outcomes = {bad.id: Outcome(error=MISMATCH), up.id: Outcome("serving")}
    start = world(instance=running, members=(up, bad, good), snapshot=seen, outcomes=outcomes, **changes)
    return without_keys(start.later(played=frozenset({("repair", bad.id)})), 2), bad, good


def test_a_ready_worker_with_another_key_is_reported_and_left_alone() -> None:
    start, bad, _ = after_mismatch()
    now, _, play = settle(start, decide)
    assert play is None
    told = next(one for one in now.members if one.id == bad.id)
    assert told.adapter_detail[CHANGED]["expected"] == host_keys.fingerprint(KEY.split()[1])
    assert told.adapter_detail["last_adapter_error"]["class"] == "intervention"
    assert "host_key_mismatch" in [one["code"] for one in now.instance.status_detail["reasons"]]  # type: ignore[index]

    later = now.later(outcomes={}, played=frozenset(), operations=(mine(add(4)),), snapshot=now.snapshot)
    now, _, play = first_play(later)
    assert play is not None and play.playbook == "add_worker", "others go on"
    assert bad.id not in [one.id for one in play.members]
    _, problems = build(SLURM, now.instance, now.members, now.allocations)
    assert [(key, one.code) for key, one in problems.items()] == [(bad.id, "host_key_mismatch")]


def test_a_worker_with_another_key_can_be_removed_without_its_host() -> None:
    start, bad, _ = after_mismatch()
    now, _, _ = settle(start, decide)
    told = next(one for one in now.members if one.id == bad.id)
    removal = ask("remove", told)
    free: dict[str, Any] = {"jobs": [], "reservations": []}
    seen = snapshot({"w2": node(state="DOWN", flags={"DRAIN"}), "w3": node()}).model_copy(update=free)
    acts = frozenset({("drain", told.id)})
    now = now.later(outcomes={}, operations=(mine(removal),), snapshot=seen, played=acts)
    now, _, play = settle(now, decide)
    assert play is not None and play.playbook == "remove_worker" and play.work == {"delete": ["w2"]}
    assert [one.component_key for one in play.members] == ["controller"], "its host is not touched"
    gone = now.later(played=now.played | play.acts, snapshot=snapshot({"w3": node()}).model_copy(update=free))
    now, _, _ = settle(gone, decide)
    end = next(one for one in now.members if one.id == bad.id)
    assert end.status == "deleted" and end.adapter_detail["host_cleaned"] is False
    assert "another machine" in end.adapter_detail["host_left"]


def test_a_controller_with_another_key_makes_the_health_unknown() -> None:
    up = controller(status="ready", adapter_detail=CONTROLLER | pinned())
    running = instance(status="running", health="healthy", status_detail={"observed_at": stamp(NOW)})
    start = without_keys(world(instance=running, members=(up, serving(2))), 1)
    start = start.later(outcomes={up.id: Outcome(error=MISMATCH)}, played=frozenset({("look", up.id)}))
    now, _, play = settle(start, decide)
    assert play is None and now.instance.health == "unknown"
    told = next(one for one in now.members if one.id == up.id)
    assert told.adapter_detail["last_adapter_error"]["code"] == "host_key_mismatch"
    _, problems = build(SLURM, now.instance, now.members, now.allocations)
    assert [(key, one.code) for key, one in problems.items()] == [(up.id, "host_key_mismatch")]


def test_a_worker_without_a_pin_is_removed_without_waiting_for_its_keys() -> None:
    lost = worker(add(2), 2, status="failed", adapter_detail={"registered_in_controller": False})
    up = controller(status="ready", adapter_detail=CONTROLLER)
    running = instance(status="running", health="healthy", status_detail={"observed_at": stamp(NOW)})
    start = world(instance=running, members=(up, lost), operations=(mine(ask("remove", lost)),))
    now, _, _ = settle(without_keys(start, 2), decide)
    end = next(one for one in now.members if one.id == lost.id)
    assert end.status == "deleted" and end.adapter_detail["host_left"] == "nothing was ever set up on it"


def test_a_corrected_key_lets_plays_run_again_and_the_old_one_stops_them() -> None:
    member = serving(2, adapter_detail=pinned() | host_keys.changed(KEY.split()[1], stamp(NOW)))
    assert code_of(keyless(2), member) == "host_key_mismatch"
    trusted = member.model_copy(update={"adapter_detail": with_key(member, keyless(2), f"{OTHER} root@host")})
    assert read_target(keyless(2), trusted).key_body == OTHER.split()[1]
    corrected = serving(2, adapter_detail=host_keys.changed(OTHER.split()[1], stamp(NOW)))
    assert code_of(allocation(2), corrected) is None, "the platform's record was put right"


@pytest.mark.parametrize("key", ["", "ssh-ed25519", "ssh-ed25519 x", "ssh-dss " + "A" * 68, OTHER])
def test_trust_refuses_an_invalid_key_and_one_the_platform_contradicts(key: str) -> None:
    with pytest.raises(RequestError):
        with_key(serving(2), allocation(2), key)


def test_a_host_cannot_set_its_own_pinned_keys() -> None:
    said = {"phase": "munge", "detail": {PINNED: {"keys": [OTHER]}, CHANGED: None, "cpus": 2}}
    event = {
        "event": "runner_on_ok",
        "event_data": {"host": "w", "task_action": "member_report", "res": {"member_report": said}},
    }
    heard = parse_event(event, {"w": MemberReports(UUID(int=5), "worker")})
    assert isinstance(heard, MemberEvent) and heard.detail == {"cpus": 2}


def test_the_message_of_a_changed_key_names_every_next_step() -> None:
    assert len(host_keys.KEY_CHANGED_MESSAGE) < 500, "it would be cut"
    for word in ("break-in", "op remove", "replace", "op add", "host_keys", "gpuaas-slurm trust"):
        assert word in host_keys.KEY_CHANGED_MESSAGE


# -- reading what hosts show ---------------------------------------------------------------------------------


def test_scanned_keys_are_read_by_address_with_every_type_of_key() -> None:
    lines = [
        "# 10.0.0.2:22 SSH-2.0-OpenSSH_9.2\n",
        f"10.0.0.2 {RSA}\n",
        f"10.0.0.2 {KEY}\n",
        f"10.0.0.2 {OTHER}\n",
        f"[10.0.0.3]:2222 {OTHER}\n",
        f"10.0.0.4 {KEY}\n",
        f"10.0.0.5 {KEY} and more\n",
        f"10.0.0.6 {KEY}",
    ]
    asked = [f"10.0.0.{number}" for number in (2, 3, 5, 6)]
    assert keyscan.parse_keys(lines, asked) == {"10.0.0.2": (KEY, RSA), "10.0.0.3": (OTHER,)}


@given(st.lists(st.text(max_size=80) | st.text(max_size=60).map(lambda text: f"10.0.0.2 ssh-ed25519 {text}\n")))
def test_only_plain_keys_are_read_from_hostile_scan_output(lines: list[str]) -> None:
    for keys in keyscan.parse_keys(lines, ["10.0.0.2"]).values():
        assert host_keys.read_keys(keys) and all(len(key.split()) == 2 for key in keys)


def test_the_runners_own_machine_is_not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyscan, "_run_keyscan", lambda *_: pytest.fail("it was asked"))
    seen, problems = keyscan.scan({"w": ("127.0.0.1", 22)})
    assert seen == {} and problems["w"].code == "connection_invalid"


def test_hosts_of_one_port_are_scanned_in_one_call_and_silent_ones_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], int]] = []

    def answer(addresses: list[str], port: int) -> dict[str, tuple[str, ...]]:
        calls.append((addresses, port))
        return {addresses[0]: (KEY,)}

    monkeypatch.setattr(keyscan, "_run_keyscan", answer)
    seen, problems = keyscan.scan({"a": ("198.51.100.1", 22), "b": ("198.51.100.2", 22), "same": ("198.51.100.1", 22)})
    assert calls == [(["198.51.100.1", "198.51.100.2"], 22)]
    assert {name: one.keys for name, one in seen.items()} == {"a": (KEY,), "same": (KEY,)}
    assert (problems["b"].code, problems["b"].klass) == ("host_unreachable", "retryable")


def test_a_fingerprint_has_the_form_of_ssh_keygen() -> None:
    body = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0 " + bytes(32)).decode()
    told = subprocess.run(["ssh-keygen", "-l", "-f", "-"], input=f"ssh-ed25519 {body}", capture_output=True, text=True)
    assert host_keys.fingerprint(body) == told.stdout.split()[1]
