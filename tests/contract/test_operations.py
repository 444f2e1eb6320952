"""Operations: claims, leases, and the transitions that are legal."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.platform_process import Project


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


class Work:
    """The operation that a deploy seeds, and an adapter that works on it."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.adapter = project.adapter
        self.base = f"{project.path}/app-instances/{project.deploy()['id']}/member-operations"
        self.path = f"{self.base}/{self.adapter.get(self.base).json()['items'][0]['id']}"

    def write(self, **body: Any) -> httpx.Response:
        return self.adapter.patch(self.path, body)

    def claim(self, who: str = "runner-a", seconds: float = 60) -> httpx.Response:
        return self.write(status="running", claimed_by=who, lease_expires_at=in_seconds(seconds))


@pytest.fixture
def work(project: Project) -> Work:
    return Work(project)


ERROR = {"code": "host_unreachable", "message": "check the host"}


def test_claim_records_holder_lease_and_attempt(work: Work) -> None:
    claimed = work.claim()
    assert claimed.status_code == 200
    assert (claimed.json()["claimed_by"], claimed.json()["attempt"]) == ("runner-a", 1)
    assert claimed.json()["lease_expires_at"] > in_seconds(50)


@pytest.mark.parametrize(
    "body",
    [
        {"status": "running"},
        {"status": "running", "claimed_by": "a"},
        {"status": "running", "lease_expires_at": in_seconds(1000)},
        {"status": "running", "claimed_by": "a", "lease_expires_at": in_seconds(-1)},
        {"claimed_by": "a"},
        {"status": "failed"},
    ],
)
def test_incomplete_claim_or_failure_is_refused_and_changes_nothing(work: Work, body: dict[str, Any]) -> None:
    before = work.adapter.get(work.path).json()
    assert work.write(**body).json()["code"] == "validation_error"
    assert work.adapter.get(work.path).json() == before


def test_second_claim_meets_the_lease(work: Work) -> None:
    work.claim("runner-a")
    refused = work.claim("runner-b")
    assert (refused.status_code, refused.json()["code"]) == (409, "lease_held")
    assert refused.json()["details"]["claimed_by"] == "runner-a"
    assert work.write(status="succeeded", claimed_by="runner-b").json()["code"] == "lease_held"


def test_only_one_of_two_claims_on_the_same_version_wins(work: Work) -> None:
    etag = work.adapter.get(work.path).headers["etag"]
    body = {"status": "running", "claimed_by": "a", "lease_expires_at": in_seconds(60)}
    first = work.adapter.patch(work.path, body, if_match=etag)
    second = work.adapter.patch(work.path, body | {"claimed_by": "b"}, if_match=etag)
    assert (first.status_code, second.status_code) == (200, 412)


def test_a_renewal_moves_the_lease_and_does_not_count_as_attempt(work: Work) -> None:
    before = work.claim(seconds=30).json()
    renewed = work.write(lease_expires_at=in_seconds(300)).json()
    assert renewed["lease_expires_at"] > before["lease_expires_at"]
    assert (renewed["attempt"], renewed["claimed_by"], renewed["status"]) == (1, "runner-a", "running")


def test_expired_lease_is_taken_over_as_a_new_attempt(work: Work) -> None:
    work.claim("runner-a", seconds=0.3)
    deadline = time.monotonic() + 5
    while (claimed := work.claim("runner-b")).status_code == 409 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (claimed.status_code, claimed.json()["claimed_by"], claimed.json()["attempt"]) == (200, "runner-b", 2)
    assert work.write(status="succeeded", claimed_by="runner-a").json()["code"] == "lease_held"


def test_lease_given_up_can_be_claimed_at_once(work: Work) -> None:
    work.claim("runner-a")
    assert work.write(lease_expires_at=in_seconds(0)).status_code == 200
    assert work.claim("runner-b").status_code == 200


def test_only_the_claimer_can_finish_an_operation_even_after_the_lease(work: Work) -> None:
    work.claim("runner-a")
    work.write(lease_expires_at=in_seconds(0))
    assert work.write(status="succeeded", claimed_by="runner-b").json()["code"] == "lease_held"


def test_operation_handed_back_is_free_for_the_next(work: Work) -> None:
    work.claim("runner-a")
    handed = work.write(status="accepted").json()
    assert (handed["status"], handed["claimed_by"], handed["lease_expires_at"]) == ("accepted", None, None)
    assert work.claim("runner-b").json()["attempt"] == 2


