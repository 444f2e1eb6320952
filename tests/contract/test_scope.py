"""Instances of a scope that this adapter does not serve, over HTTP: no play, and at most one report."""

import json
import uuid

import pytest

from tests.commands import ends
from tests.contract.simulated_hosts import Hosts, work
from tests.platform_process import ApiClient, Doc, Platform, Project, our_manifest, person_keys
from tests.runner_process import environment, gpuaas_slurm
from tests.tenant import Tenant

SCOPED = ("operating_mode", "control_plane_scope", "runtime_backend")


def deploy(project: Project, **scope: str) -> Doc:
    """Deploy an app like ours with another scope, as another team could register it."""
    slug = f"slurm-{uuid.uuid4().hex[:8]}"
    manifest = {**our_manifest(), "app_slug": slug, **scope}
    project.platform.control.register_app(manifest)
    body: Doc = {"app_slug": slug, "app_version": manifest["version"]}
    if manifest["control_plane_scope"] == "tenant":
        attach(project, slug)
    else:
        first, *workers = project.allocation_ids[:2]
        intent = {"mode": "split", "controller_allocation_id": first, "worker_allocation_ids": workers}
        body |= {"placement_intent": intent, "config": {}, "access_credential_id": project.credential_id}
    answer = project.operator.post(f"{project.path}/app-instances", body)
    assert answer.status_code == 201, answer.text
    made: Doc = answer.json()
    return made


def attach(project: Project, slug: str) -> None:
    """Attach the project to a shared runtime of this app, deployed on its own machines."""
    token = project.platform.control.administrator_token(project.org_id, "administrator", person_keys())
    tenant = Tenant(project.platform, project, ApiClient(project.platform.base_url, token))
    tenant.deploy(app_slug=slug)
    tenant.attach(project, active=False)


def writes(project: Project, since: int) -> list[Doc]:
    rows: list[Doc] = project.platform.control.requests(since)["requests"]
    return [row for row in rows if row["method"] != "GET" and "/token" not in row["path"]]


def held_back(log: str) -> str:
    (line,) = [line for line in map(json.loads, log.splitlines()) if line["event"] == "held back"]
    return str(line["why"])


@pytest.mark.parametrize(
    "scope",
    [
        {"operating_mode": "platform_managed"},
        {"operating_mode": "platform_managed", "control_plane_scope": "platform"},
        {"control_plane_scope": "platform"},
        {"runtime_backend": "kubernetes"},
    ],
    ids=lambda scope: "-".join(scope.values()),
)
def test_a_known_scope_that_is_not_served_fails_once_with_the_three_values(
    dialable: Project, hosts: Hosts, scope: Doc
) -> None:
    made = deploy(dialable, **scope)
    assert work(dialable, app_slug=made["app_slug"]) == []
    mark = dialable.platform.control.requests()["last"]
    assert work(dialable, app_slug=made["app_slug"]) == []
    assert writes(dialable, mark) == [] and hosts.runs == []
    instance, operations = dialable.shown(made), dialable.shown(made, "/member-operations")
    (reason,) = instance["status_detail"]["reasons"]
    assert (instance["status"], reason["code"]) == ("failed", "scope_not_served")
    assert all(f"{name} {made[name]!r}" in reason["message"] for name in SCOPED)
    assert [(one["status"], one["error"]["code"]) for one in operations] == [("failed", "scope_not_served")]
    kinds = [event["type"] for event in dialable.shown(made, "/events")]
    assert kinds == ["apps.instance.requested", "apps.instance.failed"]


def test_an_instance_attached_to_a_tenants_control_plane_is_left_alone(dialable: Project, hosts: Hosts) -> None:
    made = deploy(dialable, control_plane_scope="tenant")
    mark = dialable.platform.control.requests()["last"]
    done = gpuaas_slurm(environment(dialable, GPUAAS_APP_SLUG=made["app_slug"], GPUAAS_LOG_FORMAT="json"), "run")
    ends(done, 0)
    why = held_back(done.stderr)
    assert "it uses a tenant's shared runtime" in why and all(f"{name} {made[name]!r}" in why for name in SCOPED)
    assert writes(dialable, mark) == [] and dialable.shown(made)["status"] == "requested"


@pytest.mark.parametrize(
    "fields", [{"operating_mode": "quantum"}, {"control_plane_scope": None}, {"runtime_backend": None}], ids=str
)
def test_a_scope_that_is_not_known_is_left_alone(platform: Platform, dialable: Project, fields: Doc) -> None:
    made = dialable.deploy(workers=1)
    platform.control.inject_fault(
        "spoil", "/app-instances", method="GET", times=1_000, body={"id": made["id"], "fields": fields}
    )
    mark = platform.control.requests()["last"]
    done = gpuaas_slurm(environment(dialable, GPUAAS_LOG_FORMAT="json"), "run")
    ends(done, 0)
    given = {name: "not given" if value is None else repr(value) for name, value in (made | fields).items()}
    why = held_back(done.stderr)
    assert "this scope is not known" in why and all(f"{name} {given[name]}" in why for name in SCOPED)
    assert writes(dialable, mark) == []


def test_a_running_cluster_that_shows_another_scope_is_left_as_it_is(
    platform: Platform, dialable: Project, hosts: Hosts
) -> None:
    made = dialable.deploy(workers=1)
    assert work(dialable, app_slug=made["app_slug"]) == [] and dialable.shown(made)["status"] == "running"
    body = {"operation": "add", "component_key": "worker", "allocation_ids": [dialable.allocation_ids[4]]}
    path = f"{dialable.path}/app-instances/{made['id']}/member-operations"
    assert dialable.operator.post(path, body).status_code == 201
    fields = {"operating_mode": "platform_managed"}
    platform.control.inject_fault(
        "spoil", "/app-instances", method="GET", times=1_000, body={"id": made["id"], "fields": fields}
    )
    played, mark = len(hosts.runs), platform.control.requests()["last"]
    assert work(dialable, app_slug=made["app_slug"]) == []
    assert writes(dialable, mark) == [] and len(hosts.runs) == played
    platform.control.clear_faults()
    assert work(dialable, app_slug=made["app_slug"]) == []
    assert dialable.shown(made, "/member-operations")[-1]["status"] == "succeeded"
