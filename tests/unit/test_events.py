"""Which events a plan puts on an instance's timeline: one for each thing that happens, with who asked for it."""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from runner.model import events
from runner.model.cause import of_step
from runner.model.errors import Conflict, Forbidden, NotFound, PlatformError, Rejected, Unavailable
from runner.model.plan import AdapterError, Announce, Finish, SetInstance, Step
from runner.model.platform import Operation
from runner.model.world import Policy, World
from runner.report.reporter import Reporter
from runner.settings import Settings
from runner.slurm.app import SLURM
from runner.slurm.decide import decide
from tests.unit.drifting import a_cluster
from tests.unit.lifecycle import ask, ask_whole, asked_of, between, both_ready, cluster, tick, two_workers, when_stopped
from tests.unit.test_desired_config import CONFIG, digest_of, live, played, running
from tests.unit.worlds import instance, of_kind, settle, world

ALL = Policy(assumed_events=events.ASSUMED)


def names(steps: Sequence[Step]) -> list[str]:
    return [one.kind.removeprefix(events.PREFIX) for one in of_kind(steps, Announce)]


def the_event(steps: Sequence[Step]) -> Announce:
    (one,) = of_kind(steps, Announce)
    return cast(Announce, one)


def whole(verb: str, now: World, *, seconds: int = 60, policy: Policy = ALL) -> tuple[World, list[Step], Operation]:
    operation = ask_whole(verb)
    after, steps, _ = tick(asked_of(now, operation).later(policy=policy), two_workers(), seconds=seconds)
    return after, steps, operation


def test_each_start_and_each_stop_is_an_event_of_its_own() -> None:
    slurm, now, seen = two_workers(), cluster(*both_ready()).later(policy=ALL), list[Announce]()
    for age, verb in enumerate(("stop", "start", "stop", "start")):
        now, steps, _ = tick(asked_of(now, ask_whole(verb, age=age)), slurm)
        seen.append(the_event(steps))
    assert [one.kind for one in seen] == ["apps.instance.stopped", "apps.instance.running"] * 2
    assert len({(one.kind, one.cause) for one in seen}) == 4


@pytest.mark.parametrize(
    ("verb", "name"),
    [("stop", "stopped"), ("restart", "running"), ("upgrade", "upgraded"), ("rotate_credentials", "changed")],
)
def test_an_event_of_an_operation_has_its_id_its_verb_and_its_correlation(verb: str, name: str) -> None:
    now = cluster(*both_ready())
    _, steps, operation = whole(verb, now)
    event = the_event(steps)
    assert event.kind == f"apps.instance.{name}"
    assert (event.data["operation_id"], event.data["verb"]) == (str(operation.id), verb)
    assert of_step(event, now).correlation_id == operation.correlation_id
    assert event.cause == str(operation.id)
    assert event.data["app_instance_id"] == str(now.instance.id) and event.data["org_id"]


def test_an_upgrade_names_both_versions() -> None:
    _, steps, _ = whole("upgrade", cluster(*both_ready()))
    (finish,) = of_kind(steps, Finish)
    event = the_event(steps)
    assert event.data["from"] == finish.result["from"] and event.data["to"] == finish.result["to"]
    assert event.data["from"] != event.data["to"]


def test_a_failed_operation_is_an_event_with_its_code_and_not_a_failed_instance() -> None:
    operation = ask("add", allocations=(5,), parameters={"made_up": 1})
    _, steps, _ = tick(cluster(*both_ready(), operations=(operation,)).later(policy=ALL), two_workers())
    event = the_event(steps)
    assert (event.kind, event.cause) == ("apps.instance.operation_failed", str(operation.id))
    assert (event.data["verb"], event.data["error_code"]) == ("add", "parameters_invalid")


