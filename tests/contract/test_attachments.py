"""Attachments of projects to a shared runtime: policy, status, people, and the ways out."""

import pytest

from tests.platform_process import Doc, Platform
from tests.tenant import Tenant, delivery, new_tenant, refusal


@pytest.fixture(scope="module")
def crowd(platform: Platform) -> Tenant:
    """A tenant to which tests attach many projects."""
    return new_tenant(platform)


def test_an_attachment_begins_requested_and_allows_nothing(tenant: Tenant) -> None:
    project = tenant.project()
    shown = tenant.operator.get(tenant.attach(project, active=False)).json()
    assert (shown["status"], shown["project_id"], shown["app_policy"]) == ("requested", project.project_id, {})
    assert (shown["may_contribute"], shown["trusted_contributor"], shown["identities"]) == (False, False, [])
    again = tenant.admin.post(f"{tenant.path}/attachments", {"project_id": project.project_id})
    assert refusal(again) == (409, "attachment_exists")
    foreign = tenant.platform.project()
    answer = tenant.admin.post(f"{tenant.path}/attachments", {"project_id": foreign.project_id})
    assert refusal(answer) == (404, "project_not_found")


@pytest.mark.parametrize(
    ("policy", "accepted"),
    [
        ({}, True),
        ({"submit": True, "partitions": ["main"], "limits": {"gpus": 0, "wall_minutes": 60}}, True),
        ({"share_workers": True, "limits": {"cpus": 8, "jobs": 2}}, True),
        ({"submit": "yes"}, False),
        ({"partitions": ["Main; drop"]}, False),
        ({"limits": {"wall_minutes": 0}}, False),
        ({"limits": {"memory": 1}}, False),
        ({"admit": True}, False),
    ],
    ids=str,
)
def test_a_policy_must_match_the_schema_in_the_manifest(crowd: Tenant, policy: Doc, accepted: bool) -> None:
    path = crowd.attach(crowd.bare_project(), active=False)
    answer = crowd.admin.patch(path, {"app_policy": policy})
    assert answer.status_code == (200 if accepted else 400), answer.text
    assert crowd.admin.get(path).json()["app_policy"] == (policy if accepted else {})


# From each status, the steps that the administrator and the operator may make.
STEPS: dict[str, dict[str, set[str]]] = {
    "requested": {"A": {"suspended", "detaching"}, "O": {"active"}},
    "active": {"A": {"suspended", "detaching"}, "O": set()},
    "suspended": {"A": {"requested", "detaching"}, "O": set()},
    "detaching": {"A": set(), "O": {"detached"}},
    "detached": {"A": set(), "O": set()},
}
WAY: dict[str, list[tuple[str, str]]] = {
    "requested": [],
    "active": [("O", "active")],
    "suspended": [("A", "suspended")],
    "detaching": [("A", "detaching")],
    "detached": [("A", "detaching"), ("O", "detached")],
}


@pytest.mark.parametrize("status", STEPS)
def test_only_the_documented_steps_of_an_attachment_are_possible(crowd: Tenant, status: str) -> None:
    callers = {"A": crowd.admin, "O": crowd.operator}
    for letter, allowed in STEPS[status].items():
        for to in sorted(set(STEPS) - {status}):
            path = crowd.attach(crowd.bare_project(), active=False)
            for who, step in WAY[status]:
                assert callers[who].patch(path, {"status": step}).status_code == 200
            answer = callers[letter].patch(path, {"status": to})
            if to in allowed:
                assert answer.json()["status"] == to, (letter, to)
            else:
                assert refusal(answer) == (409, "invalid_transition"), (letter, to)
                assert crowd.admin.get(path).json()["status"] == status


def test_each_writer_of_an_attachment_has_its_own_fields(tenant: Tenant) -> None:
    path = tenant.attach(tenant.project())
    for client, body in (
        (tenant.operator, {"may_contribute": True}),
        (tenant.operator, {"app_policy": {"submit": True}}),
        (tenant.operator, {"trusted_contributor": True}),
        (tenant.admin, {"health": "healthy"}),
        (tenant.admin, {"adapter_detail": {}}),
    ):
        assert refusal(client.patch(path, body)) == (403, "ownership_required")
    etag = tenant.operator.get(path).headers["etag"]
    detail = {"adapter_detail": {"account": "p_1"}, "access": {"host": "h"}, "health": "degraded"}
    assert tenant.operator.patch(path, detail, if_match=etag).json()["adapter_detail"] == {"account": "p_1"}
    assert refusal(tenant.admin.patch(path, {"may_contribute": True}, if_match=etag)) == (412, "precondition_failed")
    too_much = {"adapter_detail": {"x": "y" * 17_000}}
    assert refusal(tenant.operator.patch(path, too_much)) == (400, "validation_error")


