"""Neither the platform nor the core of the runner contains an app: one with other names works on both unchanged."""

import contextlib
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from runner.act import play_secrets
from runner.loop import run as loop
from runner.platform.client import Client
from tests.contract.shared_runtime import KEY
from tests.other_app import STUDIO
from tests.platform_process import ROOT, ApiClient, Doc, Platform, our_manifest, start_platform, stop_platform
from tests.runner_process import settings
from tests.tenant import Tenant

RENDER_FARM: dict[str, Any] = {
    "app_slug": "render-farm",
    "version": "7",
    "display_name": "Render farm",
    "runtime_backend": "easel",
    "operating_mode": "platform_managed",
    "control_plane_scope": "project",
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
    "shared_runtime": {
        "first_member": {"component_key": "director", "allocation_from": "placement_intent.patron"},
        "seed_operations": [],
        "contribution": {"operation": "lend", "component_key": "painter"},
        "withdrawal": {"operation": "fetch_back", "component_key": "painter"},
        "deploy_input": {"properties": {"placement_intent": {"required": ["patron"]}}},
        "attachment_policy": {"properties": {"colours": {"type": "array"}}, "additionalProperties": False},
    },
    "action_keys": {
        name: f"studio.{'look' if name.startswith(('get', 'list')) else 'paint'}"
        for name in our_manifest()["action_keys"]
    },
}


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform of its own: an app that is registered changes which action keys every call needs."""
    started = start_platform(tmp_path_factory.mktemp("farm"))
    started.control.register_app(RENDER_FARM)
    yield started
    broken = [row for row in started.control.violations() if row["side"] == "server"]
    stop_platform(started)
    assert broken == []


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


def test_made_up_app_is_shared_by_the_projects_of_a_tenant(farm: Platform) -> None:
    keys = ["studio.look", "studio.paint"]
    owner = farm.project(operator_keys=keys)
    lender = farm.project(operator_keys=keys, org_id=owner.org_id)
    admin = ApiClient(farm.base_url, farm.control.administrator_token(owner.org_id, "patron", keys))
    tenant = Tenant(farm, owner, admin)
    patron = {"patron": owner.allocation_ids[0]}
    tenant.deploy(app_slug="render-farm", app_version="7", placement_intent=patron, operator_keys=keys)
    (first,) = tenant.items("workers", tenant.operator)
    assert (first["component_key"], first["allocation_id"]) == ("director", owner.allocation_ids[0])

    attachment = tenant.attach(lender, may_contribute=True, app_policy={"colours": ["blue"]})
    refused = admin.patch(attachment, {"app_policy": {"partitions": ["main"]}})
    assert (refused.status_code, refused.json()["code"]) == (400, "validation_error")
    lend = tenant.contribution(lender, operation="lend", component_key="painter")
    made = lender.operator.post(f"{tenant.path}/worker-operations", lend)
    assert (made.status_code, made.json()["operation"]) == (201, "lend"), made.text
    body = {"component_key": "painter", "allocation_id": lender.allocation_ids[0]}
    painter = tenant.operator.post(f"{tenant.path}/workers", body).json()
    assert painter["source_project_id"] == lender.project_id
    back = {"operation": "fetch_back", "component_key": "painter", "member_ids": [painter["id"]]}
    assert lender.operator.post(f"{tenant.path}/worker-operations", back).status_code == 201


class Easels:
    """In place of ansible-runner: every host of the inventory reports that it paints."""

    def __init__(self) -> None:
        self.groups: list[dict[str, set[str]]] = []

    def run(self, *, inventory: Doc, limit: str, event_handler: Callable[[Doc], bool], **_: Any) -> Any:
        groups = inventory["all"]["children"]
        self.groups.append({name: set(groups[name]["hosts"]) for name in ("director", "painter")})
        event_handler({"event": "playbook_on_start", "event_data": {"playbook_uuid": "run"}})
        for host in limit.split(","):
            result = {"member_report": {"phase": "painting", "easel": f"easel of {host}"}}
            data = {"playbook_uuid": "run", "host": host, "task_action": "member_report", "res": result}
            event_handler({"event": "runner_on_ok", "event_data": data})
        return SimpleNamespace(status="successful", rc=0, stats={})


def test_the_runner_deploys_a_made_up_app_with_the_core_as_it_is(
    farm: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["studio.look", "studio.paint"]
    project = farm.project(adapter_keys=keys, operator_keys=keys)
    for number, one in enumerate(project.allocation_ids, 1):
        connection = {"host": f"198.51.100.{number}", "port": 22, "username": "ops", "host_keys": [KEY]}
        farm.control.put_allocation(project.project_id, one, connection=connection, gpus=0)
    director, painter = project.allocation_ids[:2]
    body = {
        "app_slug": "render-farm",
        "app_version": "7",
        "placement_intent": {"stage": {"director": director, "painters": [painter]}},
        "config": {"palette": "warm"},
        "access_credential_id": project.credential_id,
    }
    made = project.operator.post(f"{project.path}/app-instances", body).json()
    easels = Easels()
    monkeypatch.setattr("ansible_runner.run", easels.run)
    monkeypatch.setattr(play_secrets, "access", lambda *_: contextlib.nullcontext(play_secrets.Access({})))
    own = settings(project, app_slug="render-farm")
    with Client(own) as client:
        summary = loop.run(client, own, STUDIO)
    assert (summary.problems, summary.plays, summary.failed_operations) == ([], 1, 0)

    base = f"{project.path}/app-instances/{made['id']}"
    members = {one["component_key"]: one for one in project.operator.get(f"{base}/members").json()["items"]}
    names = {key: f"{key}-{one['id'].replace('-', '')[:8]}" for key, one in members.items()}
    assert easels.groups == [{key: {name} for key, name in names.items()}]
    assert {key: (one["status"], one["allocation_id"]) for key, one in members.items()} == {
        "director": ("ready", director),
        "painter": ("ready", painter),
    }
    assert {key: one["adapter_detail"]["easel"] for key, one in members.items()} == {
        key: f"easel of {name}" for key, name in names.items()
    }
    (hired,) = project.operator.get(f"{base}/member-operations").json()["items"]
    assert (hired["status"], project.operator.get(base).json()["status"]) == ("succeeded", "running")


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
    instance = project.deploy()
    token = farm.control.operator_token(project.project_id, "painter", ["studio.look", "studio.paint"])
    painter = ApiClient(farm.base_url, token)
    base = f"{project.path}/app-instances"
    assert painter.get(base).json()["items"] == []
    for path in (
        f"{base}/{instance['id']}",
        f"{base}/{instance['id']}/members",
        f"{base}?app_slug={instance['app_slug']}",
    ):
        assert painter.get(path).json()["code"] == "insufficient_permissions"
    assert [app["app_slug"] for app in painter.get("/apps").json()["items"]] == ["render-farm"]


def test_platform_code_contains_no_term_of_a_scheduler() -> None:
    """`worker` is a word of the platform's own API: a shared runtime has workers, whatever they do."""
    terms = re.compile(r"slurm|munge|scheduler|controller|drain", re.IGNORECASE)
    sources = sorted((ROOT / "sandbox" / "platform").rglob("*.py"))
    assert len(sources) > 20
    assert [
        f"{source.name}:{number}: {line}"
        for source in sources
        for number, line in enumerate(source.read_text().splitlines(), 1)
        if terms.search(line)
    ] == []
