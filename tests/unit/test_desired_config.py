"""A changed desired configuration of a running cluster: tried once, watched by the host, and reported as it is live."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from runner.act import inventory
from runner.model.plan import AdapterError, Play, SetInstance, SetMember, stamp
from runner.model.platform import AppInstance, Member
from runner.model.world import Outcome, World
from runner.observe.world import observe
from runner.platform.answers import Listing
from runner.settings import Settings
from runner.slurm import desired_config, detail
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from tests.unit.lifecycle import serving
from tests.unit.worlds import NOW, UNREACHABLE, after, controller, instance, node, of_kind, settle, snapshot, world

REFUSAL = "slurmctld refuses the configuration: fatal: failed to initialize priority plugin"
CONFIG = {"slurm": {"MinJobAge": 120}}


def digest_of(config: dict[str, Any]) -> str:
    return desired_config.digest(instance(config=config))


def running(config: dict[str, Any], *members: Member, **recorded: Any) -> World:
    """A healthy cluster that serves an empty config, whose desired config is now `config`."""
    live = {"applied_config": digest_of({}), "config_version": "sha256:abc", "cluster_name": "gs00000000"} | recorded
    status = {"observed_at": stamp(NOW), "reasons": [], "wish": live["applied_config"]}
    return world(
        instance=instance(status="running", health="healthy", status_detail=status, config=config),
        members=(controller(status="ready", adapter_detail=live), *members),
    )


def the_controller(now: World) -> Member:
    return next(one for one in now.members if one.component_key == "controller")


def played(now: World, play: Play, outcome: Outcome, **seen: Any) -> World:
    found = snapshot({}, **seen) if outcome.error is None else None
    return after(now, play, {play.members[0].id: outcome}, found)


def live(now: World) -> Outcome:
    return Outcome("baseline", {"applied_config": desired_config.digest(now.instance)})


def refused(code: str = "config_refused") -> Outcome:
    return Outcome("controller", {}, AdapterError(code, REFUSAL))


def test_nothing_is_done_for_a_config_that_is_live() -> None:
    _, steps, play = settle(running({}), decide)
    assert play is None
    assert of_kind(steps, SetMember) == []


def test_a_changed_config_is_noted_first_and_then_put_live_on_the_controller() -> None:
    now, steps, play = settle(running(CONFIG, serving(2)), decide)
    assert of_kind(steps, SetMember)[0].detail == {
        "change": {"digest": digest_of(CONFIG), "attempt": 0, "begun_at": stamp(NOW)}
    }
    assert play is not None
    assert (play.playbook, [one.component_key for one in play.members]) == ("deploy", ["controller"])
    assert desired_config.is_pending(now.instance, the_controller(now))


def test_a_config_that_went_live_is_reported_and_not_tried_again() -> None:
    now, _, play = settle(running(CONFIG), decide)
    assert play
    now, steps, again = settle(played(now, play, live(now)), decide)
    assert again is None
    recorded = the_controller(now).adapter_detail
    assert (recorded["applied_config"], recorded["change"], recorded["config_refused"]) == (
        digest_of(CONFIG),
        None,
        None,
    )
    assert of_kind(steps, SetInstance)[-1].detail["config_digest"] == digest_of(CONFIG)
    assert of_kind(steps, SetInstance)[-1].health == "healthy"


@pytest.mark.parametrize("code", ["config_refused", "config_taken_back"])
def test_a_refused_config_degrades_and_is_not_tried_until_it_changes(code: str) -> None:
    now, _, play = settle(running(CONFIG), decide)
    assert play
    now, _, look = settle(played(now, play, refused(code)), decide)
    assert look is not None and look.playbook == "observe"
    now, steps, again = settle(played(now, look, Outcome("serving")), decide)
    assert again is None
    written = of_kind(steps, SetInstance)[-1]
    assert written.health == "degraded"
    assert [(reason["code"], reason["message"]) for reason in written.detail["reasons"]] == [(code, REFUSAL)]
    assert the_controller(now).adapter_detail["applied_config"] == digest_of({})
    later = now.later(now=NOW + timedelta(minutes=1), played=frozenset(), outcomes={}, snapshot=None)
    _, steps, play = settle(later, decide)
    assert play is None or play.playbook == "observe"
    assert of_kind(steps, SetMember) == []


def test_an_invalid_config_touches_no_host_and_is_reported() -> None:
    now, _steps, play = settle(running({"slurm": {"Epilog": "/tmp/x"}}), decide)
    assert play is not None and play.playbook == "observe"
    recorded = desired_config.refused(the_controller(now))
    assert recorded and recorded.code == "config_invalid"
    assert "Epilog" in recorded.message


def test_a_cluster_keeps_its_name() -> None:
    now, _, play = settle(running({"cluster_name": "other"}), decide)
    assert play is not None and play.playbook == "observe"
    refused = desired_config.refused(the_controller(now))
    assert refused and "keeps its name" in refused.message


def test_withdrawing_a_refused_config_makes_the_cluster_healthy() -> None:
    recorded = {"digest": digest_of(CONFIG), "code": "config_refused", "message": REFUSAL}
    now, _steps, play = settle(running({}, config_refused=recorded), decide)
    assert desired_config.refused(the_controller(now)) is None
    assert play is None


def test_an_unreachable_host_is_tried_again_with_growing_pauses() -> None:
    now, _, play = settle(running(CONFIG), decide)
    assert play
    away = Outcome(error=UNREACHABLE)
    waits = []
    for _ in range(3):
        now, _, _look = settle(played(now, play, away), decide)
        trial = desired_config.on_trial(the_controller(now))
        assert trial and trial.next_at
        waits.append(trial.next_at)
        assert trial.digest == digest_of(CONFIG)
        _, _, early = settle(now.later(played=frozenset(), outcomes={}), decide)
        assert early is None or early.playbook == "observe"
        now = now.later(now=NOW + timedelta(hours=len(waits)), played=frozenset(), outcomes={}, snapshot=None)
        now, _, play = settle(now, decide)
        assert play is not None and play.playbook == "deploy"
    assert waits == sorted(waits)


def test_a_killed_run_is_continued_even_if_the_config_changed_back() -> None:
    trial = {"digest": digest_of(CONFIG), "attempt": 0}
    for config in (CONFIG, {}):
        now, _, play = settle(running(config, change=trial), decide)
        assert play is not None and play.playbook == "deploy"
        begun = desired_config.on_trial(the_controller(now))
        assert begun and begun.digest == digest_of(config)
        now, _, _ = settle(played(now, play, live(now)), decide)
        assert desired_config.on_trial(the_controller(now)) is None
        assert desired_config.live(the_controller(now)) == digest_of(config)


def test_an_interrupted_trial_is_ended_although_the_new_config_is_invalid() -> None:
    now, _, play = settle(
        running({"slurm": {"Epilog": "/x"}}, change={"digest": digest_of(CONFIG), "attempt": 0}), decide
    )
    assert play is not None and play.playbook == "deploy"
    hosts, _ = inventory.build(SLURM, now.instance, play.members, now.allocations)
    shared = hosts["all"]["children"]["instance_00000000_0000_0000_0000_000000000007"]["vars"]
    assert (shared["slurm_config_keep"], shared["slurm_desired_config"]) == (True, digest_of({}))
    now, _, _ = settle(played(now, play, Outcome("baseline", {"applied_config": digest_of({})})), decide)
    recorded = the_controller(now)
    refused = desired_config.refused(recorded)
    assert desired_config.on_trial(recorded) is None and refused and refused.code == "config_invalid"


@pytest.mark.parametrize(
    "recorded", [None, {"digest": digest_of(CONFIG), "code": "config_refused", "message": REFUSAL}]
)
def test_a_play_for_another_reason_renders_only_a_tried_configuration(recorded: Any) -> None:
    now = running(CONFIG, config_refused=recorded)
    hosts, _ = inventory.build(SLURM, now.instance, now.members, now.allocations)
    shared = hosts["all"]["children"]["instance_00000000_0000_0000_0000_000000000007"]["vars"]
    assert (shared["slurm_config_keep"], shared["slurm_desired_config"]) == (True, digest_of({}))


def test_the_config_that_a_play_reports_counts_and_not_a_later_one() -> None:
    now, _, play = settle(running(CONFIG), decide)
    assert play
    changed = played(now, play, live(now))
    newer: AppInstance = now.instance.model_copy(update={"config": {"slurm": {"KillWait": 9}}})
    now, _, _again = settle(changed.later(instance=newer), decide)
    assert desired_config.live(the_controller(now)) == digest_of(CONFIG)
    assert desired_config.is_pending(now.instance, the_controller(now))


def test_workers_follow_the_controllers_configuration_and_report_theirs() -> None:
    behind = serving(2, adapter_detail={"config_version": "sha256:old"})
    level = serving(3, adapter_detail={"config_version": "sha256:abc"})
    away = serving(4, adapter_detail={"config_version": "sha256:old"})
    now = running({}, behind, level, away)
    late = now.later(now=NOW + timedelta(hours=1))
    now, _, look = settle(late, decide)
    assert look is not None and look.playbook == "observe"
    nodes = {"w2": node(), "w3": node(), "w4": node(flags={"NOT_RESPONDING"})}
    now, _, play = settle(after(now, look, {}, snapshot(nodes)), decide)
    assert play is not None and play.playbook == "follow"
    assert [one.id for one in play.members[1:]] == [behind.id]
    outcomes = {behind.id: Outcome("serving", {"config_version": "sha256:abc", "package_version": "24.11.5-4"})}
    now, _, again = settle(after(now, play, outcomes, snapshot(nodes)), decide)
    recorded = next(one for one in now.members if one.id == behind.id).adapter_detail
    assert (recorded["config_version"], recorded["package_version"]) == ("sha256:abc", "24.11.5-4")
    assert again is None or again.playbook != "follow"


def test_a_worker_that_cannot_follow_keeps_its_version_until_the_next_look() -> None:
    behind = serving(2, adapter_detail={"config_version": "sha256:old"})
    now = running({}, behind)
    now = now.later(now=NOW + timedelta(hours=1), snapshot=snapshot({"w2": node()}))
    now, _, play = settle(now, decide)
    assert play is not None and play.playbook == "follow"
    away = {behind.id: Outcome(error=UNREACHABLE)}
    now, _, again = settle(after(now, play, away, snapshot({"w2": node()})), decide)
    assert again is None
    assert next(one for one in now.members if one.id == behind.id).adapter_detail["config_version"] == "sha256:old"


def test_changed_users_reach_the_workers_in_the_run_that_lets_them_submit() -> None:
    config = {"users": [{"name": "ada", "uid": 2001}]}
    before = desired_config.users(instance())
    worker = serving(2, adapter_detail={"users_version": before, "config_version": "sha256:abc"})
    gone = serving(3, status="failed")
    _, _, play = settle(running(config, worker, gone, applied_config=digest_of({}), users_version=before), decide)
    assert play is not None and play.playbook == "deploy"
    assert [one.id for one in play.members[1:]] == [worker.id]
    assert play.terms["keep_drains"] is True
    settings = {"slurm": {"MaxJobCount": 5000}}
    _, _, play = settle(running(settings, worker, applied_config=digest_of({}), users_version=before), decide)
    assert play is not None and len(play.members) == 1


def test_workers_get_the_users_that_are_declared_now_and_keep_their_drains() -> None:
    config = {"users": [{"name": "ada", "uid": 2001}]}
    knows, lacks = desired_config.users(instance(config=config)), desired_config.users(instance())
    late = serving(2, adapter_detail={"users_version": lacks, "config_version": "sha256:abc"})
    level = serving(3, adapter_detail={"users_version": knows, "config_version": "sha256:abc"})
    now = running(config, late, level, applied_config=digest_of(config), users_version=knows)
    nodes = {"w2": node(), "w3": node()}
    now, _, play = settle(now.later(snapshot=snapshot(nodes)), decide)
    assert play is not None and play.playbook == "add_worker"
    assert ([one.id for one in play.members[1:]], play.terms) == ([late.id], {"keep_drains": True})
    outcomes = {late.id: Outcome("serving", {"users_version": knows, "config_version": "sha256:abc"})}
    now, _, again = settle(after(now, play, outcomes, snapshot(nodes)), decide)
    assert next(one for one in now.members if one.id == late.id).adapter_detail["users_version"] == knows
    assert again is None


class QuietPlatform:
    """A platform without open operations, which counts what is read of it."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def now(self) -> datetime:
        return datetime.now(UTC)

    def __getattr__(self, name: str) -> Any:
        def answer(*_: object, **__: object) -> Listing[Any]:
            self.read.append(name)
            return Listing()

        return answer


@pytest.mark.parametrize(("config", "unchanged"), [({}, True), (CONFIG, False)])
def test_a_tick_without_work_notices_a_changed_config_without_reading_more(
    config: dict[str, Any], unchanged: bool
) -> None:
    now = running(config)
    status_detail = {**(now.instance.status_detail or {}), "observed_at": stamp(datetime.now(UTC))}
    platform: Any = QuietPlatform()
    mine: Any = {"base_url": "http://127.0.0.1:1", "project_id": now.instance.project_id}
    seen = observe(
        platform,
        now.instance.model_copy(update={"status_detail": status_detail}),
        Settings(**mine),
        SLURM,
        read_entitlements=platform.entitlements,
    )
    assert seen.complete is not unchanged
    assert ("members" in platform.read) is not unchanged


def test_the_instance_shows_the_configuration_of_no_deleted_controller() -> None:
    gone = controller(id=UUID(int=9), status="deleted", adapter_detail={"applied_config": "sha256:old"})
    present = controller(status="ready", adapter_detail={"applied_config": "sha256:new"})
    for members, shown in (((gone, present), "sha256:new"), ((gone,), None)):
        assert detail.of_instance(instance(), None, members, [], NOW)["config_digest"] == shown