def test_a_project_reads_its_own_attachment_and_workers_only(tenant: Tenant) -> None:
    first, second = tenant.project(), tenant.project()
    paths = [tenant.attach(one, may_contribute=True) for one in (first, second)]
    tenant.contribute(first)
    worker = tenant.create_worker(first.allocation_ids[0])
    assert [one["project_id"] for one in tenant.items("attachments", first.operator)] == [first.project_id]
    assert [one["id"] for one in tenant.items("workers", first.operator)] == [worker["id"]]
    assert tenant.items("workers", second.operator) == tenant.items("worker-operations", second.operator) == []
    assert refusal(second.operator.get(paths[0])) == (404, "attachment_not_found")
    assert refusal(second.operator.get(f"{tenant.path}/workers/{worker['id']}")) == (404, "worker_not_found")
    assert len(tenant.items("workers")) == 2


def test_the_people_of_a_project_are_shown_on_its_attachment(tenant: Tenant) -> None:
    project, control = tenant.project(), tenant.platform.control
    control.set_identities(project.project_id, [{"subject": "u-1", "username": "ann", "ssh_keys": ["ssh-ed25519 A"]}])
    path = tenant.attach(project)
    read = tenant.operator.get(path)
    assert read.json()["identities"] == [
        {"subject": "u-1", "username": "ann", "uid": None, "gid": None, "ssh_keys": ["ssh-ed25519 A"]}
    ]
    control.set_identities(project.project_id, [{"subject": "u-2", "uid": 70_000, "gid": 70_000}])
    again = tenant.operator.get(path)
    assert [one["subject"] for one in again.json()["identities"]] == ["u-2"]
    assert again.headers["etag"] != read.headers["etag"]


def test_a_runtime_with_attached_projects_is_not_deleted(tenant: Tenant) -> None:
    project = tenant.project()
    path = tenant.attach(project)
    refused = tenant.admin.call("DELETE", tenant.path)
    assert refusal(refused) == (409, "attachments_exist")
    assert refused.json()["details"]["project_ids"] == [project.project_id]
    for client, status in ((tenant.admin, "detaching"), (tenant.operator, "detached")):
        assert client.patch(path, {"status": status}).status_code == 200
    assert tenant.admin.call("DELETE", tenant.path).status_code == 202
    late = tenant.admin.post(f"{tenant.path}/attachments", {"project_id": project.project_id})
    assert refusal(late) == (409, "invalid_transition")


def test_every_step_of_an_attachment_is_an_event_of_the_runtime(tenant: Tenant) -> None:
    project = tenant.project()
    path = tenant.attach(project)
    tenant.admin.patch(path, {"status": "suspended"}, x_correlation_id="c-7")
    events = tenant.items("events")[1:]
    assert [one["type"] for one in events] == [
        f"apps.attachment.{step}" for step in ("requested", "active", "suspended")
    ]
    assert {one["data"]["project_id"] for one in events} == {project.project_id}
    assert events[-1]["correlation_id"] == "c-7" and events[-1]["actor"]["actor_type"] == "user"


def test_a_project_is_detached_after_its_workers_are_gone(tenant: Tenant) -> None:
    project = tenant.project()
    attachment = tenant.attach(project, may_contribute=True)
    tenant.contribute(project, 0)
    worker = tenant.create_worker(project.allocation_ids[0])
    unclaimed = tenant.contribute(project, 1)["id"]
    body = {"status": "detaching", "detach_parameters": {"jobs": "wait"}}
    assert tenant.admin.patch(attachment, body).json()["detach_parameters"] == {"jobs": "wait"}
    assert tenant.admin.get(f"{tenant.path}/worker-operations/{unclaimed}").json()["status"] == "cancelled"
    early = tenant.operator.patch(attachment, {"status": "detached"})
    assert refusal(early) == (409, "invalid_transition")
    tenant.operator.patch(f"{tenant.path}/workers/{worker['id']}", {"status": "deleted"})
    assert tenant.operator.patch(attachment, {"status": "detached"}).json()["status"] == "detached"
    assert refusal(tenant.admin.patch(attachment, {"may_contribute": False})) == (409, "invalid_transition")
    assert tenant.attach(project) != attachment
    assert [one["status"] for one in tenant.items("attachments")] == ["detached", "active"]


def test_a_project_that_leaves_the_tenant_begins_to_detach(tenant: Tenant) -> None:
    project, control = tenant.project(), tenant.platform.control
    attachment = tenant.attach(project, may_contribute=True)
    tenant.contribute(project, 0)
    tenant.create_worker(project.allocation_ids[0])
    assert control.leave_tenant(project.project_id) != tenant.org_id
    shown, last = tenant.operator.get(attachment).json(), tenant.items("events")[-1]
    assert (shown["status"], last["type"], last["data"]["reason"]) == (
        "detaching",
        "apps.attachment.detaching",
        "project_left_tenant",
    )
    # Its people are out at once; the operator can still open the machine that it has to clean.
    assert refusal(project.operator.get(attachment)) == (403, "ownership_required")
    assert delivery(tenant, project.credential_id).status_code == 201
    assert [one["id"] for one in tenant.items(f"allocations?project_id={project.project_id}", tenant.operator)] == (
        project.allocation_ids[:1]
    )
    assert tenant.items(f"allocations?eligible=true&project_id={project.project_id}") == []
    with pytest.raises(RuntimeError, match="project_owns_runtime"):
        control.leave_tenant(tenant.owner.project_id)
