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
from runner.translate import MemberEvent, RunResult, add_event, name_refused_secret, parse_event, translate

FIXTURES = Path(__file__).parent / "fixtures" / "events"
CONTROLLER_PHASES = ["preflight", "munge", "accounting", "controller", "baseline", "serving"]
WORKER_PHASES = ["preflight", "munge", "joining", "registering", "serving"]
WORKER, CONTROLLER = UUID(int=5), UUID(int=6)
MEMBERS = {"worker-1": MemberReports(WORKER, "worker"), "controller-1": MemberReports(CONTROLLER, "controller")}

Event = dict[str, Any]
EMPTY: tuple[Any, ...] = (None, "text", ["host"], {})

suites = pytest.mark.parametrize("suite", ["bookworm", "trixie"])


def recorded(suite: str, name: str) -> tuple[list[Event], dict[str, MemberReports]]:
    first, *rest = (FIXTURES / suite / f"{name}.jsonl").read_text().splitlines()
    members = json.loads(first)["members"]
    return [json.loads(line) for line in rest], {
        k: MemberReports(UUID(v), k.partition("-")[0]) for k, v in members.items()
    }


def phases(events: list[Event], members: Mapping[str, MemberReports], member_id: UUID) -> list[str]:
    """In the order of events, without repetitions."""
    parsed = [one for event in events if isinstance(one := parse_event(event, members), MemberEvent)]
    return list(dict.fromkeys(one.phase for one in parsed if one.member_id == member_id and one.phase))


def event(kind: str, host: str = "worker-1", **data: Any) -> Event:
    return {"event": kind, "event_data": {"host": host, "task": "Do it", **data}}


def reported(host: str = "worker-1", **report: Any) -> Event:
    return event("runner_on_ok", host, task_action="member_report", res={"member_report": report})


@suites
def test_a_recorded_deploy_ends_with_every_member_serving_and_no_error(suite: str) -> None:
    events, members = recorded(suite, "deploy")
    run = translate(events, members)
    assert set(run.outcomes) == {one.id for one in members.values()}
    assert {outcome.phase for outcome in run.outcomes.values()} == {"serving"}
    assert {outcome.error for outcome in run.outcomes.values()} == {None}
    assert not run.no_hosts_matched


@suites
def test_the_phases_of_a_recorded_deploy_are_in_order(suite: str) -> None:
    events, members = recorded(suite, "deploy")
    for name, member in members.items():
        wanted = CONTROLLER_PHASES if name.startswith("controller") else WORKER_PHASES
        assert phases(events, members, member.id) == wanted


@suites
def test_a_recorded_deploy_has_a_snapshot_with_its_worker(suite: str) -> None:
    events, members = recorded(suite, "deploy")
    run = translate(events, members)
    assert run.snapshot is not None
    assert run.snapshot.controller.ping == "UP"
    assert run.snapshot.nodes is not None
    workers = [one.id for name, one in members.items() if name.startswith("worker")]
    hostnames = {run.outcomes[one].detail["worker_hostname"] for one in workers}
    assert hostnames == set(run.snapshot.nodes)


@suites
def test_details_of_a_recorded_deploy_are_the_fields_of_the_design(suite: str) -> None:
    events, members = recorded(suite, "deploy")
    run = translate(events, members)
    for name, member in members.items():
        detail = run.outcomes[member.id].detail
        if name.startswith("controller"):
            wanted = {"controller_hostname", "slurmctld_state", "config_version", "cluster_name", "slurm_version"}
        else:
            wanted = {"worker_hostname", "slurmd_state", "registered_in_controller", "config_version", "slurm_version"}
            assert isinstance(detail["cpus"], int)
            assert isinstance(detail["memory_mb"], int)
            assert isinstance(detail["gpus"], int)
        assert wanted <= set(detail)


@suites
def test_a_recorded_run_with_an_apt_failure_fails_that_worker_only(suite: str) -> None:
    events, members = recorded(suite, "apt_fails")
    run = translate(events, members)
    failed = {member_id for member_id, outcome in run.outcomes.items() if outcome.error}
    assert len(failed) == 1
    outcome = run.outcomes[failed.pop()]
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.klass) == ("package_install_failed", "retryable")
    assert outcome.error.host in members
    assert outcome.error.task
    others = [one for one in run.outcomes.values() if one is not outcome]
    assert {one.phase for one in others} == {"serving"}
    assert run.snapshot is not None


