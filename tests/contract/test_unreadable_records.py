"""Over HTTP: one record that is unreadable, or missing from a list."""

import json
import uuid
from typing import Any

import pytest
from structlog.testing import capture_logs

from runner.model.platform import NOT_FOUND
from runner.model.world import World
from runner.observe.world import observe
from runner.platform.client import Client
from runner.platform.evidence import GAP_LINE
from runner.slurm.app import SLURM
from tests.commands import ends
from tests.contract.simulated_hosts import Hosts, work
from tests.platform_process import Doc, Platform, Project
from tests.runner_process import environment, gpuaas_slurm, settings

ALWAYS = 1_000


def spoil(platform: Platform, path_regex: str, record: str, **fields: Any) -> None:
    """From now on the record has these fields in answers to GET; without fields it is not in its list."""
    body = {"id": record, "fields": fields} if fields else {"id": record}
    platform.control.inject_fault("spoil", path_regex, method="GET", times=ALWAYS, body=body)


def seen(project: Project, made: Doc) -> World:
    own = settings(project, api_patience_seconds=0.1)
    with Client(own) as client:
        return observe(client, client.instance(uuid.UUID(made["id"])), own, SLURM, everything=True)


@pytest.fixture
def deployed(dialable: Project, hosts: Hosts) -> Doc:
    made = dialable.deploy(workers=2)
    assert work(dialable) == []
    assert dialable.shown(made)["status"] == "running"
    hosts.runs.clear()
    return made


def workers(project: Project, made: Doc) -> list[Doc]:
    return [one for one in project.shown(made, "/members") if one["component_key"] == "worker"]


def member_of(project: Project, made: Doc, **changes: Any) -> Doc:
    """Create a worker that an earlier run left unfinished."""
    body = {"component_key": "worker", "allocation_id": project.allocation_ids[5], "status": "reconciling"} | changes
    answer = project.adapter.post(f"{project.path}/app-instances/{made['id']}/members", body)
    assert answer.status_code == 201, answer.text
    found: Doc = answer.json()
    return found


def test_a_decommission_waits_while_a_member_cannot_be_read(
    platform: Platform, dialable: Project, deployed: Doc, hosts: Hosts
) -> None:
    lost = workers(dialable, deployed)[0]
    spoil(platform, "/members$", lost["id"], status=7)
    path = f"{dialable.path}/app-instances/{deployed['id']}"
    assert dialable.operator.post(f"{path}/operations", {"operation": "decommission"}).status_code == 201
    before = platform.control.requests()["last"]
    assert work(dialable) == work(dialable) == []
    written = [row for row in platform.control.requests(before)["requests"] if row["method"] in ("PATCH", "POST")]
    assert {row["path"] for row in written if "/token" not in row["path"]} == {f"/api/v1{path}"}, "health alone"
    assert [book for _, book, _ in hosts.runs if book != "observe"] == []
    platform.control.clear_faults()
    instance, (operation,) = dialable.shown(deployed), dialable.shown(deployed, "/operations")
    assert (instance["status"], instance["health"], operation["status"]) == ("running", "degraded", "accepted")
    (reason,) = instance["status_detail"]["reasons"]
    assert (reason["code"], reason["kind"], reason["id"]) == ("record_unreadable", "member", lost["id"])
    assert work(dialable) == []
    assert dialable.shown(deployed)["status"] == "deleting", "it goes on once the record can be read"


def test_the_log_names_the_record(platform: Platform, dialable: Project) -> None:
    made = dialable.deploy(workers=1)
    (asked,) = dialable.shown(made, "/member-operations")
    spoil(platform, "/member-operations", asked["id"], correlation_id="not an id!")
    done = gpuaas_slurm(environment(dialable, GPUAAS_LOG_FORMAT="json"), "run")
    ends(done, 0)
    events = {line["event"]: line for line in map(json.loads, done.stderr.splitlines())}
    assert set(events) == {"record not readable", GAP_LINE, "held back", "report requested/unknown"}
    odd, held = events["record not readable"], events["held back"]
    assert (odd["kind"], odd["id"]) == ("member_operation", asked["id"])
    assert asked["id"] in held["why"] and "nothing is changed until it can be read" in held["why"]
    assert dialable.shown(made)["status"] == "requested"
    assert [one["status"] for one in dialable.shown(made, "/members")] == ["requested"]


