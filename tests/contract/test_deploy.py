"""Deploying: what the manifest declares happens at once, or not at all."""

import uuid
from typing import Any

import httpx
import pytest

from tests.platform_process import Platform, Project, our_manifest


def ask(project: Project, **changed: Any) -> httpx.Response:
    intent = {
        "mode": "split",
        "controller_allocation_id": project.allocation_ids[0],
        "worker_allocation_ids": project.allocation_ids[1:3],
    }
    body = {
        "app_slug": our_manifest()["app_slug"],
        "app_version": our_manifest()["version"],
        "placement_intent": intent | changed.pop("intent", {}),
        "access_credential_id": project.credential_id,
    }
    return project.operator.post(f"{project.path}/app-instances", body | changed, x_correlation_id="deploy-1")


def test_deploy_makes_instance_first_member_and_seed_with_one_correlation_id(project: Project) -> None:
    made = ask(project)
    assert made.status_code == 201
    instance = made.json()
    base = f"{project.path}/app-instances/{instance['id']}"
    members = project.adapter.get(f"{base}/members").json()["items"]
    seeds = project.adapter.get(f"{base}/member-operations?status=accepted").json()["items"]
    events = project.adapter.get(f"{base}/events").json()["items"]
    assert (instance["status"], instance["health"], instance["runtime_backend"]) == ("requested", "unknown", "slurm")
    assert [(m["component_key"], m["allocation_id"], m["status"]) for m in members] == [
        ("controller", project.allocation_ids[0], "requested")
    ]
    assert [(s["operation"], s["component_key"], s["allocation_ids"]) for s in seeds] == [
        ("add", "worker", project.allocation_ids[1:3])
    ]
    assert [event["type"] for event in events] == ["apps.instance.requested"]
    assert {one["correlation_id"] for one in (instance, *members, *seeds, *events)} == {"deploy-1"}


def test_deploy_without_workers_seeds_nothing(project: Project) -> None:
    base = f"{project.path}/app-instances/{ask(project, intent={'worker_allocation_ids': []}).json()['id']}"
    assert project.adapter.get(f"{base}/member-operations").json()["items"] == []


@pytest.mark.parametrize(
    ("changed", "status", "code"),
    [
        ({"intent": {"mode": "anywhere"}}, 400, "validation_error"),
        ({"intent": {"extra": 1}}, 400, "validation_error"),
        ({"config": {"cluster_name": "Bad Name;"}}, 400, "validation_error"),
        ({"intent": {"controller_allocation_id": str(uuid.uuid4())}}, 404, "allocation_not_found"),
        ({"intent": {"worker_allocation_ids": [str(uuid.uuid4())]}}, 404, "allocation_not_found"),
        ({"access_credential_id": str(uuid.uuid4())}, 404, "access_credential_not_found"),
        ({"operator_service_account_id": str(uuid.uuid4())}, 404, "service_account_not_found"),
        ({"app_slug": "no-such-app"}, 404, "app_not_found"),
        ({"app_version": "999"}, 404, "app_version_not_found"),
    ],
)
def test_deploy_that_cannot_work_is_refused_and_leaves_nothing(
    project: Project, changed: dict[str, Any], status: int, code: str
) -> None:
    refused = ask(project, **changed)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert project.operator.get(f"{project.path}/app-instances").json()["items"] == []


def test_allocation_of_another_project_is_not_there(platform: Platform, project: Project) -> None:
    other = platform.project()
    refused = ask(project, intent={"controller_allocation_id": other.allocation_ids[0]})
    assert (refused.status_code, refused.json()["code"]) == (404, "allocation_not_found")


def test_deploy_broken_off_before_its_commit_leaves_nothing(project: Project) -> None:
    project.platform.control.inject_fault("abort_transaction", "/app-instances$", method="POST")
    assert ask(project).status_code == 500
    assert project.operator.get(f"{project.path}/app-instances").json()["items"] == []


