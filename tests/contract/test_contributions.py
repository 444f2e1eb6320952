"""Contributions: machines and credentials that an attached project lends to a shared runtime."""

import uuid

import hvac
import pytest

from tests.platform_process import Doc
from tests.tenant import Tenant, delivery, new_tenant, refusal


def test_a_project_contributes_only_while_its_attachment_allows_it(tenant: Tenant) -> None:
    project, path = tenant.project(), f"{tenant.path}/worker-operations"
    body = tenant.contribution(project)
    attachment = tenant.attach(project, active=False)

    def denied() -> bool:
        return refusal(project.operator.post(path, body)) == (403, "contribution_not_allowed")

    assert denied()
    tenant.operator.patch(attachment, {"status": "active"})
    assert denied()
    tenant.admin.patch(attachment, {"may_contribute": True, "status": "suspended"})
    assert denied()
    tenant.admin.patch(attachment, {"status": "requested"})
    assert denied()
    tenant.operator.patch(attachment, {"status": "active"})
    made = project.operator.post(path, body)
    assert (made.status_code, made.json()["source_project_id"]) == (201, project.project_id)
    assert made.json()["access_credential_id"] == project.credential_id
    tenant.admin.patch(attachment, {"may_contribute": False})
    assert refusal(project.operator.post(path, tenant.contribution(project, 1))) == (403, "contribution_not_allowed")


def test_a_project_contributes_its_own_free_machines_and_nothing_else(tenant: Tenant) -> None:
    project, other = tenant.project(), tenant.project()
    for one in (project, other):
        tenant.attach(one, may_contribute=True)
    used = project.deploy(workers=0, begin=3)
    tenant.contribute(project, 0)
    for changes, status, code in (
        ({"allocation_ids": [other.allocation_ids[0]]}, 404, "allocation_not_found"),
        ({"allocation_ids": [tenant.owner.allocation_ids[3]]}, 404, "allocation_not_found"),
        ({"allocation_ids": [project.allocation_ids[0]]}, 409, "allocation_in_use"),
        ({"allocation_ids": [used["placement_intent"]["controller_allocation_id"]]}, 409, "allocation_in_use"),
        ({"access_credential_id": other.credential_id}, 404, "access_credential_not_found"),
        ({"member_ids": [str(uuid.uuid4())]}, 400, "validation_error"),
        ({"operation": "drain"}, 403, "ownership_required"),
        ({"component_key": "controller"}, 403, "ownership_required"),
    ):
        body = tenant.contribution(project, 1, **changes)
        assert refusal(project.operator.post(f"{tenant.path}/worker-operations", body)) == (status, code), changes
    incomplete = tenant.contribution(project, 1)
    del incomplete["access_credential_id"]
    answer = project.operator.post(f"{tenant.path}/worker-operations", incomplete)
    assert refusal(answer) == (400, "validation_error")


def test_a_project_withdraws_its_own_workers_only(tenant: Tenant) -> None:
    first, second = tenant.project(), tenant.project()
    workers = []
    for one in (first, second):
        tenant.attach(one, may_contribute=True)
        tenant.contribute(one)
        workers.append(tenant.create_worker(one.allocation_ids[0])["id"])
    (controller,) = [one["id"] for one in tenant.items("workers") if one["component_key"] == "controller"]
    body: Doc = {"operation": "remove", "component_key": "worker"}
    for ids in ([workers[1]], [controller], [*workers]):
        answer = first.operator.post(f"{tenant.path}/worker-operations", body | {"member_ids": ids})
        assert refusal(answer) == (404, "worker_not_found")
    made = first.operator.post(f"{tenant.path}/worker-operations", body | {"member_ids": workers[:1]})
    assert (made.status_code, made.json()["source_project_id"]) == (201, first.project_id)
    path = f"{tenant.path}/worker-operations/{made.json()['id']}"
    assert refusal(second.operator.patch(path, {"status": "cancelled"})) == (404, "worker_operation_not_found")
    assert refusal(first.operator.patch(path, {"status": "failed"})) == (403, "ownership_required")
    assert first.operator.patch(path, {"status": "cancelled"}).json()["status"] == "cancelled"


def test_the_operator_creates_workers_on_owned_or_contributed_machines(tenant: Tenant) -> None:
    project = tenant.project()
    tenant.attach(project, may_contribute=True)
    body = {"component_key": "worker", "allocation_id": project.allocation_ids[0]}
    assert refusal(tenant.operator.post(f"{tenant.path}/workers", body)) == (404, "allocation_not_found")
    asked = {"operation": "add", "component_key": "worker", "allocation_ids": [project.allocation_ids[0]]}
    assert refusal(tenant.admin.post(f"{tenant.path}/worker-operations", asked)) == (404, "allocation_not_found")
    tenant.contribute(project)
    worker = tenant.create_worker(project.allocation_ids[0])
    assert (worker["source_project_id"], worker["access_credential_id"]) == (project.project_id, project.credential_id)
    reserved = tenant.create_worker(tenant.owner.allocation_ids[2])
    assert (reserved["source_project_id"], reserved["access_credential_id"]) == (None, None)


