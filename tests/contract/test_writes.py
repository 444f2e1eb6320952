"""Idempotency keys, ETags and the audit trail."""

import uuid

from tests.platform_process import ApiClient, Project


def member_of(project: Project, client: ApiClient) -> tuple[str, str]:
    base = f"{project.path}/app-instances/{project.deploy()['id']}/members"
    return base, client.get(base).json()["items"][0]["id"]


def test_retry_with_the_same_key_answers_as_the_first_time_and_changes_nothing(project: Project) -> None:
    key = str(uuid.uuid4())
    base = f"{project.path}/app-instances/{project.deploy()['id']}/member-operations"
    body = {"operation": "add", "component_key": "worker", "allocation_ids": [project.allocation_ids[3]]}
    first = project.operator.post(base, body, idempotency_key=key)
    again = project.operator.post(base, dict(reversed(body.items())), idempotency_key=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["etag"] == first.headers["etag"]
    assert len(project.operator.get(base).json()["items"]) == 2  # the seeded one and ours


def test_same_key_with_another_body_or_path_is_a_conflict(project: Project) -> None:
    key = str(uuid.uuid4())
    base = f"{project.path}/app-instances/{project.deploy()['id']}"
    project.operator.post(f"{base}/operations", {"operation": "stop"}, idempotency_key=key)
    for path, body in (("operations", {"operation": "start"}), ("member-operations", {"operation": "stop"})):
        body = {**body, "component_key": "worker"} if path == "member-operations" else body
        answer = project.operator.post(f"{base}/{path}", body, idempotency_key=key)
        assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict")


def test_idempotency_keys_of_two_principals_are_separate(project: Project) -> None:
    key = str(uuid.uuid4())
    base = f"{project.path}/app-instances/{project.deploy()['id']}"
    assert project.operator.post(f"{base}/operations", {"operation": "stop"}, idempotency_key=key).status_code == 201
    event = {"type": "apps.instance.running", "correlation_id": "c", "data": {}}
    assert project.adapter.post(f"{base}/events", event, idempotency_key=key).status_code == 201


def test_refused_write_does_not_use_up_its_key(project: Project) -> None:
    adapter, key = project.adapter, str(uuid.uuid4())
    base, member = member_of(project, adapter)
    body = {"status": "reconciling"}
    stale = adapter.patch(f"{base}/{member}", body, idempotency_key=key, if_match='"v99"')
    fresh = adapter.patch(f"{base}/{member}", body, idempotency_key=key, if_match='"v1"')
    assert (stale.status_code, fresh.status_code) == (412, 200)


def test_write_without_a_key_is_refused(project: Project) -> None:
    base = f"{project.path}/app-instances/{project.deploy()['id']}/operations"
    answer = project.operator.post(base, {"operation": "stop"}, idempotency_key=None)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert project.operator.get(base).json()["items"] == []


def test_etag_moves_with_every_change_and_stays_without_one(project: Project) -> None:
    adapter = project.adapter
    base, member = member_of(project, adapter)
    read = adapter.get(f"{base}/{member}")
    assert read.headers["etag"] == read.json()["etag"] == adapter.get(base).json()["items"][0]["etag"]
    written = adapter.patch(f"{base}/{member}", {"status": "reconciling"}, if_match=read.headers["etag"])
    assert written.headers["etag"] != read.headers["etag"]
    same = adapter.patch(f"{base}/{member}", {"status": "reconciling"}, if_match=written.headers["etag"])
    assert same.headers["etag"] == written.headers["etag"]
    stale = adapter.patch(f"{base}/{member}", {"status": "ready"}, if_match=read.headers["etag"])
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")


def test_conditional_read_of_an_object_and_of_a_page_answers_304_until_it_changes(project: Project) -> None:
    adapter = project.adapter
    base, member = member_of(project, adapter)
    for path in (f"{base}/{member}", base):
        etag = adapter.get(path).headers["etag"]
        unchanged = adapter.get(path, if_none_match=etag)
        assert (unchanged.status_code, unchanged.content) == (304, b"")
        adapter.patch(f"{base}/{member}", {"adapter_detail": {"seen": path}})
        assert adapter.get(path, if_none_match=etag).status_code == 200


def test_request_id_comes_back_and_the_error_carries_the_correlation_id(project: Project) -> None:
    answer = project.adapter.get(
        f"{project.path}/app-instances/{uuid.uuid4()}", x_request_id="r-1", x_correlation_id="c-1"
    )
    assert answer.headers["x-request-id"] == "r-1"
    assert answer.json()["correlation_id"] == "c-1"
    assert set(answer.json()) == {"code", "message", "correlation_id", "details"}


def test_every_write_is_audited_with_who_what_and_why(project: Project) -> None:
    adapter = project.adapter
    base, member = member_of(project, adapter)
    adapter.patch(f"{base}/{member}", {"status": "ready"}, x_correlation_id="c-2", x_request_id="r-2")
    row = project.platform.control.audit()[-1]
    assert (row["actor_type"], row["actor_id"]) == (
        "service_account",
        project.service_account["service_account_id"],
    )
    assert (row["action"], row["object_kind"], row["object_id"]) == ("updateMember", "member", member)
    assert (row["correlation_id"], row["request_id"], row["user_agent"]) == ("c-2", "r-2", "platform-tests/1")
    assert row["changes"] == {"status": "ready"}


def test_change_audit_row_and_idempotency_record_stand_or_fall_together(project: Project) -> None:
    adapter, control, key = project.adapter, project.platform.control, str(uuid.uuid4())
    base, member = member_of(project, adapter)
    before, rows = adapter.get(f"{base}/{member}").json(), len(control.audit())
    control.inject_fault("abort_transaction", member, method="PATCH")
    broken = adapter.patch(f"{base}/{member}", {"status": "ready"}, idempotency_key=key)
    assert (broken.status_code, broken.json()["code"]) == (500, "internal_error")
    assert adapter.get(f"{base}/{member}").json() == before
    assert len(control.audit()) == rows
    retried = adapter.patch(f"{base}/{member}", {"status": "ready"}, idempotency_key=key)
    assert retried.status_code == 200
    assert "idempotent-replayed" not in retried.headers
    assert len(control.audit()) == rows + 1