def test_an_unreadable_instance_is_left_alone_and_a_deploy_beside_it_waits(
    platform: Platform, dialable: Project, hosts: Hosts
) -> None:
    lost = dialable.deploy(workers=0)
    dialable.allocation_ids = dialable.allocation_ids[4:]
    other = dialable.deploy(workers=0)
    spoil(platform, "/app-instances$", lost["id"], app_slug=7)
    with capture_logs() as logs:
        assert work(dialable) == work(dialable) == []
    assert {line["id"] for line in logs if line["event"] == "record not readable"} == {lost["id"]}
    platform.control.clear_faults()
    assert dialable.shown(lost)["status"] == "requested"
    assert [one["status"] for one in dialable.shown(lost, "/members")] == ["requested"]
    # The unreadable instance may use the machine, so even a new deploy beside it waits.
    assert dialable.shown(other)["status"] == "deploying" and hosts.runs == []
    assert work(dialable) == []
    assert dialable.shown(other)["status"] == "running"


def test_a_member_of_another_instance_in_the_list_counts_as_unreadable(
    platform: Platform, dialable: Project, deployed: Doc
) -> None:
    lost = workers(dialable, deployed)[0]["id"]
    spoil(platform, "/members$", lost, app_instance_id=str(uuid.uuid4()))
    (odd,) = seen(dialable, deployed).unreadable
    assert (odd.kind, odd.id) == ("member", lost) and "app_instance_id" in odd.problem


# -- operations that are not in the list -----------------------------------------------------------------------


def asked_for(project: Project, made: Doc) -> Doc:
    body = {"operation": "add", "component_key": "worker", "allocation_ids": [project.allocation_ids[5]]}
    answer = project.operator.post(f"{project.path}/app-instances/{made['id']}/member-operations", body)
    found: Doc = answer.json()
    member_of(project, made, adapter_detail={"operation_id": found["id"]})
    return found


def test_an_open_operation_that_the_list_leaves_out_is_found(
    platform: Platform, dialable: Project, deployed: Doc
) -> None:
    operation = asked_for(dialable, deployed)
    spoil(platform, "/member-operations$", operation["id"])
    world = seen(dialable, deployed)
    assert [str(one.id) for one in world.operations] == [operation["id"]] and world.unreadable == ()


def test_an_operation_that_was_cancelled_or_is_not_found_is_over(
    platform: Platform, dialable: Project, deployed: Doc
) -> None:
    operation = asked_for(dialable, deployed)
    member_of(dialable, deployed, adapter_detail={"operation_id": str(uuid.uuid4())})
    path = f"{dialable.path}/app-instances/{deployed['id']}/member-operations/{operation['id']}"
    assert dialable.operator.patch(path, {"status": "cancelled"}).status_code == 200
    world = seen(dialable, deployed)
    assert (world.operations, world.unreadable) == ((), ())


@pytest.mark.parametrize(
    "fault",
    [{"status": 403}, {"status": 500}, {"fields": {"parameters": 7}}, {"fields": {"id": str(uuid.UUID(int=9))}}],
)
def test_an_operation_that_cannot_be_read_is_neither_open_nor_over(
    platform: Platform, dialable: Project, deployed: Doc, fault: Doc
) -> None:
    operation = asked_for(dialable, deployed)
    if "fields" in fault:
        spoil(platform, f"/member-operations/{operation['id']}$", operation["id"], **fault["fields"])
    else:
        platform.control.inject_fault("status", f"/member-operations/{operation['id']}$", times=ALWAYS, **fault)
    spoil(platform, "/member-operations$", operation["id"])
    world = seen(dialable, deployed)
    assert [(one.kind, one.id) for one in world.unreadable] == [("member_operation", operation["id"])]