def test_a_deploy_that_fails_names_its_code_and_a_retry_that_fails_is_a_second_event() -> None:
    slurm = two_workers()
    slurm.ctl_error = AdapterError("disk_full", "no space is left")
    now, steps, _ = tick(world(operations=(ask("add", allocations=(2, 3)),)), slurm)
    first = the_event(steps)
    assert (first.kind, first.cause, first.data["error_code"]) == ("apps.instance.failed", "deploy", "disk_full")
    retry = ask_whole("retry")
    _, steps, _ = tick(asked_of(now, retry), slurm)
    again = the_event(steps)
    assert (again.kind, again.cause) == ("apps.instance.failed", str(retry.id))


def test_an_event_comes_directly_before_the_report_of_the_same_fact() -> None:
    _, steps, _ = whole("stop", cluster(*both_ready()))
    at = steps.index(the_event(steps))
    report = steps[at + 1]
    assert isinstance(report, SetInstance) and report.status == "stopped"


def test_a_report_that_is_written_plans_no_event_again() -> None:
    now, steps, _ = whole("stop", cluster(*both_ready()))
    assert names(steps) == ["stopped"]
    _, steps, _ = tick(now, two_workers())
    assert names(steps) == []


def changed(now: World, config: dict[str, Any]) -> tuple[World, list[Step]]:
    wanted = now.instance.model_copy(update={"config": config})
    now, _, play = settle(now.later(instance=wanted, policy=ALL), decide)
    assert play
    now, steps, _ = settle(played(now, play, live(now)), decide)
    return between(now), steps


def test_each_configuration_that_goes_live_is_an_event_also_when_it_comes_again() -> None:
    own = {"cluster_name": "gs0"}  # as the snapshot has it
    now, seen = running(own, applied_config=digest_of(own), **own), list[Announce]()
    for config in (CONFIG | own, own, CONFIG | own):
        now, steps = changed(now, config)
        seen.append(the_event(steps))
    assert {one.kind for one in seen} == {"apps.instance.changed"}
    assert len({one.cause for one in seen}) == 3
    first, back, again = (one.data for one in seen)
    assert (first["config_from"], first["config_to"]) == (back["config_to"], back["config_from"])
    assert (again["config_from"], again["config_to"]) == (first["config_from"], first["config_to"])


def test_a_configuration_that_a_killed_run_made_live_has_the_key_of_its_trial() -> None:
    wanted = running({}).later(policy=ALL)
    wanted = wanted.later(instance=wanted.instance.model_copy(update={"config": CONFIG}))
    begun, _, play = settle(wanted, decide)
    assert play
    causes = set()
    for minute in (10, 20):  # the runner of the first was killed before it wrote anything
        now = played(begun, play, live(begun))
        _, steps, _ = settle(now.later(now=now.now.replace(minute=minute)), decide)
        causes.add(the_event(steps).cause)
    assert len(causes) == 1


def test_what_one_tick_saw_and_repaired_is_an_event_that_names_the_drift() -> None:
    slurm, _, now = a_cluster(stopped={"munge"})
    now, steps, _ = tick(now.later(policy=ALL), slurm)
    event = the_event(steps)
    assert (event.kind, event.data["reason_codes"]) == ("apps.instance.healed", ["munge_not_active"])
    slurm.stopped = {"slurmctld"}
    _, steps, _ = tick(now.later(now=now.now.replace(hour=now.now.hour + 1)), slurm, seconds=7200)
    assert the_event(steps).cause != event.cause


def test_a_healed_cluster_is_one_event_with_the_time_since_when_it_was_not_healthy() -> None:
    slurm, _, now = a_cluster(dead={"w2"}, held_down={"w2"})
    now, steps, _ = tick(now.later(policy=ALL), slurm, seconds=3600)
    since = (now.instance.status_detail or {})["not_healthy_since"]
    assert (now.instance.health, names(steps)) == ("degraded", [])
    now, steps, _ = tick(now, slurm, seconds=3600)
    assert (now.instance.status_detail or {})["not_healthy_since"] == since and names(steps) == []
    slurm.dead, slurm.held_down = set(), set()
    now, steps, _ = tick(now, slurm, seconds=3600)
    event = the_event(steps)
    assert (event.kind, event.data["since"]) == ("apps.instance.healed", since)
    assert event.cause == f"healed/{since}"
    assert "not_healthy_since" not in (now.instance.status_detail or {})
    assert names(tick(now, slurm)[1]) == []