def test_a_contributors_credential_is_delivered_from_contribution_to_withdrawal(tenant: Tenant) -> None:
    project, other = tenant.project(), new_tenant(tenant.platform)
    tenant.attach(project, may_contribute=True)
    missing = (404, "access_credential_not_found")
    assert refusal(delivery(tenant, project.credential_id)) == missing
    tenant.contribute(project)
    answer = delivery(tenant, project.credential_id)
    assert answer.status_code == 201 and "not-a-real-key" not in answer.text
    client = hvac.Client(url=answer.json()["vault_addr"], token=answer.json()["wrapping_token"])
    assert client.sys.unwrap()["data"]["private_key"] == "not-a-real-key"
    assert refusal(delivery(other, project.credential_id)) == missing
    worker = tenant.create_worker(project.allocation_ids[0])
    for status in ("ready", "draining", "deleting"):
        tenant.operator.patch(f"{tenant.path}/workers/{worker['id']}", {"status": status})
        assert delivery(tenant, project.credential_id).status_code == 201, status
    tenant.operator.patch(f"{tenant.path}/workers/{worker['id']}", {"status": "deleted"})
    assert refusal(delivery(tenant, project.credential_id)) == missing
    assert tenant.contribute(project)["status"] == "accepted"


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
def test_a_contribution_that_ends_without_a_worker_ends_its_grant(tenant: Tenant, ends: str) -> None:
    project = tenant.project()
    tenant.attach(project, may_contribute=True)
    path = f"{tenant.path}/worker-operations/{tenant.contribute(project)['id']}"
    client, body = {
        "cancelled": (project.operator, {"status": "cancelled"}),
        "failed": (tenant.operator, {"status": "failed", "error": {"code": "host_refused", "message": "no"}}),
    }[ends]
    assert client.patch(path, body).status_code == 200
    assert refusal(delivery(tenant, project.credential_id)) == (404, "access_credential_not_found")


def test_a_failed_contribution_with_a_worker_keeps_its_grant_for_the_cleanup(tenant: Tenant) -> None:
    project = tenant.project()
    tenant.attach(project, may_contribute=True)
    path = f"{tenant.path}/worker-operations/{tenant.contribute(project)['id']}"
    tenant.create_worker(project.allocation_ids[0], status="failed")
    tenant.operator.patch(path, {"status": "failed", "error": {"code": "disk_full", "message": "no"}})
    assert delivery(tenant, project.credential_id).status_code == 201


def test_only_credentials_bound_to_the_runtime_are_delivered(tenant: Tenant) -> None:
    control, owner, foreign = tenant.platform.control, tenant.owner, tenant.project()
    second, theirs = str(uuid.uuid4()), str(uuid.uuid4())
    control.put_credential(owner.project_id, second, username="reader", password="p")
    control.put_credential(foreign.project_id, theirs, username="reader", password="p")
    assert delivery(tenant, owner.credential_id).status_code == 201
    for unbound in (second, theirs, str(uuid.uuid4())):
        assert refusal(delivery(tenant, unbound)) == (404, "access_credential_not_found")
    for number, credential in enumerate((second, theirs)):
        rule = f"{tenant.org_id}-{number}"
        source = {"uri": "https://p.example", "credential_id": credential}
        control.put_artifact_rule(
            rule, scope="tenant", owner_id=tenant.org_id, effect="allow", artifact=f"a{number}", source=source
        )
        asked = tenant.operator.post(f"{tenant.path}/artifact-resolutions", {"artifact": f"a{number}"})
        assert (asked.json()["decision"], asked.json()["shared_runtime_id"]) == ("allow", tenant.runtime["id"])
        control.delete_artifact_rule(rule)
    assert delivery(tenant, second).status_code == 201
    assert refusal(delivery(tenant, theirs)) == (404, "access_credential_not_found")
    control.set_credential_status(owner.project_id, owner.credential_id, "revoked")
    assert refusal(delivery(tenant, owner.credential_id)) == (409, "access_credential_revoked")
    control.set_credential_status(owner.project_id, owner.credential_id, "active")
    tenant.admin.call("DELETE", tenant.path)
    assert delivery(tenant, owner.credential_id).status_code == 201
    tenant.operator.patch(tenant.path, {"status": "deleted"})
    assert refusal(delivery(tenant, owner.credential_id)) == (409, "invalid_transition")


def test_eligible_allocations_are_free_and_of_projects_that_may_contribute(tenant: Tenant) -> None:
    owner, giver, taker = tenant.owner, tenant.project(), tenant.project()
    tenant.attach(taker)
    attachment = tenant.attach(giver, may_contribute=True)
    tenant.platform.control.set_allocation_status(giver.project_id, giver.allocation_ids[3], "releasing")

    def of(query: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in tenant.items(f"allocations{query}", tenant.operator):
            assert one["connection"]["host"]
            found.setdefault(one["project_id"], []).append(one["id"])
        return found

    free = {owner.project_id: owner.allocation_ids[1:], giver.project_id: giver.allocation_ids[:3]}
    assert of("?eligible=true") == free
    assert of(f"?eligible=true&project_id={giver.project_id}") == {giver.project_id: giver.allocation_ids[:3]}
    assert of("") == {owner.project_id: owner.allocation_ids}
    tenant.contribute(giver)
    assert of("?eligible=true")[giver.project_id] == giver.allocation_ids[1:3]
    assert of("") == {owner.project_id: owner.allocation_ids, giver.project_id: giver.allocation_ids[:1]}
    tenant.admin.patch(attachment, {"status": "suspended"})
    assert giver.project_id not in of("?eligible=true") and giver.project_id in of("")
    for number, status in ((0, 200), (1, 404)):
        path = f"{tenant.path}/allocations/{giver.allocation_ids[number]}"
        assert tenant.operator.get(path).status_code == status
    first = tenant.operator.get(f"{tenant.path}/allocations?limit=2").json()
    rest = tenant.operator.get(f"{tenant.path}/allocations?limit=200&cursor={first['next_cursor']}").json()
    assert [one["id"] for one in first["items"] + rest["items"]] == owner.allocation_ids + giver.allocation_ids[:1]
