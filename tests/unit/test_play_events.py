"""What one event of a play means, as a whole: every field of the event, of the outcome and of the error."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from runner.intent.host_keys import KEY_CHANGED_MESSAGE
from runner.model.app import Report
from runner.model.plan import AdapterError
from runner.model.world import Outcome
from runner.translate import MemberEvent, PlayEvent, RunResult, add_event, name_refused_secret, parse_event, translate

ONE, OTHER, TENANT = UUID(int=5), UUID(int=6), UUID(int=7)
CREATED = "2026-01-02T03:04:05+00:00"
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass(frozen=True)
class Reader:
    """Reads any report of the action `report` as it is, and notes when it came."""

    id: UUID
    times: list[datetime | None] = field(default_factory=list)

    def accepts(self, action: str) -> bool:
        return action == "report"

    def read(self, report: Mapping[str, Any], at: datetime | None) -> Report:
        self.times.append(at)
        return Report(report["phase"], report["detail"], report["snapshot"], ("odd",))


def raw(kind: str, host: Any = "one", **data: Any) -> dict[str, Any]:
    data = {"host": host, "task": "Do it", "playbook_uuid": "run-1", **data}
    return {"event": kind, "created": CREATED, "event_data": data}


def failed(**result: Any) -> dict[str, Any]:
    return raw("runner_on_failed", res=result)


def parsed(event: dict[str, Any]) -> Any:
    return parse_event(event, {"one": Reader(ONE), "": Reader(OTHER)})


REPORT = {"member_report": {"phase": "munge", "detail": {"cpus": 2}, "snapshot": "seen"}}


def test_the_fields_of_a_whole_event_are_read() -> None:
    result = {
        **REPORT,
        "msg": "wrong",
        "module_stderr": " \n of the module",
        "stderr": "of the command",
        "censored": "hidden",
        "adapter_error": {"code": "odd"},
    }
    task = {"task_uuid": "task-1", "task_path": "/roles/munge/tasks/main.yml:3", "task_action": "report"}
    event = raw("runner_on_failed", **task, ignore_errors=True, res=result)
    assert PlayEvent.read(event) == PlayEvent(
        kind="runner_on_failed",
        run_id="run-1",
        created=AT,
        host="one",
        task="Do it",
        action="report",
        task_id="task-1",
        task_path="/roles/munge/tasks/main.yml:3",
        errors_are_ignored=True,
        message="wrong",
        stderr="of the module",
        is_hidden=True,
        report=REPORT["member_report"],
        error={"code": "odd"},
    )
    assert PlayEvent.read(failed(stderr="\tof the command ")).stderr == "of the command "


def test_the_fields_of_an_empty_event_have_no_value() -> None:
    empty = PlayEvent("None", None, None, None, None, "None", False, None, "", False, None, {})
    assert PlayEvent.read({}) == empty
    odd = {"created": 7, "event_data": {"res": {"member_report": ["a"], "adapter_error": "text"}}}
    assert PlayEvent.read(odd) == empty


@pytest.mark.parametrize("created", ["2026-01-02T03:04:05", "soon", "", 7, None])
def test_a_time_without_a_zone_is_not_a_time(created: Any) -> None:
    assert PlayEvent.read({"created": created}).created is None


def test_names_of_hosts_and_tasks_are_cut_to_size() -> None:
    event = PlayEvent.read(raw("runner_on_ok", host="h" * 600, task="t\a" + "t" * 600))
    assert event.host == "h" * 497 + "..." and event.task == "t?" + "t" * 495 + "..."


def test_a_report_is_read_with_the_time_of_its_event() -> None:
    reader = Reader(ONE)
    found = parse_event(raw("runner_on_ok", task_action="report", res=REPORT), {"one": reader})
    assert found == MemberEvent(ONE, "munge", {"cpus": 2}, "seen", None, AT, ("odd",))
    assert reader.times == [AT]


def test_a_failure_keeps_the_report_that_came_with_it() -> None:
    found = parsed(raw("runner_on_failed", task_action="report", res={**REPORT, "msg": "no"}))
    error = AdapterError(
        "task_failed", "Do it: no. Look at the host, then request it again", "intervention", "one", "Do it"
    )
    assert found == MemberEvent(ONE, "munge", {"cpus": 2}, "seen", error, AT, ("odd",))


@pytest.mark.parametrize(
    ("event", "meaning"),
    [
        (raw("playbook_on_no_hosts_matched", host=None), "no hosts matched"),
        (raw("runner_on_ok", res=REPORT, task_action="shell"), None),
        (raw("runner_on_ok", res={}, task_action="report"), None),
        (raw("runner_on_start", res=REPORT, task_action="report"), None),
        (raw("runner_item_on_failed", res={"msg": "no"}), None),
        (raw("runner_on_ok", host="two", res=REPORT, task_action="report"), None),
        (raw("runner_on_failed", ignore_errors=True, res=REPORT, task_action="report"), None),
    ],
)
def test_an_event_that_concerns_no_member_has_no_error(event: dict[str, Any], meaning: str | None) -> None:
    assert parsed(event) == meaning


def test_an_unreachable_host_counts_where_errors_are_ignored() -> None:
    found = parsed(raw("runner_on_unreachable", ignore_errors=True, res={"msg": "no route"}))
    message = "ssh to the host failed: no route. Check that it is up and that its sshd answers"
    error = AdapterError("host_unreachable", message, "retryable", "one", "Do it")
    assert found == MemberEvent(ONE, error=error, at=AT)


def test_an_event_without_a_host_belongs_to_the_member_without_a_name() -> None:
    found = parsed(raw("runner_on_failed", host=None, task=None, res={"msg": "no"}))
    error = AdapterError("task_failed", "None: no. Look at the host, then request it again", "intervention")
    assert found == MemberEvent(OTHER, error=error, at=AT)


def sudo(message: str) -> tuple[str, str]:
    return "not_root", (
        f"the login user may not become root: {message}. Install"
        " deploy/sudoers.d/gpuaas-slurm on the host, with that user's name, then request it again"
    )


def task(message: str) -> tuple[str, str]:
    return "task_failed", f"Do it: {message}. Look at the host, then request it again"


HIDDEN = task("its output is withheld because it handles a secret")


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ({"msg": "disk full"}, task("disk full")),
        ({}, task("no message")),
        ({"msg": "disk full", "censored": "hidden"}, HIDDEN),
        ({"msg": "Missing sudo password"}, sudo("Missing sudo password")),
        ({"msg": "x", "module_stderr": "sudo: no tty"}, sudo("x")),
        ({"msg": "x", "stderr": "\nSorry, user ops may not"}, sudo("x")),
        ({"msg": "x", "stderr": "pseudo: no tty"}, task("x")),
        ({"msg": "x", "stderr": "XX"}, task("x")),
        ({"msg": "x", "adapter_error": {"code": "Odd", "message": "y"}}, task("x")),
        ({"msg": "x", "adapter_error": {"code": 7, "message": "y"}}, task("x")),
        ({"msg": "x", "adapter_error": {"code": "play_stalled", "message": "y"}}, task("x")),
        ({"msg": "x", "adapter_error": {"code": "odd", "message": "y"}}, ("odd", "y")),
        ({"msg": "x", "adapter_error": {"code": "odd"}}, ("odd", "x")),
        ({"adapter_error": {"code": "odd"}}, ("odd", "no message")),
    ],
)
def test_a_failed_task_has_one_error_with_its_host_and_task(result: dict[str, Any], error: tuple[str, str]) -> None:
    wanted = AdapterError(*error, "intervention", "one", "Do it")
    assert parsed(failed(**result)) == MemberEvent(ONE, error=wanted, at=AT)


@pytest.mark.parametrize(
    ("given", "klass", "instance"),
    [
        ({"class": "drift", "instance": str(TENANT)}, "drift", TENANT),
        ({"class": "retryable", "instance": "text"}, "retryable", None),
        ({"class": "odd", "instance": 7}, "intervention", None),
    ],
)
def test_an_error_of_a_role_has_a_known_class_and_an_id(given: dict[str, Any], klass: Any, instance: Any) -> None:
    found = parsed(failed(adapter_error={"code": "odd", "message": "y", **given}))
    assert found.error == AdapterError("odd", "y", klass, "one", "Do it", instance)


def test_the_error_of_a_changed_host_key_states_what_a_person_does_about_it() -> None:
    found = parsed(raw("runner_on_unreachable", res={"msg": "ssh: Host key verification failed."}))
    error = AdapterError("host_key_mismatch", KEY_CHANGED_MESSAGE, "intervention", "one", "Do it")
    assert found == MemberEvent(ONE, error=error, at=AT)


def test_a_result_has_the_newest_phase_and_snapshot_and_the_first_error() -> None:
    error, later = AdapterError("first", "a"), AdapterError("second", "b")
    events: list[Any] = [
        MemberEvent(ONE, "munge", {"cpus": 1, "gpus": 1}, "older", error),
        None,
        MemberEvent(ONE, None, {"gpus": 2}, None, later),
        MemberEvent(OTHER, "joining"),
        "no hosts matched",
        MemberEvent(OTHER, "serving", {}, "newer"),
    ]
    results = [RunResult()]
    for event in events:
        results.append(add_event(results[-1], event))
    one = Outcome("munge", {"cpus": 1, "gpus": 2}, error)
    assert results[4] == RunResult({ONE: one, OTHER: Outcome("joining")}, "older", False)
    assert results[6] == RunResult({ONE: one, OTHER: Outcome("serving")}, "newer", True)


def test_a_recorded_run_is_the_sum_of_its_events() -> None:
    events = [raw("runner_on_ok", task_action="report", res=REPORT), failed(msg="no"), failed(msg="again")]
    error = AdapterError(
        "task_failed", "Do it: no. Look at the host, then request it again", "intervention", "one", "Do it"
    )
    assert translate(events, {"one": Reader(ONE)}) == RunResult({ONE: Outcome("munge", {"cpus": 2}, error)}, "seen")


def test_the_cause_of_a_refused_secret_replaces_only_the_error_that_it_led_to() -> None:
    cause = AdapterError("vault_sealed", "it is sealed", "retryable")
    withheld = AdapterError(*HIDDEN, "intervention", "one", "Do it")
    lookup = AdapterError("task_failed", "x: runtime secret not available: y", "intervention", "two", "Get it")
    kept = {
        UUID(int=1): Outcome("munge", {"cpus": 2}, AdapterError("task_failed", "the disk is full")),
        UUID(int=2): Outcome("munge", {}, AdapterError("odd", HIDDEN[1])),
        UUID(int=3): Outcome("serving"),
    }
    before = RunResult({**kept, ONE: Outcome("munge", {"cpus": 2}, withheld), OTHER: Outcome(None, {}, lookup)}, "seen")
    explained = {
        ONE: Outcome("munge", {"cpus": 2}, AdapterError("vault_sealed", "it is sealed", "retryable", "one", "Do it")),
        OTHER: Outcome(None, {}, AdapterError("vault_sealed", "it is sealed", "retryable", "two", "Get it")),
    }
    assert name_refused_secret(before, cause) == RunResult({**kept, **explained}, "seen")