@suites
def test_a_recorded_run_with_a_dead_host_is_unreachable_and_retryable(suite: str) -> None:
    events, members = recorded(suite, "unreachable")
    run = translate(events, members)
    (outcome,) = (one for one in run.outcomes.values() if one.error)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.klass) == ("host_unreachable", "retryable")
    assert "No route to host" in outcome.error.message or "timed out" in outcome.error.message


@suites
def test_a_recorded_run_that_matched_no_host_has_no_outcome(suite: str) -> None:
    events, members = recorded(suite, "no_host_matched")
    run = translate(events, members)
    assert run.no_hosts_matched
    assert run.outcomes == {}
    assert run.snapshot is None


@suites
@pytest.mark.parametrize("name", ["deploy", "apt_fails", "unreachable"])
def test_a_recorded_run_gives_the_same_result_event_by_event(suite: str, name: str) -> None:
    events, members = recorded(suite, name)
    run = RunResult()
    for one in events:
        run = add_event(run, parse_event(one, members))
    assert run == translate(events, members)
    assert translate(events, {}).outcomes == {}


def test_no_recording_contains_what_translate_must_not_read() -> None:
    for path in FIXTURES.glob("*/*.jsonl"):
        text = path.read_text()
        assert "stdout" not in text
        assert "PRIVATE KEY" not in text
        assert '"invocation"' not in text


def test_a_host_key_mismatch_is_not_retried() -> None:
    result = {"msg": "Make sure this host can be reached over ssh: Host key verification failed.", "unreachable": True}
    found = parse_event(event("runner_on_unreachable", res=result), MEMBERS)
    assert isinstance(found, MemberEvent)
    assert found.error is not None
    assert (found.error.code, found.error.klass) == ("host_key_mismatch", "intervention")


@pytest.mark.parametrize(
    "result",
    [
        {"msg": "Missing sudo password"},
        {"msg": "MODULE FAILURE", "module_stderr": "Sorry, user ops is not allowed to execute '/bin/sh' as root.\n"},
        {"msg": "MODULE FAILURE", "module_stderr": "sudo: a password is required\n"},
    ],
)
def test_a_refusal_of_sudo_names_the_missing_sudoers_file(result: Any) -> None:
    found = parse_event(event("runner_on_failed", res=result), MEMBERS)
    assert isinstance(found, MemberEvent) and found.error
    assert (found.error.code, found.error.klass) == ("not_root", "intervention")
    assert "deploy/sudoers.d/gpuaas-slurm" in found.error.message


def test_an_ignored_error_has_no_meaning() -> None:
    assert parse_event(event("runner_on_failed", ignore_errors=True, res={"msg": "no"}), MEMBERS) is None


def test_a_failure_with_a_hidden_result_states_that_output_is_withheld() -> None:
    found = parse_event(event("runner_on_failed", res={"censored": "the output has been hidden"}), MEMBERS)
    assert isinstance(found, MemberEvent)
    assert found.error is not None
    assert found.error.code == "task_failed"
    assert "withheld" in found.error.message


def test_an_error_of_an_unknown_class_needs_intervention() -> None:
    given = {"code": "odd", "message": "strange", "class": "whatever"}
    found = parse_event(event("runner_on_failed", res={"adapter_error": given}), MEMBERS)
    assert isinstance(found, MemberEvent)
    assert found.error is not None
    assert (found.error.code, found.error.klass) == ("odd", "intervention")


@pytest.mark.parametrize("result", [None, "text", 7, ["a"], {"member_report": "text"}, {"member_report": ["a"]}])
def test_a_malformed_result_of_a_successful_task_has_no_meaning(result: Any) -> None:
    assert parse_event(event("runner_on_ok", res=result), MEMBERS) is None


@pytest.mark.parametrize("result", [None, "text", {"adapter_error": "text"}, {"adapter_error": {"message": "no code"}}])
def test_a_malformed_result_of_a_failed_task_is_still_a_failure(result: Any) -> None:
    found = parse_event(event("runner_on_failed", res=result), MEMBERS)
    assert isinstance(found, MemberEvent)
    assert found.error is not None
    assert (found.error.code, found.error.klass) == ("task_failed", "intervention")