def test_instance_given_to_one_service_account_is_closed_to_another(project: Project) -> None:
    control = project.platform.control
    own_account = project.service_account["service_account_id"]
    base = f"{project.path}/app-instances/{ask(project, operator_service_account_id=own_account).json()['id']}"
    keys = ["scheduler.instance.update", "scheduler.instance.read"]
    other_account = control.create_service_account(project.project_id, "another", keys)
    adapter = project.adapter
    other_adapter = project.adapter
    other_adapter.token = project.fetch_token(**other_account)
    assert adapter.patch(base, {"health": "progressing"}).status_code == 200
    refused = other_adapter.patch(base, {"health": "healthy"})
    assert (refused.status_code, refused.json()["code"]) == (403, "ownership_required")


def test_catalog_shows_inputs_and_verbs(project: Project) -> None:
    slug = our_manifest()["app_slug"]
    app = project.operator.get(f"/apps/{slug}").json()
    assert app["deploy_input"] == our_manifest()["deploy_input"]
    assert slug in [one["app_slug"] for one in project.operator.get("/apps").json()["items"]]
    assert "action_keys" not in app
    assert project.operator.get("/apps/no-such-app").json()["code"] == "app_not_found"


def test_registering_the_same_manifest_again_changes_nothing(platform: Platform) -> None:
    assert platform.control.register_app(our_manifest()) == platform.control.register_app(our_manifest())


@pytest.mark.parametrize(
    "broken", [{"first_member": {}}, {"action_keys": 3}, {"more": 1}, {"deploy_input": {"type": 7}}]
)
def test_malformed_manifest_is_refused(platform: Platform, broken: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="400"):
        platform.control.register_app(our_manifest() | broken)


def test_an_artifact_deny_at_any_level_beats_an_allow_at_any_level(project: Project) -> None:
    control, adapter = project.platform.control, project.adapter
    base = f"{project.path}/app-instances/{ask(project).json()['id']}/artifact-resolutions"

    def resolve() -> tuple[str, str, Any]:
        answer = adapter.post(base, {"artifact": "debs/tool", "os": "debian-12"})
        assert answer.status_code == 201
        return answer.json()["decision"], answer.json()["rule"]["id"], answer.json()["source"]

    assert resolve() == ("deny", "default-deny", None)
    source = {"kind": "os"}
    control.put_artifact_rule("all", scope="global", effect="allow", artifact="debs/*", source=source)
    assert resolve() == ("allow", "all", source)
    control.put_artifact_rule(
        "tenant-no", scope="tenant", owner_id=project.org_id, effect="deny", artifact="debs/*", reason="frozen"
    )
    assert resolve() == ("deny", "tenant-no", None)
    control.put_artifact_rule(
        "project-yes", scope="project", owner_id=project.project_id, effect="allow", artifact="debs/tool", source=source
    )
    assert resolve() == ("deny", "tenant-no", None), "a project cannot allow what its tenant denies"
    control.delete_artifact_rule("tenant-no")
    assert resolve() == ("allow", "project-yes", source)
    control.put_artifact_rule("global-no", scope="global", effect="deny", artifact="debs/tool", reason="recalled")
    assert resolve() == ("deny", "global-no", None)
    control.delete_artifact_rule("all")
    control.delete_artifact_rule("global-no")
    assert [one["decision"] for one in adapter.get(base).json()["items"]] == [
        *("deny", "allow", "deny", "deny", "allow", "deny")
    ]


def test_usage_record_counts_once_and_must_describe_its_instance(project: Project) -> None:
    instance, adapter = ask(project).json(), project.adapter
    copied = ("org_id", "project_id", "app_slug", "operating_mode", "control_plane_scope", "runtime_backend")
    record = {name: instance[name] for name in copied} | {
        "record_id": "r-1",
        "app_instance_id": instance["id"],
        "correlation_id": "c",
        "usage_source": "app_runtime",
        "usage_unit": "gpu_hour",
        "quantity": 1.5,
        "period_start": "2026-01-01T00:00:00Z",
        "period_end": "2026-01-01T01:00:00Z",
    }
    path = f"{project.path}/usage-records"
    first, again = adapter.post(path, record), adapter.post(path, record)
    assert first.status_code == again.status_code == 201
    assert first.json()["id"] == again.json()["id"]
    assert adapter.post(path, record | {"quantity": 2}).json()["code"] == "usage_record_conflict"
    wrong = adapter.post(path, record | {"record_id": "r-2", "runtime_backend": "other"})
    assert wrong.json()["details"]["fields"] == ["runtime_backend"]
