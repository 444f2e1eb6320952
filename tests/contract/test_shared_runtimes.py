"""Shared runtimes of a tenant: identity, deploy, writes, secrets, and the instances that consume them."""

import uuid
from typing import Any

import hvac
import jwt
import pytest
from hvac import exceptions

from tests.platform_process import ApiClient, Platform, Project, our_manifest
from tests.tenant import LEASE, Tenant, new_tenant, refusal


def test_the_operators_token_has_its_runtime_and_no_project(tenant: Tenant) -> None:
    claims = jwt.decode(tenant.fetch_token(), options={"verify_signature": False})
    assert (claims["actor_type"], claims["org_id"]) == ("shared_runtime_operator", tenant.org_id)
    assert claims["shared_runtime_id"] == tenant.runtime["id"] and "scheduler.node.operate" in claims["scope"]
    names = {"sub", "actor_type", "org_id", "shared_runtime_id", "scope", "aud", "iss", "iat", "exp", "jti"}
    assert set(claims) == names


def test_a_key_gets_a_token_only_where_it_belongs(tenant: Tenant, project: Project) -> None:
    anonymous, key, account = ApiClient(tenant.platform.base_url, None), tenant.key, project.service_account
    runtime_path, account_path = "/auth/shared-runtime-operator/token", "/auth/service-account/token"
    mixed = {"key_id": account["key_id"], "client_secret": account["client_secret"]}
    for path, body in (
        (runtime_path, {**key, "client_secret": "wrong"}),
        (runtime_path, {**key, "shared_runtime_id": str(uuid.uuid4())}),
        (runtime_path, {"shared_runtime_id": tenant.runtime["id"], **mixed}),
        (account_path, {"service_account_id": tenant.runtime["id"], **key} | {"shared_runtime_id": None}),
    ):
        sent = {name: value for name, value in body.items() if value is not None}
        assert refusal(anonymous.post(path, sent, idempotency_key=None)) == (401, "token_invalid")


def test_missing_action_keys_close_a_runtimes_calls_too(tenant: Tenant) -> None:
    token = tenant.platform.control.administrator_token(tenant.org_id, "reader", ["scheduler.instance.read"])
    reader = ApiClient(tenant.platform.base_url, token)
    assert reader.get(tenant.path).status_code == 200
    answer = reader.post(f"{tenant.path}/operations", {"operation": "stop"})
    assert refusal(answer) == (403, "insufficient_permissions")


def test_a_deploy_creates_the_first_worker_and_the_seeded_operations(tenant: Tenant) -> None:
    runtime, first = tenant.runtime, tenant.owner.allocation_ids[0]
    assert (runtime["control_plane_scope"], runtime["status"]) == ("tenant", "requested")
    assert runtime["owner_project_id"] == tenant.owner.project_id and "project_id" not in runtime
    (worker,) = tenant.items("workers", tenant.operator)
    (seeded,) = tenant.items("worker-operations", tenant.operator)
    (event,) = tenant.items("events", tenant.operator)
    assert (worker["component_key"], worker["allocation_id"], worker["source_project_id"]) == (
        "controller",
        first,
        None,
    )
    assert (seeded["operation"], seeded["allocation_ids"]) == ("add", tenant.owner.allocation_ids[1:2])
    assert (event["type"], event["shared_runtime_id"]) == ("apps.instance.requested", runtime["id"])
    assert {one["correlation_id"] for one in (worker, seeded, event)} == {runtime["correlation_id"]}


def test_a_tenant_has_one_runtime_of_an_app_until_it_is_deleted(tenant: Tenant) -> None:
    again = tenant.admin.post(tenant.runtimes, tenant.request())
    assert refusal(again) == (409, "shared_runtime_exists") and again.json()["details"]["id"] == tenant.runtime["id"]
    assert tenant.admin.call("DELETE", tenant.path).json()["status"] == "deleting"
    assert refusal(tenant.admin.post(tenant.runtimes, tenant.request())) == (409, "shared_runtime_exists")
    assert tenant.operator.patch(tenant.path, {"status": "deleted"}).status_code == 200
    assert tenant.admin.post(tenant.runtimes, tenant.request()).status_code == 201
    assert [one["status"] for one in tenant.admin.get(tenant.runtimes).json()["items"]] == ["deleted", "requested"]


