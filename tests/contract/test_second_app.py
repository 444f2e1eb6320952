"""The platform is nobody's: an app with other names for everything works on it, untouched."""

import re
from typing import Any

import pytest

from tests.platform_process import ROOT, ApiClient, Platform, our_manifest

RENDER_FARM: dict[str, Any] = {
    "app_slug": "render-farm",
    "version": "7",
    "display_name": "Render farm",
    "runtime_backend": "easel",
    "operating_mode": "platform_managed",
    "control_plane_scope": "tenant",
    "first_member": {"component_key": "director", "allocation_from": "placement_intent.stage.director"},
    "seed_operations": [
        {"operation": "hire", "component_key": "painter", "allocations_from": "placement_intent.stage.painters"}
    ],
    "instance_operations": ["varnish"],
    "member_operations": {"director": [], "painter": ["hire", "dismiss"]},
    "deploy_input": {
        "type": "object",
        "properties": {
            "placement_intent": {
                "type": "object",
                "required": ["stage"],
                "properties": {"stage": {"type": "object", "required": ["director"]}},
            },
            "config": {"type": "object", "properties": {"palette": {"enum": ["warm", "cold"]}}},
        },
    },
    "action_keys": {
        name: f"studio.{'look' if name.startswith(('get', 'list')) else 'paint'}"
        for name in our_manifest()["action_keys"]
    },
}


@pytest.fixture
def farm(platform: Platform) -> Platform:
    platform.control.register_app(RENDER_FARM)
    return platform


def test_made_up_app_is_deployed_and_operated_by_its_own_names(farm: Platform) -> None:
    keys = ["studio.look", "studio.paint"]
    project = farm.project(adapter_keys=keys, operator_keys=keys)
    director, painter, newcomer = project.allocation_ids[:3]
    made = project.operator.post(
        f"{project.path}/app-instances",
        {
            "app_slug": "render-farm",
            "app_version": "7",
            "placement_intent": {"stage": {"director": director, "painters": [painter]}},
            "config": {"palette": "warm"},
            "access_credential_id": project.credential_id,
        },
    )
    assert made.status_code == 201, made.text
    assert (made.json()["runtime_backend"], made.json()["operating_mode"]) == ("easel", "platform_managed")
    base = f"{project.path}/app-instances/{made.json()['id']}"
    adapter = project.adapter
    first = adapter.get(f"{base}/members").json()["items"][0]
    seeded = adapter.get(f"{base}/member-operations").json()["items"][0]
    assert (first["component_key"], first["allocation_id"]) == ("director", director)
    assert (seeded["operation"], seeded["component_key"], seeded["allocation_ids"]) == ("hire", "painter", [painter])

    lease = {"status": "running", "claimed_by": "studio-1", "lease_expires_at": "2099-01-01T00:00:00Z"}
    assert adapter.patch(f"{base}/member-operations/{seeded['id']}", lease).status_code == 200
    detail = {"mood": ["blue", None, {"depth": 3.5}], "brush": True, "phase": "sketching"}
    member = adapter.post(
        f"{base}/members", {"component_key": "painter", "allocation_id": painter, "adapter_detail": detail}
    ).json()
    assert adapter.get(f"{base}/members/{member['id']}").json()["adapter_detail"] == detail
    done = {"status": "succeeded", "result": {member["id"]: "hired"}}
    assert adapter.patch(f"{base}/member-operations/{seeded['id']}", done).json()["status"] == "succeeded"
    hire = {"operation": "hire", "component_key": "painter", "allocation_ids": [newcomer]}
    assert project.operator.post(f"{base}/member-operations", hire).status_code == 201
    assert project.operator.post(f"{base}/operations", {"operation": "varnish"}).status_code == 201
    assert (
        adapter.patch(base, {"status": "running", "health": "healthy", "access": {"door": "left"}}).status_code == 200
    )


def test_made_up_apps_input_is_checked_by_its_own_schema(farm: Platform) -> None:
    project = farm.project(operator_keys=["studio.look", "studio.paint"])
    body = {
        "app_slug": "render-farm",
        "app_version": "7",
        "placement_intent": {"stage": {"director": project.allocation_ids[0]}},
        "config": {"palette": "plaid"},
        "access_credential_id": project.credential_id,
    }
    answer = project.operator.post(f"{project.path}/app-instances", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "validation_error")


def test_keys_of_one_app_open_nothing_of_the_other(farm: Platform) -> None:
    project = farm.project()
    ours = project.deploy()
    token = farm.control.operator_token(project.project_id, "painter", ["studio.look", "studio.paint"])
    stranger = ApiClient(farm.base_url, token)
    base = f"{project.path}/app-instances"
    assert stranger.get(base).json()["items"] == []
    for path in (f"{base}/{ours['id']}", f"{base}/{ours['id']}/members", f"{base}?app_slug={ours['app_slug']}"):
        assert stranger.get(path).json()["code"] == "insufficient_permissions"
    assert [app["app_slug"] for app in stranger.get("/apps").json()["items"]] == ["render-farm"]


def test_platform_code_contains_no_word_of_a_scheduler() -> None:
    words = re.compile(r"slurm|munge|scheduler|controller|worker|drain", re.IGNORECASE)
    sources = sorted((ROOT / "sandbox" / "platform").rglob("*.py"))
    assert len(sources) > 20
    assert [
        f"{source.name}:{number}: {line}"
        for source in sources
        for number, line in enumerate(source.read_text().splitlines(), 1)
        if words.search(line)
    ] == []