def test_a_stop_ends_the_count_of_a_cluster_that_is_not_healthy() -> None:
    now = cluster(*both_ready())
    detail = (now.instance.status_detail or {}) | {"not_healthy_since": "2026-01-02T03:00:00Z"}
    now = now.later(instance=now.instance.model_copy(update={"status_detail": detail, "health": "degraded"}))
    now, steps, _ = whole("stop", now)
    assert names(steps) == ["stopped"]
    assert now.instance.status == "stopped" and "not_healthy_since" not in (now.instance.status_detail or {})


# -- types that are assumed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["stop", "upgrade", "rotate_credentials"])
def test_an_assumed_type_is_off_unless_it_is_named(verb: str) -> None:
    assert names(whole(verb, cluster(*both_ready()), policy=Policy())[1]) == []
    only = Policy(assumed_events=events.read_assumed("apps.instance.stopped"))
    assert names(whole(verb, cluster(*both_ready()), policy=only)[1]) == (["stopped"] if verb == "stop" else [])


def test_a_start_is_announced_without_a_setting_since_its_type_is_stated() -> None:
    now = when_stopped(two_workers(), *both_ready())
    assert names(whole("start", now, policy=Policy())[1]) == ["running"]


@pytest.mark.parametrize("text", ["", "apps.instance.made_up", "stopped", "all,apps.instance.stopped"])
def test_a_type_that_this_version_does_not_have_is_refused_as_a_setting(text: str) -> None:
    with pytest.raises(ValueError, match="must be none, all or some of"):
        events.read_assumed(text)


# -- what the platform answers -------------------------------------------------------------------------------

EVENT = Announce("it is running", events.RUNNING, "deploy", {"a": 1})


class Events:
    """A platform that answers an event in this way."""

    def __init__(self, answer: PlatformError | None) -> None:
        self.answer, self.keys = answer, list[str]()

    def post_event(self, _instance: Any, _kind: str, _data: Any, *, key: str) -> None:
        self.keys.append(key)
        if self.answer:
            raise self.answer


def post(answer: PlatformError | None, event: Announce = EVENT) -> tuple[Events, list[Any]]:
    client, now = Events(answer), world(instance=instance())
    own: Any = {"base_url": "http://127.0.0.1:1", "project_id": now.instance.project_id}
    with capture_logs() as lines:
        Reporter(cast(Any, client), Settings(**own), now, SLURM).apply(event, now)
    return client, [line for line in lines if line["log_level"] == "warning"]


@pytest.mark.parametrize("kind", [Rejected, Forbidden, NotFound])
def test_an_event_that_the_platform_refuses_is_a_warning_and_the_tick_goes_on(kind: type[PlatformError]) -> None:
    _, (line,) = post(kind("no such type", code="validation_error", status=422))
    assert line["event"] == "event refused by the platform"
    assert (line["event_type"], line["error_code"]) == (events.RUNNING, "validation_error")


def test_an_event_that_cannot_be_sent_now_is_sent_by_the_next_tick() -> None:
    with pytest.raises(Unavailable):
        post(Unavailable("away"))
    with pytest.raises(Conflict):
        post(Conflict("changed", code="precondition_failed", status=412))
    assert post(Conflict("other data", code="idempotency_conflict", status=409))[1] == []


def test_an_event_has_the_same_key_in_any_process_and_another_for_another_cause() -> None:
    again = Announce("another sentence", EVENT.kind, EVENT.cause, {"b": 2})
    other = Announce(EVENT.why, EVENT.kind, "another request", EVENT.data)
    keys = [post(None, one)[0].keys[0] for one in (EVENT, again, other)]
    assert keys[0] == keys[1] != keys[2]
