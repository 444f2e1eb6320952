"""Injected faults break the connection or the answer, as requested and as often as requested."""

import re
import time
import uuid

import httpx
import pytest

from sandbox.platform.control_client import UnmetFaults
from tests.platform_process import Doc, Project


def test_status_fault_answers_so_many_times_and_does_nothing(project: Project) -> None:
    control, path = project.platform.control, f"{project.path}/allocations"
    control.inject_fault(
        "status", "/allocations$", times=2, status=429, headers={"Retry-After": "1"}, body={"code": "x"}
    )
    adapter = project.adapter
    answers = [adapter.get(path) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [429, 429, 200]
    assert answers[0].headers["retry-after"] == "1"


def test_fault_of_one_method_leaves_the_others_alone(project: Project) -> None:
    project.platform.control.inject_fault("status", "/allocations$", method="POST")
    assert project.adapter.get(f"{project.path}/allocations").status_code == 200
    assert project.adapter.post(f"{project.path}/allocations", {}).status_code == 500


@pytest.mark.parametrize(
    ("action", "path", "options"),
    [
        ("status", "/no-such-path$", {}),
        ("status", "/allocations$", {"method": "POST"}),
        ("status", "/allocations$", {"skip": 1}),
        ("spoil", "/allocations$", {"body": {"id": "another"}}),
        ("abort_transaction", "/allocations$", {}),
    ],
    ids=["path", "method", "too-late", "another-record", "nothing-to-abort"],
)
def test_a_fault_that_breaks_nothing_is_an_error_when_it_is_cleared(
    project: Project, action: str, path: str, options: Doc
) -> None:
    control = project.platform.control
    control.inject_fault(action, path, **options)
    assert project.adapter.get(f"{project.path}/allocations").status_code == 200
    with pytest.raises(UnmetFaults, match=f"^no request met: {action} at (any|POST) {re.escape(path)}$"):
        control.clear_faults()
    control.clear_faults()  # reported once


def test_garbage_is_not_json(project: Project) -> None:
    project.platform.control.inject_fault("garbage", "/allocations$")
    answer = project.adapter.get(f"{project.path}/allocations")
    assert answer.status_code == 200
    with pytest.raises(ValueError, match=r"codec|JSON|Expecting"):
        answer.json()


@pytest.mark.parametrize("action", ["drop", "truncate", "apply_then_drop"])
def test_broken_connection_is_really_broken(project: Project, action: str) -> None:
    adapter = project.adapter
    project.platform.control.inject_fault(action, "/allocations$")
    with pytest.raises(httpx.TransportError):
        adapter.get(f"{project.path}/allocations")
    assert adapter.get(f"{project.path}/allocations").status_code == 200


def test_write_applied_but_never_answered_is_replayed_on_retry(project: Project) -> None:
    key, base = str(uuid.uuid4()), f"{project.path}/app-instances/{project.deploy()['id']}/operations"
    project.platform.control.inject_fault("apply_then_drop", "/operations$", method="POST")
    with pytest.raises(httpx.TransportError):
        project.operator.post(base, {"operation": "stop"}, idempotency_key=key)
    retried = project.operator.post(base, {"operation": "stop"}, idempotency_key=key)
    assert (retried.status_code, retried.headers["idempotent-replayed"]) == (201, "true")
    assert [one["id"] for one in project.operator.get(base).json()["items"]] == [retried.json()["id"]]


def test_hang_keeps_the_client_waiting(project: Project) -> None:
    adapter = project.adapter
    project.platform.control.inject_fault("hang", "/allocations$", seconds=0.4)
    started = time.monotonic()
    assert adapter.get(f"{project.path}/allocations").status_code == 200
    assert time.monotonic() - started >= 0.4


@pytest.mark.parametrize(("action", "done"), [("hold", 0), ("apply_then_hold", 1)])
def test_a_held_call_is_not_answered_and_its_write_is_done_as_asked(project: Project, action: str, done: int) -> None:
    control, base = project.platform.control, f"{project.path}/app-instances/{project.deploy()['id']}/operations"
    control.inject_fault(action, "/operations$", method="POST|PATCH", skip=1)
    assert project.operator.post(base, {"operation": "stop"}).status_code == 201
    headers = {"authorization": f"Bearer {project.operator_token}", "idempotency-key": str(uuid.uuid4())}
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.Client(base_url=f"{project.platform.base_url}/api/v1", trust_env=False, timeout=0.5) as caller,
    ):
        caller.post(base, json={"operation": "start"}, headers={**headers, "x-request-id": "r-1"})
    deadline = time.monotonic() + 10
    while control.held() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (control.held(), control.faults()) == ([], [])
    asked = [one["operation"] for one in project.operator.get(base).json()["items"]]
    assert asked == ["stop", "start"][: 1 + done]


def test_vault_can_be_broken_too(project: Project) -> None:
    project.platform.control.inject_fault("status", "^/v1/", status=503, body={"errors": ["Vault is sealed"]})
    answer = httpx.get(f"{project.platform.base_url}/v1/sys/health", trust_env=False)
    assert (answer.status_code, answer.json()) == (503, {"errors": ["Vault is sealed"]})


def test_faults_are_not_violations(project: Project) -> None:
    control = project.platform.control
    control.forget_violations()
    control.inject_fault("status", "/allocations$", status=418, body={"not": "the envelope"})
    project.adapter.get(f"{project.path}/allocations")
    assert control.violations() == []


def test_requests_are_counted_with_template_status_and_principal(project: Project) -> None:
    control, adapter = project.platform.control, project.adapter
    mark = control.requests()["last"]
    adapter.get(f"{project.path}/allocations/{project.allocation_ids[0]}", x_correlation_id="c-9")
    found = control.requests(since=mark)
    assert found["count"] == 1
    seen = found["requests"][0]
    assert (seen["method"], seen["status"]) == ("GET", 200)
    assert seen["template"] == "/projects/{project_id}/allocations/{allocation_id}"
    assert seen["principal"] == project.service_account["service_account_id"]
    assert seen["correlation_id"] == "c-9"
    assert seen["ms"] > 0
