"""Refused operations, over HTTP: each fails at once with its code, and no play is run for it."""

import uuid

import pytest

from tests.contract.simulated_hosts import Hosts, run_once
from tests.platform_process import Doc, Platform, Project


@pytest.fixture
def deployed(dialable: Project, hosts: Hosts) -> Doc:
    made = dialable.deploy(workers=2)
    assert run_once(dialable).problems == []
    assert dialable.shown(made)["status"] == "running"
    return made


CONTROLLER, WORKER, FREE = "controller", "worker", "free"
# Code, verb and component, and the members and allocations that the request names.
REFUSED = [
    ("second_controller", "add", CONTROLLER, [], [FREE]),
    ("controller_not_supported", "drain", CONTROLLER, [CONTROLLER], []),
    ("controller_not_supported", "remove", CONTROLLER, [CONTROLLER], []),
    ("controller_not_supported", "replace", CONTROLLER, [CONTROLLER], [FREE]),
    ("controller_not_supported", "drain", WORKER, [CONTROLLER], []),
    ("controller_not_supported", "remove", WORKER, [WORKER, CONTROLLER], []),
    ("controller_not_supported", "replace", WORKER, [CONTROLLER], [FREE]),
    ("operation_unknown", "levitate", WORKER, [WORKER], []),
    ("component_unknown", "add", "gateway", [], [FREE]),
    ("component_unknown", "remove", "gateway", [WORKER], []),
    ("allocations_required", "add", WORKER, [], []),
    ("allocations_required", "replace", WORKER, [WORKER], []),
    ("allocation_not_found", "add", WORKER, [], ["nowhere"]),
]


@pytest.mark.parametrize(("code", "verb", "component", "members", "allocations"), REFUSED)
def test_a_refused_operation_fails_at_once_and_runs_no_play(
    platform: Platform,
    dialable: Project,
    deployed: Doc,
    hosts: Hosts,
    code: str,
    verb: str,
    component: str,
    members: list[str],
    allocations: list[str],
) -> None:
    member_ids = {one["component_key"]: one["id"] for one in dialable.shown(deployed, "/members")}
    spare = {FREE: dialable.allocation_ids[6], "nowhere": str(uuid.uuid4())}
    body = {
        "operation": verb,
        "component_key": component,
        "member_ids": [member_ids[one] for one in members],
        "allocation_ids": [spare[one] for one in allocations],
    }
    path = f"{dialable.path}/app-instances/{deployed['id']}"
    asked = dialable.operator.post(f"{path}/member-operations", body)
    assert asked.status_code == 201, asked.text
    before = (dialable.shown(deployed), dialable.shown(deployed, "/members"), list(hosts.runs))
    mark = platform.control.requests()["last"]

    assert run_once(dialable).failed_operations == 1

    rows = platform.control.requests(mark)["requests"]
    written = [row["path"] for row in rows if row["method"] != "GET" and "/token" not in row["path"]]
    assert written == [f"/api/v1{path}/member-operations/{asked.json()['id']}"], "only its end is written"
    (ended,) = [one for one in dialable.shown(deployed, "/member-operations") if one["id"] == asked.json()["id"]]
    assert (ended["status"], ended["error"]["code"], ended["claimed_by"]) == ("failed", code, None)
    assert len(ended["error"]["message"]) > 20
    assert (dialable.shown(deployed), dialable.shown(deployed, "/members"), hosts.runs) == before


def test_an_unknown_verb_on_the_instance_is_refused_with_the_verbs_there_are(
    dialable: Project, deployed: Doc, hosts: Hosts
) -> None:
    path = f"{dialable.path}/app-instances/{deployed['id']}/operations"
    assert dialable.operator.post(path, {"operation": "levitate"}).status_code == 201
    before = (dialable.shown(deployed), list(hosts.runs))
    assert run_once(dialable).failed_operations == 1
    (ended,) = dialable.shown(deployed, "/operations")
    assert (ended["status"], ended["error"]["code"]) == ("failed", "operation_unknown")
    assert "decommission" in ended["error"]["message"]
    assert (dialable.shown(deployed), hosts.runs) == before


def test_of_two_open_adds_of_one_allocation_the_later_is_refused(
    dialable: Project, deployed: Doc, hosts: Hosts
) -> None:
    body = {"operation": "add", "component_key": "worker", "allocation_ids": [dialable.allocation_ids[6]]}
    path = f"{dialable.path}/app-instances/{deployed['id']}/member-operations"
    first, second = (dialable.operator.post(path, body).json()["id"] for _ in range(2))
    assert [run_once(dialable).failed_operations for _ in range(2)] == [1, 0]
    ended = {one["id"]: one for one in dialable.shown(deployed, "/member-operations")}
    assert ended[first]["status"] == "succeeded"
    assert (ended[second]["status"], ended[second]["error"]["code"]) == ("failed", "allocation_in_use")
    made = [one for one in dialable.shown(deployed, "/members") if one["allocation_id"] == dialable.allocation_ids[6]]
    assert [one["status"] for one in made] == ["ready"]