def test_an_instance_operation_under_way_is_asked_for_before_it_counts_as_over(
    platform: Platform, dialable: Project, deployed: Doc
) -> None:
    path = f"{dialable.path}/app-instances/{deployed['id']}"
    operation = dialable.operator.post(f"{path}/operations", {"operation": "stop"}).json()
    note = {"operation_id": operation["id"], "verb": "stop", "since": "2026-01-02T03:04:05Z", "verdict": None}
    assert dialable.adapter.patch(path, {"status_detail": {"lifecycle": note}}).status_code == 200
    spoil(platform, f"{deployed['id']}/operations$", operation["id"])
    assert [str(one.id) for one in seen(dialable, deployed).instance_operations] == [operation["id"]]
    assert all(one.of_instance for one in seen(dialable, deployed).instance_operations)
    platform.control.inject_fault("status", f"/operations/{operation['id']}$", times=ALWAYS, status=403)
    world = seen(dialable, deployed)
    assert [(one.kind, one.id) for one in world.unreadable] == [("instance_operation", operation["id"])]


# -- allocations that are not in the list ----------------------------------------------------------------------


@pytest.mark.parametrize("status", [403, 500])
def test_an_allocation_that_cannot_be_asked_for_is_unknown(
    platform: Platform, dialable: Project, deployed: Doc, status: int
) -> None:
    lost = workers(dialable, deployed)[0]["allocation_id"]
    spoil(platform, "/allocations$", lost)
    platform.control.inject_fault("status", f"/allocations/{lost}$", times=ALWAYS, status=status)
    world = seen(dialable, deployed)
    assert uuid.UUID(lost) not in world.allocations
    assert [str(one) for one in world.unknown_allocations] == [lost] and world.unreadable == ()


def test_an_allocation_that_the_list_leaves_out_is_found(platform: Platform, dialable: Project, deployed: Doc) -> None:
    lost = workers(dialable, deployed)[0]["allocation_id"]
    spoil(platform, "/allocations$", lost)
    before = platform.control.requests()["last"]
    world = seen(dialable, deployed)
    assert world.allocations[uuid.UUID(lost)].status == "active" and not world.unknown_allocations
    rows = platform.control.requests(before)["requests"]
    assert [row["path"].rpartition("/")[2] for row in rows if "/allocations/" in row["path"]] == [lost]


def test_an_allocation_of_which_the_platform_says_404_is_released(dialable: Project, deployed: Doc) -> None:
    gone = str(uuid.uuid4())
    member_of(dialable, deployed, allocation_id=gone, status="ready")
    member_of(dialable, deployed, allocation_id=str(uuid.uuid4()), status="deleted")
    world = seen(dialable, deployed)
    assert world.allocations[uuid.UUID(gone)].status == NOT_FOUND
    assert not world.unknown_allocations and len(world.allocations) == len(dialable.allocation_ids) + 1


def test_a_removal_on_an_allocation_that_cannot_be_read_waits(
    platform: Platform, dialable: Project, deployed: Doc, hosts: Hosts
) -> None:
    target = workers(dialable, deployed)[0]
    spoil(platform, "/allocations", target["allocation_id"], status=7)
    body = {"operation": "remove", "component_key": "worker", "member_ids": [target["id"]]}
    path = f"{dialable.path}/app-instances/{deployed['id']}/member-operations"
    assert dialable.operator.post(path, body).status_code == 201
    for _ in range(2):
        assert work(dialable, observe_seconds=0) == []
    platform.control.clear_faults()
    reasons = dialable.shown(deployed)["status_detail"]["reasons"]
    found = [(one["kind"], one["id"]) for one in reasons if one["code"] == "record_unreadable"]
    assert found == [("allocation", target["allocation_id"])]
    (member,) = [one for one in dialable.shown(deployed, "/members") if one["id"] == target["id"]]
    assert member["status"] == "deleting", "its node is drained, its host is not touched"
    assert "remove_worker" not in [book for _, book, _ in hosts.runs]


def test_a_quiet_tick_asks_for_the_list_and_the_open_operations_alone(
    platform: Platform, dialable: Project, deployed: Doc
) -> None:
    before = platform.control.requests()["last"]
    assert work(dialable) == []
    rows = [row["path"] for row in platform.control.requests(before)["requests"] if "/token" not in row["path"]]
    base = f"/api/v1{dialable.path}/app-instances"
    assert sorted(rows) == sorted(
        [base, f"{base}/{deployed['id']}/member-operations", f"{base}/{deployed['id']}/operations"]
    )
