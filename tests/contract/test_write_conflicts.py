"""Writes that conflict with another writer's: none of them is lost, and what no longer fits is decided again."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner.model.plan import Claim, SetInstance, SetMember, stamp
from runner.model.platform import Member
from runner.model.world import World
from runner.platform.client import Client
from runner.report.leases import LostLease, Outdated
from runner.report.reporter import Reporter
from runner.slurm.app import SLURM
from tests.contract.scene import Scene
from tests.platform_process import Doc


@dataclass
class Left:
    """What the runner `left` has read, and its reporter. Others write before it does."""

    report: Reporter
    world: World
    worker: Member


@pytest.fixture
def left(scene: Scene) -> Iterator[Left]:
    own = scene.settings("left")
    with Client(own) as client:
        world = scene.read(client, own)
        worker = next(one for one in world.members if one.adapter_detail.get("worker_hostname") == scene.worker())
        report = Reporter(client, own, world, SLURM)
        yield Left(report, world, worker)
        report.claims.release()


def detail_of(scene: Scene) -> Doc:
    found: Doc = scene.members()[scene.worker()]["adapter_detail"]
    return found


def write_in_between(scene: Scene, **changes: Any) -> None:
    member = scene.members()[scene.worker()]
    body = {"adapter_detail": {**member["adapter_detail"], **changes}}
    assert scene.project.adapter.patch(f"{scene.path}/members/{member['id']}", body).status_code == 200


def test_a_write_puts_only_its_own_changes_into_the_newest_detail(scene: Scene, left: Left) -> None:
    """A key that a person pinned in mid-tick, a number and a newer version's note stay."""
    newer = {"jobs_remaining": "a newer version's own type", "leave": {"attempts": {"count": 1}}}
    write_in_between(scene, host_keys_pinned={"keys": ["k"]}, fence=9, **newer)
    mark = scene.project.platform.control.requests()["last"]
    left.report.apply(SetMember("seen", left.worker, left.worker.status, {"node_state": "IDLE+X"}), left.world)
    rows = scene.project.platform.control.requests(mark)["requests"]
    assert [row["status"] for row in rows if row["method"] == "PATCH"] == [412, 200]
    detail = detail_of(scene)
    assert (detail["node_state"], detail["host_keys_pinned"], detail["fence"]) == ("IDLE+X", {"keys": ["k"]}, 9)
    assert {key: detail[key] for key in newer} == newer


def test_no_write_but_a_claim_changes_the_number(scene: Scene, left: Left) -> None:
    """Also not one that carries a host's own report."""
    world, worker = left.world, left.worker
    number = worker.adapter_detail["fence"]
    for wrong in (0, number + 5, None):
        changes = {"fence": wrong, "phase": str(wrong)}
        world = left.report.apply(SetMember("reported", worker, worker.status, changes), world)
        assert detail_of(scene)["fence"] == number
    world = left.report.apply(Claim("ours", worker, worker.status), world)
    assert detail_of(scene)["fence"] == world.fences[worker.id] == number + 1


def test_a_write_decides_again_if_the_status_or_the_claim_changed(scene: Scene, left: Left) -> None:
    step = SetMember("seen", left.worker, left.worker.status, {"node_state": "X"})
    path = f"{scene.path}/members/{left.worker.id}"
    assert scene.project.adapter.patch(path, {"status": "draining"}).status_code == 200
    with pytest.raises(Outdated, match="draining now, and was ready"):
        left.report.apply(step, left.world)
    later = stamp(datetime.now(UTC) + timedelta(minutes=5))
    write_in_between(scene, claimed_by="right", lease_expires_at=later)
    with pytest.raises(LostLease, match="held by right until"):
        left.report.apply(step, left.world)
    assert detail_of(scene)["node_state"] != "X"


def test_a_claim_after_another_claim_gives_no_number(scene: Scene, left: Left) -> None:
    """Another runner claimed and released the member meanwhile, so the planned work may be done already."""
    number = left.worker.adapter_detail["fence"]
    write_in_between(scene, fence=number + 1)
    with pytest.raises(Outdated, match="claimed by another runner"):
        left.report.apply(Claim("late", left.worker, left.worker.status), left.world)
    assert detail_of(scene)["fence"] == number + 1


def test_an_operators_stop_is_not_overwritten_by_what_was_to_be_written(scene: Scene, left: Left) -> None:
    detail = {**(left.world.instance.status_detail or {}), "reasons": [{"code": "x", "message": "y"}]}
    step = SetInstance("seen", "running", "degraded", detail)
    assert scene.project.adapter.patch(scene.path, {"status": "stopped"}).status_code == 200
    with pytest.raises(Outdated, match="stopped now, and was running"):
        left.report.apply(step, left.world)
    assert scene.project.shown(scene.instance)["status"] == "stopped"


def test_a_write_to_the_instance_keeps_what_others_wrote_into_its_detail(scene: Scene, left: Left) -> None:
    detail = left.world.instance.status_detail or {}
    body = {"status_detail": {**detail, "observed_at": "2026-01-01T00:00:00Z", "newer_note": {"a": 1}}}
    assert scene.project.adapter.patch(scene.path, body).status_code == 200
    changed = {**detail, "reasons": [{"code": "x", "message": "y"}]}
    left.report.apply(SetInstance("seen", "running", "degraded", changed), left.world)
    now = scene.project.shown(scene.instance)["status_detail"]
    assert (now["newer_note"], now["observed_at"]) == ({"a": 1}, "2026-01-01T00:00:00Z")
    assert now["reasons"] == [{"code": "x", "message": "y"}]