def test_a_runtime_is_deployed_with_what_its_owner_has(platform: Platform) -> None:
    tenant = new_tenant(platform, deployed=False)
    other, foreign = tenant.project(), platform.project()
    intent = tenant.request()["placement_intent"]
    elsewhere = intent | {"worker_allocation_ids": [other.allocation_ids[0]]}
    users = {"users": [{"name": "ann", "uid": 2000}]}
    for changes, status, code in (
        ({"placement_intent": elsewhere}, 404, "allocation_not_found"),
        ({"access_credential_id": other.credential_id}, 404, "access_credential_not_found"),
        ({"owner_project_id": foreign.project_id}, 404, "project_not_found"),
        ({"config": users}, 400, "validation_error"),
        ({"app_version": "0"}, 404, "app_version_not_found"),
    ):
        assert refusal(tenant.admin.post(tenant.runtimes, tenant.request(**changes))) == (status, code)
    assert tenant.admin.get(tenant.runtimes).json()["items"] == []


def test_an_app_without_shared_runtimes_is_refused(platform: Platform) -> None:
    manifest = {name: value for name, value in our_manifest().items() if name != "shared_runtime"}
    platform.control.register_app(manifest | {"app_slug": "lonely"})
    tenant = new_tenant(platform, deployed=False)
    answer = tenant.admin.post(tenant.runtimes, tenant.request(app_slug="lonely"))
    assert refusal(answer) == (400, "validation_error")
    assert tenant.admin.get("/apps/lonely").json()["shared_runtime"] is None
    assert "attachment_policy" in tenant.admin.get("/apps/slurm-reference").json()["shared_runtime"]


def test_the_operator_writes_status_and_the_administrator_the_config(tenant: Tenant) -> None:
    config = {"config": {"slurm": {"MinJobAge": 120}}}
    assert refusal(tenant.operator.patch(tenant.path, config)) == (403, "ownership_required")
    assert refusal(tenant.admin.patch(tenant.path, {"health": "healthy"})) == (403, "ownership_required")
    read = tenant.operator.get(tenant.path)
    assert tenant.admin.patch(tenant.path, config).json()["config"] == config["config"]
    stale = tenant.operator.patch(tenant.path, {"health": "healthy"}, if_match=read.headers["etag"])
    assert refusal(stale) == (412, "precondition_failed")
    assert refusal(tenant.admin.patch(tenant.path, {"config": {"users": []}})) == (400, "validation_error")


def test_claims_leases_replays_faults_and_audit_are_those_of_instances(tenant: Tenant) -> None:
    control = tenant.platform.control
    (seeded,) = tenant.items("worker-operations")
    path = f"{tenant.path}/worker-operations/{seeded['id']}"
    control.inject_fault("abort_transaction", seeded["id"], method="PATCH")
    assert refusal(tenant.operator.patch(path, LEASE)) == (500, "internal_error")
    key = str(uuid.uuid4())
    claimed = tenant.operator.patch(path, LEASE, idempotency_key=key, x_correlation_id="c-9")
    assert (claimed.json()["attempt"], claimed.json()["status"]) == (1, "running")
    assert tenant.operator.patch(path, LEASE, idempotency_key=key).headers["idempotent-replayed"] == "true"
    row = control.audit()[-1]
    assert (row["actor_type"], row["action"], row["object_id"], row["correlation_id"]) == (
        "shared_runtime_operator",
        "updateWorkerOperation",
        seeded["id"],
        "c-9",
    )
    other = tenant.operator.patch(path, LEASE | {"claimed_by": "runner-2"})
    assert refusal(other) == (409, "lease_held")
    assert refusal(tenant.operator.patch(path, {"status": "failed"})) == (400, "validation_error")