@pytest.mark.parametrize("kind", ["runner_on_ok", "runner_on_failed", "runner_on_unreachable"])
def test_an_event_of_an_unknown_host_has_no_meaning(kind: str) -> None:
    assert parse_event(event(kind, host="stranger", res={"member_report": {"phase": "serving"}}), MEMBERS) is None


@pytest.mark.parametrize("broken", [{}, *({"event": "runner_on_ok", "event_data": data} for data in EMPTY)])
def test_an_event_without_content_has_no_meaning(broken: Event) -> None:
    assert parse_event(broken, MEMBERS) is None


def test_task_names_and_output_decide_nothing() -> None:
    loud = event("runner_on_ok", res={"stdout": "FATAL error", "rc": 1}, task="everything failed")
    assert parse_event(loud, MEMBERS) is None


def test_the_first_error_of_a_member_is_kept() -> None:
    first = event("runner_on_failed", res={"adapter_error": {"code": "first", "message": "a", "class": "drift"}})
    second = event("runner_on_failed", res={"adapter_error": {"code": "second", "message": "b", "class": "drift"}})
    error = translate([first, second], MEMBERS).outcomes[WORKER].error
    assert error is not None
    assert error.code == "first"


def test_details_add_up_and_the_newest_phase_counts() -> None:
    run = translate(
        [reported(phase="munge", detail={"cpus": 1, "gpus": 1}), reported(phase="joining", detail={"gpus": 2})], MEMBERS
    )
    assert run.outcomes[WORKER].phase == "joining"
    assert run.outcomes[WORKER].detail == {"cpus": 1, "gpus": 2}


def test_a_snapshot_that_cannot_be_read_does_not_replace_one_that_could() -> None:
    good = {"observed_at": "2026-01-02T03:04:05Z", "controller": {"ping": "UP"}, "nodes": None}
    events = [reported("controller-1", phase="serving", snapshot=seen) for seen in (good, "junk")]
    run = translate(events, MEMBERS)
    assert run.snapshot is not None
    assert run.snapshot.nodes is None


def test_a_long_message_is_cut() -> None:
    found = parse_event(event("runner_on_failed", res={"msg": "x" * 10_000}), MEMBERS)
    assert isinstance(found, MemberEvent)
    assert found.error is not None
    assert len(found.error.message) < MESSAGE_BYTES + 200


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
def test_a_snapshot_has_the_skew_of_the_controllers_clock(created: str | None, skew: float | None) -> None:
    snapshot = {"observed_at": "2026-01-02T03:05:05Z", "controller": {}}
    run = translate([{**reported("controller-1", phase="serving", snapshot=snapshot), "created": created}], MEMBERS)
    assert run.snapshot is not None
    assert run.snapshot.controller.clock_skew_seconds == skew


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"censored": "hidden"}, "vault_sealed"),
        ({"msg": "templating failed: runtime secret not available: vault_sealed: it is sealed"}, "vault_sealed"),
        ({"msg": "the disk is full"}, "task_failed"),
        ({"msg": "x", "adapter_error": {"code": "munge_failed", "message": "y"}}, "munge_failed"),
    ],
)
def test_a_task_without_its_secret_has_the_error_of_the_refusal(result: Any, code: str) -> None:
    event = {"event": "runner_on_failed", "event_data": {"host": "w", "task": "t", "res": result}}
    run = translate([event], {"w": MemberReports(UUID(int=5), "worker")})
    error = (
        name_refused_secret(run, AdapterError("vault_sealed", "it is sealed", "retryable")).outcomes[UUID(int=5)].error
    )
    assert error is not None and (error.code, error.host, error.task) == (code, "w", "t")


def test_an_empty_snapshot_is_a_snapshot_and_an_event_without_one_keeps_it() -> None:
    member = next(iter(MEMBERS.values())).id
    seen = add_event(RunResult(), MemberEvent(member, snapshot={}))
    assert seen.snapshot == {}
    assert add_event(seen, MemberEvent(member, phase="serving")).snapshot == {}
