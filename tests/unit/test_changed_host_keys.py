"""A host that shows another key than the known one is left alone until a person trusts it or removes the worker."""

from typing import Any
from uuid import UUID

import pytest

from runner.act.inventory import build
from runner.cli.trust import with_key
from runner.intent import host_keys
from runner.intent.connection import read_target
from runner.intent.host_keys import CHANGED, PINNED
from runner.model.errors import RequestError
from runner.model.plan import AdapterError, stamp
from runner.model.platform import Member
from runner.model.world import Outcome, World
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from runner.slurm.member_reports import MemberReports
from runner.translate import MemberEvent, parse_event
from tests.unit.key_notes import CONTROLLER, OTHER, code_of, first_play, pinned, without_keys
from tests.unit.lifecycle import ask, serving
from tests.unit.worlds import (
    KEY,
    NOW,
    add,
    allocation,
    claimed_by_us,
    controller,
    instance,
    keyless,
    node,
    settle,
    snapshot,
    worker,
    world,
)

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
    written = next(one for one in now.members if one.id == bad.id)
    assert written.adapter_detail[CHANGED]["expected"] == host_keys.fingerprint(KEY.split()[1])
    assert written.adapter_detail["last_adapter_error"]["class"] == "intervention"
    assert "host_key_mismatch" in [one["code"] for one in now.instance.status_detail["reasons"]]  # type: ignore[index]

    later = now.later(outcomes={}, played=frozenset(), operations=(claimed_by_us(add(4)),), snapshot=now.snapshot)
    now, _, play = first_play(later)
    assert play is not None and play.playbook == "add_worker", "others go on"
    assert bad.id not in [one.id for one in play.members]
    _, problems = build(SLURM, now.instance, now.members, now.allocations)
    assert [(key, one.code) for key, one in problems.items()] == [(bad.id, "host_key_mismatch")]


def test_a_worker_with_another_key_can_be_removed_without_its_host() -> None:
    start, bad, _ = after_mismatch()
    now, _, _ = settle(start, decide)
    written = next(one for one in now.members if one.id == bad.id)
    removal = ask("remove", written)
    free: dict[str, Any] = {"jobs": [], "reservations": []}
    seen = snapshot({"w2": node(state="DOWN", flags={"DRAIN"}), "w3": node()}).model_copy(update=free)
    acts = frozenset({("drain", written.id)})
    now = now.later(outcomes={}, operations=(claimed_by_us(removal),), snapshot=seen, played=acts)
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
    written = next(one for one in now.members if one.id == up.id)
    assert written.adapter_detail["last_adapter_error"]["code"] == "host_key_mismatch"
    _, problems = build(SLURM, now.instance, now.members, now.allocations)
    assert [(key, one.code) for key, one in problems.items()] == [(up.id, "host_key_mismatch")]


def test_a_worker_without_a_pin_is_removed_without_waiting_for_its_keys() -> None:
    lost = worker(add(2), 2, status="failed", adapter_detail={"registered_in_controller": False})
    up = controller(status="ready", adapter_detail=CONTROLLER)
    running = instance(status="running", health="healthy", status_detail={"observed_at": stamp(NOW)})
    start = world(instance=running, members=(up, lost), operations=(claimed_by_us(ask("remove", lost)),))
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
    report = {"phase": "munge", "detail": {PINNED: {"keys": [OTHER]}, CHANGED: None, "cpus": 2}}
    event = {
        "event": "runner_on_ok",
        "event_data": {"host": "w", "task_action": "member_report", "res": {"member_report": report}},
    }
    parsed = parse_event(event, {"w": MemberReports(UUID(int=5), "worker")})
    assert isinstance(parsed, MemberEvent) and parsed.detail == {"cpus": 2}


def test_the_message_of_a_changed_key_names_every_next_step() -> None:
    assert len(host_keys.KEY_CHANGED_MESSAGE) < 500, "it would be cut"
    for text in ("break-in", "op remove", "replace", "op add", "host_keys", "gpuaas-slurm trust"):
        assert text in host_keys.KEY_CHANGED_MESSAGE