def test_a_runtimes_vault_role_opens_its_one_path(tenant: Tenant) -> None:
    other = new_tenant(tenant.platform)
    role = tenant.platform.control.create_runtime_approle(tenant.runtime["id"])
    client = hvac.Client(url=tenant.platform.base_url)
    client.auth.approle.login(role_id=role["role_id"], secret_id=role["secret_id"])
    kv, own = client.secrets.kv.v2, f"orgs/{tenant.org_id}/shared-app-runtimes/{tenant.runtime['id']}"
    assert role["path"] == own
    kv.create_or_update_secret(path=own, secret={"key": "value"}, cas=0)
    assert kv.read_secret_version(path=own, raise_on_deleted_version=True)["data"]["data"] == {"key": "value"}
    for path in (
        f"{own}/more",
        f"orgs/{other.org_id}/shared-app-runtimes/{other.runtime['id']}",
        f"projects/{tenant.owner.project_id}/app-instances/{uuid.uuid4()}",
    ):
        with pytest.raises(exceptions.Forbidden):
            kv.create_or_update_secret(path=path, secret={"key": "value"})
    for role in (
        tenant.platform.control.create_approle(tenant.owner.project_id),
        tenant.platform.control.create_runtime_approle(other.runtime["id"]),
    ):
        client.auth.approle.login(role_id=role["role_id"], secret_id=role["secret_id"])
        with pytest.raises(exceptions.Forbidden):
            kv.read_secret_version(path=own, raise_on_deleted_version=True)


def consume(project: Project, **more: Any) -> Any:
    manifest = our_manifest()
    body = {"app_slug": manifest["app_slug"], "app_version": manifest["version"], "control_plane_scope": "tenant"}
    return project.operator.post(f"{project.path}/app-instances", body | more)


def test_a_consumer_has_no_members_and_follows_its_attachment(tenant: Tenant) -> None:
    project = tenant.project()
    attachment = tenant.attach(project, active=False)
    made = consume(project).json()
    base = f"{project.path}/app-instances/{made['id']}"
    assert (made["shared_runtime_id"], made["status"]) == (tenant.runtime["id"], "requested")
    assert project.shown(made, "/members") == project.shown(made, "/member-operations") == []
    access = {"access": {"ssh": "h"}, "health": "degraded", "status": "active"}
    tenant.operator.patch(attachment, access)
    shown = project.shown(made)
    assert (shown["status"], shown["health"], shown["access"]) == ("running", "degraded", {"ssh": "h"})
    for step, status in (("suspended", "stopped"), ("detaching", "deleting")):
        tenant.admin.patch(attachment, {"status": step})
        assert project.shown(made)["status"] == status
    operation = {"operation": "add", "component_key": "worker", "allocation_ids": project.allocation_ids[:1]}
    for answer in (
        project.operator.post(f"{base}/member-operations", operation),
        project.operator.post(f"{base}/operations", {"operation": "stop"}),
        project.adapter.post(
            f"{base}/members", {"component_key": "worker", "allocation_id": project.allocation_ids[0]}
        ),
    ):
        assert refusal(answer) == (409, "instance_is_consumer")
    for patch in (project.adapter.patch(base, {"health": "healthy"}), project.operator.patch(base, {"config": {}})):
        assert refusal(patch) == (403, "ownership_required")
    tenant.operator.patch(attachment, {"status": "detached"})
    assert project.shown(made)["status"] == "deleted"


def test_a_consumer_needs_an_attachment_and_takes_no_machines(tenant: Tenant) -> None:
    project = tenant.project()
    assert refusal(consume(project)) == (404, "attachment_not_found")
    tenant.attach(project)
    assert refusal(consume(project, placement_intent={})) == (400, "validation_error")
    assert refusal(consume(project, access_credential_id=project.credential_id)) == (400, "validation_error")
    made = consume(project).json()
    assert (made["status"], made["health"]) == ("running", "healthy")
    gone = project.operator.call("DELETE", f"{project.path}/app-instances/{made['id']}")
    assert (gone.status_code, gone.json()["status"]) == (202, "deleted")
    assert [one["status"] for one in tenant.items("attachments")] == ["active"]