@pytest.mark.parametrize(
    ("end", "extra"), [("succeeded", {"result": {"m": 1}}), ("failed", {"error": ERROR}), ("cancelled", {})]
)
def test_end_is_final(work: Work, end: str, extra: dict[str, Any]) -> None:
    work.claim()
    ended = work.write(status=end, **extra).json()
    assert (ended["status"], ended["lease_expires_at"], ended["claimed_by"]) == (end, None, "runner-a")
    for body in ({"status": "running"}, {"status": "accepted"}, {"result": {"late": True}}, {"status": end}):
        assert work.write(**body).json()["code"] == "invalid_transition"


def test_accepted_operation_can_be_failed_at_once_but_not_succeed(work: Work) -> None:
    assert work.write(status="succeeded").json()["code"] == "invalid_transition"
    failed = work.write(status="failed", error=ERROR).json()
    assert (failed["status"], failed["error"], failed["attempt"]) == ("failed", ERROR, 0)


@pytest.mark.parametrize("claimed_before", [False, True])
def test_operator_cancels_and_writes_nothing_else(work: Work, claimed_before: bool) -> None:
    if claimed_before:
        work.claim()
    operator = work.project.operator
    refused: list[dict[str, Any]] = [{"status": "succeeded"}, {"status": "cancelled", "result": {}}, {"result": {}}]
    for body in refused:
        assert operator.patch(work.path, body).json()["code"] == "ownership_required"
    assert operator.patch(work.path, {"status": "cancelled"}).json()["status"] == "cancelled"


def test_unknown_verb_and_component_are_kept_for_the_adapter_to_refuse(work: Work) -> None:
    body = {"operation": "levitate", "component_key": "dragon", "member_ids": [], "parameters": {"height": 3}}
    made = work.project.operator.post(work.base, body)
    assert made.status_code == 201
    assert {name: made.json()[name] for name in body} == body
    assert (made.json()["status"], made.json()["requested_by"]["actor_type"]) == ("accepted", "user")


def test_instance_operations_follow_the_same_rules(project: Project) -> None:
    base = f"{project.path}/app-instances/{project.deploy()['id']}/operations"
    path = f"{base}/{project.operator.post(base, {'operation': 'restart'}).json()['id']}"
    lease = {"status": "running", "claimed_by": "a", "lease_expires_at": in_seconds(60)}
    assert project.adapter.patch(path, lease).json()["attempt"] == 1
    assert project.adapter.patch(path, {**lease, "claimed_by": "b"}).json()["code"] == "lease_held"
    assert project.adapter.patch(path, {"status": "succeeded"}).status_code == 200


def test_deleted_member_stays_deleted_and_detail_is_replaced_whole(project: Project) -> None:
    adapter = project.adapter
    base = f"{project.path}/app-instances/{project.deploy()['id']}/members"
    path = f"{base}/{adapter.get(base).json()['items'][0]['id']}"
    adapter.patch(path, {"adapter_detail": {"a": 1, "b": 2}})
    assert adapter.patch(path, {"adapter_detail": {"c": 3}}).json()["adapter_detail"] == {"c": 3}
    large = adapter.patch(path, {"adapter_detail": {"text": "x" * 16384}})
    assert (large.status_code, large.json()["code"]) == (400, "validation_error")
    assert adapter.patch(path, {"adapter_detail": {"text": "x" * 16000}}).status_code == 200
    adapter.patch(path, {"status": "deleted"})
    assert adapter.patch(path, {"status": "ready"}).json()["code"] == "invalid_transition"


def test_a_deleting_instance_can_only_become_deleted(project: Project) -> None:
    path = f"{project.path}/app-instances/{project.deploy()['id']}"
    adapter = project.adapter
    assert adapter.patch(path, {"status": "running", "health": "healthy"}).status_code == 200
    assert adapter.patch(path, {"status": "requested"}).json()["code"] == "invalid_transition"
    deleting = project.operator.call("DELETE", path)
    assert (deleting.status_code, deleting.json()["status"]) == (202, "deleting")
    assert adapter.patch(path, {"status": "running"}).json()["code"] == "invalid_transition"
    assert adapter.patch(path, {"status": "deleted", "health": "unknown"}).status_code == 200
    assert project.operator.post(f"{path}/operations", {"operation": "start"}).status_code == 409
    types = [event["type"] for event in adapter.get(f"{path}/events").json()["items"]]
    assert types == ["apps.instance.requested", "apps.instance.deleting"]
