"""upgrade and rollback: what is left to do is read from what is; they end with the hosts' own reports."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from runner.model.plan import AdapterError, Finish, Play, Refuse, SetInstance
from runner.model.platform import Member, Operation
from runner.model.world import Outcome, World
from runner.slurm import desired_config
from runner.slurm.decide import decide
from tests.unit.lifecycle import serving
from tests.unit.test_desired_config import CONFIG, digest_of, live, refused, running, the_controller
from tests.unit.worlds import NOW, UNREACHABLE, after, claimed_by_us, node, of_kind, settle, snapshot

SERVING = {"w2": node(), "w3": node()}


def asked(verb: str, **parameters: Any) -> Operation:
    return claimed_by_us(
        Operation(
            id=uuid4(),
            operation=verb,
            parameters=parameters,
            status="accepted",
            correlation_id="corr-3",
            created_at=NOW,
            of_instance=True,
        )
    )


def a_cluster(operation: Operation, config: dict[str, Any] | None = None, **recorded: Any) -> World:
    workers = (serving(2), serving(3))
    return running(config or {}, *workers, package_version="24.11.5-4", **recorded).later(
        instance_operations=(operation,)
    )


def moved(play: Play, verb: str = "upgraded", **more: Any) -> dict[UUID, Outcome]:
    reported = {"package_version": "24.11.5-5", verb: {"from": "24.11.5-4", "to": "24.11.5-5"}, **more}
    first, *others = play.members
    return {first.id: Outcome("serving", reported)} | {
        one.id: Outcome("serving", {"package_version": "24.11.5-5"}) for one in others
    }


def the(now: World, member: Member) -> Member:
    return next(one for one in now.members if one.id == member.id)


def test_an_upgrade_moves_all_hosts_in_one_run_and_reports_the_version_of_each() -> None:
    operation = asked("upgrade", slurm_version="24.11")
    now, _, play = settle(a_cluster(operation), decide)
    assert play is not None and play.playbook == "upgrade"
    assert [one.component_key for one in play.members] == ["controller", "worker", "worker"]
    assert play.terms == {
        "slurm_version": "24.11",
        "slurm_accept_no_way_back": False,
        "slurm_change": str(operation.id),
        "slurm_conversion_round": 45,
        "slurm_conversion_idle": 900,
        "slurm_conversion_limit": 604800,
    }
    now, steps, again = settle(after(now, play, moved(play), snapshot(SERVING)), decide)
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "succeeded"
    assert (finish.result["from"], finish.result["to"]) == ("24.11.5-4", "24.11.5-5")
    assert {the(now, one).adapter_detail["package_version"] for one in play.members[1:]} == {"24.11.5-5"}
    assert again is None


def test_a_run_that_was_cut_off_is_taken_up_by_the_next_tick() -> None:
    operation = asked("upgrade")
    now, _, play = settle(a_cluster(operation), decide)
    assert play
    now, steps, again = settle(after(now, play, {}, None), decide)
    assert (of_kind(steps, Finish), again) == ([], None)
    later = now.later(played=frozenset(), outcomes={}, snapshot=None)
    _, _, again = settle(later, decide)
    assert again is not None and again.playbook == "upgrade"


def test_what_the_hosts_refuse_or_take_back_ends_it_with_their_message() -> None:
    operation = asked("upgrade", slurm_version="25.05")
    now, _, play = settle(a_cluster(operation), decide)
    assert play
    error = AdapterError("version_outside_window", "Nothing was touched: Slurm 24.11 cannot become 25.05")
    now, steps, _ = settle(after(now, play, {play.members[0].id: Outcome(error=error)}, None), decide)
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "failed"
    assert finish.error == {"code": error.code, "message": error.message}
    assert now.instance.status_detail is not None and now.instance.status_detail["lifecycle"]["result"] == "failed"


def test_a_host_that_is_away_is_tried_a_few_times_and_each_try_counts_once() -> None:
    operation = asked("upgrade")
    now = a_cluster(operation)
    away = Outcome(error=UNREACHABLE)
    ends: list[Finish] = []
    plays = 0
    for minute in range(6):
        tick = now.later(now=NOW + timedelta(minutes=minute), played=frozenset(), outcomes={}, snapshot=None)
        now, steps, play = settle(tick, decide)
        if not now.instance_operations:
            break
        assert play is not None and play.playbook == "upgrade"
        plays += 1
        now, steps, _ = settle(after(now, play, {play.members[0].id: away}, None), decide)
        ends += of_kind(steps, Finish)
    assert (plays, [one.status for one in ends]) == (3, ["failed"])


def test_a_controller_not_serving_after_its_move_is_retried_then_named() -> None:
    now, _, play = settle(a_cluster(asked("upgrade")), decide)
    steps: list[Any] = []
    for later in range(10):
        assert play is not None, "it is tried again"
        down = after(now, play, moved(play), snapshot(SERVING, slurmdbd="failed"))
        now, more, play = settle(down, decide)
        steps += more
        if of_kind(steps, Finish):
            break
        now, more, play = settle(
            now.later(now=NOW + timedelta(minutes=later + 1), played=frozenset(), outcomes={}), decide
        )
        steps += more
    (finish,) = of_kind(steps, Finish)
    assert finish.status == "failed" and finish.error["code"] == "slurmdbd_not_active"


def test_workers_that_did_not_move_fail_the_upgrade_and_the_others_are_counted() -> None:
    operation = asked("upgrade")
    now, _, play = settle(a_cluster(operation), decide)
    assert play
    lost, kept = play.members[1:]
    reported = moved(play) | {lost.id: Outcome(error=AdapterError("upgrade_taken_back", "slurmd did not come up"))}
    now, steps, _ = settle(after(now, play, reported, snapshot(SERVING)), decide)
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error["code"]) == ("failed", "partly_failed")
    assert finish.result["workers"] == {"moved": 1, "failed": [str(lost.id)], "failed_count": 1}
    assert the(now, kept).adapter_detail["package_version"] == "24.11.5-5"


def test_a_changed_config_comes_first_and_its_refusal_ends_the_upgrade() -> None:
    operation = asked("upgrade")
    now, _, play = settle(a_cluster(operation, CONFIG), decide)
    assert play is not None and play.playbook == "deploy"
    assert play.terms == {"slurm_change": str(operation.id)}
    now, steps, _ = settle(after(now, play, {play.members[0].id: refused()}, None), decide)
    (finish,) = of_kind(steps, Finish)
    assert finish.error["code"] == "config_refused"
    assert "failed to initialize priority plugin" in finish.error["message"]


def test_a_changed_config_that_goes_live_is_followed_by_the_packages() -> None:
    operation = asked("upgrade")
    now, _, play = settle(a_cluster(operation, CONFIG), decide)
    assert play is not None and play.playbook == "deploy"
    now, _, play = settle(after(now, play, {play.members[0].id: live(now)}, snapshot(SERVING)), decide)
    assert play is not None and play.playbook == "upgrade"
    assert desired_config.live(the_controller(now)) == digest_of(CONFIG)


def test_an_upgrade_tries_a_refused_config_once_more_and_only_once() -> None:
    operation = asked("upgrade")
    refusal = {"digest": digest_of(CONFIG), "code": "config_refused", "message": "before"}
    now, _, play = settle(a_cluster(operation, CONFIG, config_refused=refusal), decide)
    assert play is not None and play.playbook == "deploy"
    _, steps, _ = settle(after(now, play, {play.members[0].id: refused()}, None), decide)
    assert len(of_kind(steps, Finish)) == 1


def converting(seconds: int) -> Outcome:
    progress = {"since": "2026-01-01T00:00:00Z", "seconds": seconds, "last_line": "Dropping old tables"}
    error = AdapterError("conversion_running", "slurmdbd converts its database", "retryable")
    return Outcome("converting database", {"conversion": progress}, error)


def test_a_conversion_is_waited_for_tick_after_tick_and_counts_as_no_attempt() -> None:
    operation = asked("upgrade", slurm_version="25.05")
    now = a_cluster(operation)
    for minute in range(1, 11):
        tick = now.later(now=NOW + timedelta(minutes=minute), played=frozenset(), outcomes={}, snapshot=None)
        now, _, play = settle(tick, decide)
        assert play is not None and play.playbook == "upgrade"
        now, steps, again = settle(after(now, play, {play.members[0].id: converting(60 * minute)}, None), decide)
        assert (of_kind(steps, Finish), again) == ([], None)
        note = (now.instance.status_detail or {})["lifecycle"]
        assert (note["phase"], note["conversion"]["seconds"]) == ("converting database", 60 * minute)
        assert note["attempts"] == {"count": 0}
        assert the_controller(now).adapter_detail["conversion"]["seconds"] == 60 * minute
        assert now.instance.health == "progressing"
    tick = now.later(now=NOW + timedelta(hours=1), played=frozenset(), outcomes={}, snapshot=None)
    now, _, play = settle(tick, decide)
    assert play is not None
    now, steps, _ = settle(after(now, play, moved(play), snapshot(SERVING)), decide)
    assert of_kind(steps, Finish)[0].status == "succeeded"
    assert the_controller(now).adapter_detail["conversion"] is None


def test_a_conversion_without_progress_is_tried_a_bounded_number_of_times() -> None:
    now = a_cluster(asked("upgrade", slurm_version="25.05"))
    ended = []
    for minute in range(1, now.policy.max_attempts + 1):
        tick = now.later(now=NOW + timedelta(minutes=minute), played=frozenset(), outcomes={}, snapshot=None)
        now, _, play = settle(tick, decide)
        assert play is not None
        bare = replace(converting(60), detail={})
        now, steps, _ = settle(after(now, play, {play.members[0].id: bare}, None), decide)
        ended += of_kind(steps, Finish)
    assert [finish.status for finish in ended] == ["failed"]


def test_an_upgrade_that_stays_unfinished_ends_with_the_way_back_in_its_error() -> None:
    operation = asked("upgrade", slurm_version="25.05")
    now, _, play = settle(a_cluster(operation, conversion={"seconds": 60}), decide)
    assert play
    error = AdapterError("upgrade_unfinished", "Slurm is on its way ... -e backup=op-1", "intervention")
    now, steps, _ = settle(after(now, play, {play.members[0].id: Outcome(error=error)}, None), decide)
    (finish,) = of_kind(steps, Finish)
    assert (finish.status, finish.error) == ("failed", {"code": error.code, "message": error.message})
    assert the_controller(now).adapter_detail["conversion"] is None


def test_an_upgrade_cancelled_while_it_converts_leaves_no_progress_behind() -> None:
    operation = asked("upgrade", slurm_version="25.05")
    now, _, play = settle(a_cluster(operation), decide)
    assert play
    now, _, _ = settle(after(now, play, {play.members[0].id: converting(60)}, None), decide)
    cancelled = now.later(instance_operations=(), played=frozenset(), outcomes={}, snapshot=None)
    now, _, _ = settle(cancelled, decide)
    assert the_controller(now).adapter_detail["conversion"] is None
    assert (now.instance.status_detail or {})["lifecycle"]["result"] == "cancelled"


@pytest.mark.parametrize(
    ("verb", "parameters", "code"),
    [
        ("upgrade", {"slurm_version": "24.11; reboot"}, "version_invalid"),
        ("upgrade", {"slurm_version": 24.11}, "version_invalid"),
        ("upgrade", {"slurm_version": "{{ x }}"}, "version_invalid"),
        ("upgrade", {"fast": True}, "parameters_invalid"),
        ("upgrade", {"accept_no_way_back": "yes"}, "parameters_invalid"),
        ("rollback", {"to": "24.11"}, "parameters_invalid"),
    ],
)
def test_parameters_that_cannot_be_used_are_refused(verb: str, parameters: dict[str, Any], code: str) -> None:
    _, steps, play = settle(a_cluster(asked(verb, **parameters)), decide)
    (refusal,) = of_kind(steps, Refuse)
    assert (refusal.code, play) == (code, None)


def test_a_rollback_keeps_the_desired_config_from_coming_back_until_it_changes() -> None:
    operation = asked("rollback")
    start = a_cluster(operation, CONFIG, applied_config=digest_of(CONFIG))
    now, _, play = settle(start, decide)
    assert play is not None and play.playbook == "rollback"
    reported = moved(play, "returned", applied_config=digest_of({}))
    now, steps, again = settle(after(now, play, reported, snapshot(SERVING)), decide)
    assert of_kind(steps, Finish)[0].status == "succeeded"
    assert again is None
    member = the_controller(now)
    noted = desired_config.refused(member)
    assert noted and (desired_config.live(member), noted.code) == (digest_of({}), "config_rolled_back")
    assert of_kind(steps, SetInstance)[-1].health == "degraded"
    later = now.later(played=frozenset(), outcomes={}, snapshot=None)
    assert settle(later, decide)[2] is None


def test_a_rollback_of_packages_alone_leaves_no_note_about_the_config() -> None:
    operation = asked("rollback")
    now, _, play = settle(a_cluster(operation), decide)
    assert play
    now, _, _ = settle(
        after(now, play, moved(play, "returned", applied_config=digest_of({})), snapshot(SERVING)), decide
    )
    assert desired_config.refused(the_controller(now)) is None
