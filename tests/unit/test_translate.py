"""translate on recorded runs of both systems, and on events that no good run has."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from runner.model.host_data import MESSAGE_BYTES
from runner.model.plan import AdapterError
from runner.slurm.member_reports import MemberReports
from runner.translate import MemberEvent, RunResult, add_event, parse_event, translate, without_secret

FIXTURES = Path(__file__).parent / "fixtures" / "events"
CONTROLLER_PHASES = ["preflight", "munge", "accounting", "controller", "baseline", "serving"]
WORKER_PHASES = ["preflight", "munge", "joining", "registering", "serving"]
WORKER, CONTROLLER = UUID(int=5), UUID(int=6)
MEMBERS = {"worker-1": MemberReports(WORKER, "worker"), "controller-1": MemberReports(CONTROLLER, "controller")}

Event = dict[str, Any]

suites = pytest.mark.parametrize("suite", ["bookworm", "trixie"])


def recorded(suite: str, name: str) -> tuple[list[Event], dict[str, MemberReports]]:
    first, *rest = (FIXTURES / suite / f"{name}.jsonl").read_text().splitlines()
    members = json.loads(first)["members"]
    return [json.loads(line) for line in rest], {
        k: MemberReports(UUID(v), k.partition("-")[0]) for k, v in members.items()
    }


def phases(events: list[Event], members: Mapping[str, MemberReports], member_id: UUID) -> list[str]:
    """In the order in which they were heard, without repetitions."""
    heard = [found for event in events if isinstance(found := parse_event(event, members), MemberEvent)]
    return list(dict.fromkeys(one.phase for one in heard if one.member_id == member_id and one.phase))


def event(kind: str, host: str = "worker-1", **data: Any) -> Event:
    return {"event": kind, "event_data": {"host": host, "task": "Do it", **data}}


def reported(host: str = "worker-1", **said: Any) -> Event:
    return event("runner_on_ok", host, task_action="member_report", res={"member_report": said})


@suites
def test_a_recorded_deploy_ends_with_every_member_serving_and_no_error(suite: str) -> None:
    events, members = recorded(suite, "deploy")
    story = translate(events, members)
    assert set(story.outcomes) == {one.id for one in members.values()}
    assert {outcome.phase for outcome in story.outcomes.values()} == {"serving"}
    assert {outcome.error for outcome in story.outcomes.values()} == {None}
    assert not story.nothing_matched


@suites
def test_the_phases_of_a_recorded_deploy_are_heard_in_order(suite: str) -> None:
    events, members = recorded(suite, "deploy")
    for name, member in members.items():
        wanted = CONTROLLER_PHASES if name.startswith("controller") else WORKER_PHASES
        assert phases(events, members, member.id) == wanted


@suites
def test_a_recorded_deploy_brings_a_snapshot_that_shows_its_worker(suite: str) -> None:
    events, members = recorded(suite, "deploy")
    story = translate(events, members)
    assert story.snapshot is not None
    assert story.snapshot.controller.ping == "UP"
    assert story.snapshot.nodes is not None
    workers = [one.id for name, one in members.items() if name.startswith("worker")]
    hostnames = {story.outcomes[one].detail["worker_hostname"] for one in workers}
    assert hostnames == set(story.snapshot.nodes)


@suites
def test_details_of_a_recorded_deploy_are_the_fields_of_the_design(suite: str) -> None:
    events, members = recorded(suite, "deploy")
    story = translate(events, members)
    for name, member in members.items():
        known = story.outcomes[member.id].detail
        if name.startswith("controller"):
            wanted = {"controller_hostname", "slurmctld_state", "config_version", "cluster_name", "slurm_version"}
        else:
            wanted = {"worker_hostname", "slurmd_state", "registered_in_controller", "config_version", "slurm_version"}
            assert isinstance(known["cpus"], int)
            assert isinstance(known["memory_mb"], int)
            assert isinstance(known["gpus"], int)
        assert wanted <= set(known)


@suites
def test_a_recorded_run_in_which_apt_fails_on_one_worker_blames_that_one_alone(suite: str) -> None:
    events, members = recorded(suite, "apt_fails")
    story = translate(events, members)
    failed = {member_id for member_id, outcome in story.outcomes.items() if outcome.error}
    assert len(failed) == 1
    outcome = story.outcomes[failed.pop()]
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.klass) == ("package_install_failed", "retryable")
    assert outcome.error.host in members
    assert outcome.error.task
    others = [one for one in story.outcomes.values() if one is not outcome]
    assert {one.phase for one in others} == {"serving"}
    assert story.snapshot is not None


@suites
def test_a_recorded_run_with_a_dead_host_says_unreachable_and_may_be_tried_again(suite: str) -> None:
    events, members = recorded(suite, "unreachable")
    story = translate(events, members)
    (outcome,) = (one for one in story.outcomes.values() if one.error)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.klass) == ("host_unreachable", "retryable")
    assert "No route to host" in outcome.error.message or "timed out" in outcome.error.message


@suites
def test_a_recorded_run_that_matched_no_host_says_so_and_nothing_of_anybody(suite: str) -> None:
    events, members = recorded(suite, "no_host_matched")
    story = translate(events, members)
    assert story.nothing_matched
    assert story.outcomes == {}
    assert story.snapshot is None


@suites
@pytest.mark.parametrize("name", ["deploy", "apt_fails", "unreachable"])
def test_a_recorded_run_means_the_same_heard_one_by_one_and_nothing_without_its_members(suite: str, name: str) -> None:
    events, members = recorded(suite, name)
    story = RunResult()
    for one in events:
        story = add_event(story, parse_event(one, members))
    assert story == translate(events, members)
    assert translate(events, {}).outcomes == {}


def test_no_recording_holds_what_translate_must_not_read() -> None:
    for path in FIXTURES.glob("*/*.jsonl"):
        text = path.read_text()
        assert "stdout" not in text
        assert "PRIVATE KEY" not in text
        assert '"invocation"' not in text


def test_a_host_key_that_is_not_the_pinned_one_is_not_tried_again() -> None:
    told = {"msg": "Make sure this host can be reached over ssh: Host key verification failed.", "unreachable": True}
    heard = parse_event(event("runner_on_unreachable", res=told), MEMBERS)
    assert isinstance(heard, MemberEvent)
    assert heard.error is not None
    assert (heard.error.code, heard.error.klass) == ("host_key_mismatch", "intervention")


@pytest.mark.parametrize(
    "result",
    [
        {"msg": "Missing sudo password"},
        {"msg": "MODULE FAILURE", "module_stderr": "Sorry, user ops is not allowed to execute '/bin/sh' as root.\n"},
        {"msg": "MODULE FAILURE", "module_stderr": "sudo: a password is required\n"},
    ],
)
def test_a_login_user_that_sudo_refuses_is_told_which_rule_is_missing(result: Any) -> None:
    heard = parse_event(event("runner_on_failed", res=result), MEMBERS)
    assert isinstance(heard, MemberEvent) and heard.error
    assert (heard.error.code, heard.error.klass) == ("not_root", "intervention")
    assert "deploy/sudoers.d/gpuaas-slurm" in heard.error.message


def test_an_ignored_error_is_no_error() -> None:
    assert parse_event(event("runner_on_failed", ignore_errors=True, res={"msg": "no"}), MEMBERS) is None


def test_a_failure_with_a_hidden_result_says_that_it_is_hidden() -> None:
    heard = parse_event(event("runner_on_failed", res={"censored": "the output has been hidden"}), MEMBERS)
    assert isinstance(heard, MemberEvent)
    assert heard.error is not None
    assert heard.error.code == "task_failed"
    assert "withheld" in heard.error.message


def test_an_error_of_a_class_we_do_not_know_needs_a_person() -> None:
    given = {"code": "odd", "message": "strange", "class": "whatever"}
    heard = parse_event(event("runner_on_failed", res={"adapter_error": given}), MEMBERS)
    assert isinstance(heard, MemberEvent)
    assert heard.error is not None
    assert (heard.error.code, heard.error.klass) == ("odd", "intervention")


@pytest.mark.parametrize("result", [None, "text", 7, ["a"], {"member_report": "text"}, {"member_report": ["a"]}])
def test_a_result_that_is_not_what_was_agreed_on_is_silence_when_it_went_well(result: Any) -> None:
    assert parse_event(event("runner_on_ok", res=result), MEMBERS) is None


@pytest.mark.parametrize("result", [None, "text", {"adapter_error": "text"}, {"adapter_error": {"message": "no code"}}])
def test_a_result_that_is_not_what_was_agreed_on_is_still_a_failure(result: Any) -> None:
    heard = parse_event(event("runner_on_failed", res=result), MEMBERS)
    assert isinstance(heard, MemberEvent)
    assert heard.error is not None
    assert (heard.error.code, heard.error.klass) == ("task_failed", "intervention")


@pytest.mark.parametrize("kind", ["runner_on_ok", "runner_on_failed", "runner_on_unreachable"])
def test_an_event_of_a_host_that_is_nobodys_member_means_nothing(kind: str) -> None:
    assert parse_event(event(kind, host="stranger", res={"member_report": {"phase": "serving"}}), MEMBERS) is None


@pytest.mark.parametrize("broken", [{}, {"event": "runner_on_ok"}, {"event": "runner_on_ok", "event_data": None}])
def test_an_event_without_content_means_nothing(broken: Event) -> None:
    assert parse_event(broken, MEMBERS) is None


def test_task_names_and_output_decide_nothing() -> None:
    loud = event("runner_on_ok", res={"stdout": "FATAL error", "rc": 1}, task="everything failed")
    assert parse_event(loud, MEMBERS) is None


def test_the_first_error_of_a_member_stands() -> None:
    first = event("runner_on_failed", res={"adapter_error": {"code": "first", "message": "a", "class": "drift"}})
    second = event("runner_on_failed", res={"adapter_error": {"code": "second", "message": "b", "class": "drift"}})
    error = translate([first, second], MEMBERS).outcomes[WORKER].error
    assert error is not None
    assert error.code == "first"


def test_details_add_up_and_the_newest_phase_counts() -> None:
    story = translate(
        [reported(phase="munge", detail={"cpus": 1, "gpus": 1}), reported(phase="joining", detail={"gpus": 2})], MEMBERS
    )
    assert story.outcomes[WORKER].phase == "joining"
    assert story.outcomes[WORKER].detail == {"cpus": 1, "gpus": 2}


def test_a_snapshot_that_cannot_be_read_does_not_replace_one_that_could() -> None:
    good = {"observed_at": "2026-01-02T03:04:05Z", "controller": {"ping": "UP"}, "nodes": None}
    events = [reported("controller-1", phase="serving", snapshot=seen) for seen in (good, "junk")]
    story = translate(events, MEMBERS)
    assert story.snapshot is not None
    assert story.snapshot.nodes is None


def test_a_long_message_is_cut() -> None:
    heard = parse_event(event("runner_on_failed", res={"msg": "x" * 10_000}), MEMBERS)
    assert isinstance(heard, MemberEvent)
    assert heard.error is not None
    assert len(heard.error.message) < MESSAGE_BYTES + 200


@pytest.mark.parametrize(
    ("created", "skew"),
    [
        ("2026-01-02T03:04:05+00:00", 60.0),
        ("2026-01-02T05:04:05+02:00", 60.0),  # whatever zone the runner's machine is in
        ("2026-01-02T03:14:05+00:00", -540.0),
        ("2026-01-02T03:04:05", None),
        ("now", None),
        (None, None),
    ],
)
def test_the_controllers_clock_is_compared_with_ours_at_the_moment_its_snapshot_comes(
    created: str | None, skew: float | None
) -> None:
    snapshot = {"observed_at": "2026-01-02T03:05:05Z", "controller": {}}
    story = translate([{**reported("controller-1", phase="serving", snapshot=snapshot), "created": created}], MEMBERS)
    assert story.snapshot is not None
    assert story.snapshot.controller.clock_skew_seconds == skew


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"censored": "hidden"}, "vault_sealed"),
        ({"msg": "templating failed: runtime secret not available: vault_sealed: it is sealed"}, "vault_sealed"),
        ({"msg": "the disk is full"}, "task_failed"),
        ({"msg": "x", "adapter_error": {"code": "munge_failed", "message": "y"}}, "munge_failed"),
    ],
)
def test_a_task_that_wanted_a_secret_in_vain_says_why_it_could_not_be_had(result: Any, code: str) -> None:
    event = {"event": "runner_on_failed", "event_data": {"host": "w", "task": "t", "res": result}}
    story = translate([event], {"w": MemberReports(UUID(int=5), "worker")})
    told = without_secret(story, AdapterError("vault_sealed", "it is sealed", "retryable")).outcomes[UUID(int=5)].error
    assert told is not None and (told.code, told.host, told.task) == (code, "w", "t")
