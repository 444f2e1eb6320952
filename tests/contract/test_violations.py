"""Requests that are not in the contract are refused and recorded."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.platform_process import Project


@pytest.fixture(autouse=True)
def forgotten_afterwards(project: Project) -> Iterator[None]:
    project.platform.control.forget_violations()
    yield
    project.platform.control.forget_violations()


def test_calls_within_the_contract_leave_no_violation(project: Project) -> None:
    base = f"{project.path}/app-instances/{project.deploy()['id']}"
    project.adapter.get(f"{base}/members?status=requested,ready&limit=5")
    project.adapter.patch(base, {"status": "deploying", "health": "progressing", "status_detail": {"step": 1}})
    assert project.platform.control.violations() == []


@pytest.mark.parametrize(
    ("method", "path", "body", "headers"),
    [
        ("GET", "{p}/nothing-here", None, {}),
        ("GET", "/internal/health", None, {}),
        ("GET", "{p}/app-instances%0A", None, {}),
        ("GET", "{p}/app-instances%2Fmembers", None, {}),
        ("PUT", "{p}/app-instances", {}, {}),
        ("GET", "{p}/app-instances?unknown=1", None, {}),
        ("GET", "{p}/app-instances?limit=0", None, {}),
        ("GET", "{p}/app-instances?limit=1&limit=2", None, {}),
        ("GET", "{p}/app-instances?updated_since=yesterday", None, {}),
        ("GET", "{p}/app-instances/not-a-uuid", None, {}),
        ("GET", "{p}/app-instances", None, {"x_request_id": "x" * 129}),
        ("POST", "{p}/app-instances", {"app_slug": "x"}, {}),
        ("POST", "{p}/app-instances", [], {}),
    ],
)
def test_request_outside_the_contract_is_refused_and_recorded(
    project: Project, method: str, path: str, body: Any, headers: dict[str, str]
) -> None:
    path = path.format(p=project.path)
    answer = project.operator.call(method, path, body, **headers)
    assert answer.status_code in (400, 404, 405)
    assert set(answer.json()) == {"code", "message", "correlation_id", "details"}
    recorded = project.platform.control.violations()
    assert [(row["side"], row["method"], row["path"]) for row in recorded] == [
        ("client", method, path.partition("?")[0])
    ]
    assert recorded[0]["problems"]
    assert recorded[0]["user_agent"] == "platform-tests/1"


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"operation": "\\ud800"}', b'{"operation": NaN}', b"[" * 100_000])
def test_a_body_that_is_not_json_is_refused(project: Project, body: bytes) -> None:
    base = f"{project.path}/app-instances/{project.deploy()['id']}/operations"
    headers = {
        "authorization": f"Bearer {project.operator_token}",
        "idempotency-key": "k",
        "content-type": "application/json",
    }
    answer = httpx.post(f"{project.platform.base_url}/api/v1{base}", content=body, headers=headers, trust_env=False)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_problems_never_quote_what_was_sent(project: Project) -> None:
    canary = "canary-secret"
    body = {"service_account_id": canary, "key_id": "k", "client_secret": 7, "more": canary}
    answer = project.operator.post("/auth/service-account/token", body, idempotency_key=None)
    assert answer.status_code == 400
    assert canary not in answer.text
    assert canary not in str(project.platform.control.violations())


def test_answer_outside_the_contract_is_an_error(project: Project) -> None:
    """A machine whose stored connection is invalid: the platform reports the error, not the client."""
    control = project.platform.control
    control.put_allocation(project.project_id, project.allocation_ids[0], connection={"host": 7})
    answer = project.adapter.get(f"{project.path}/allocations/{project.allocation_ids[0]}")
    assert (answer.status_code, answer.json()["code"]) == (500, "contract_violation")
    assert [row["side"] for row in control.violations()] == ["server"]
