"""Entitlement and placement policy of the platform: what is not allowed is refused by name, and no host is touched."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.simulated_hosts import Hosts, work
from tests.platform_process import Doc, Project, our_manifest
from tests.runner_process import answer, environment

SLUG = our_manifest()["app_slug"]
GONE = {"code": "route_not_found", "message": "no such path"}


def entitle(project: Project, status: str, **limits: list[str]) -> None:
    policy = {"regions": None, "skus": None} | limits
    project.platform.control.put_entitlement(project.project_id, SLUG, status, policy)


def put_allocation(project: Project, number: int, **place: str) -> None:
    """A machine of the project in another region, or of another SKU."""
    path = f"{project.path}/allocations/{project.allocation_ids[number]}"
    seen = project.operator.get(path).json()
    kept = {name: seen[name] for name in ("status", "connection", "name", "gpus")} | {"region": "local", "sku": "cpu-2"}
    project.platform.control.put_allocation(project.project_id, seen["id"], **(kept | place))


def request(project: Project, made: Doc, verb: str = "add", number: int = 3, **more: Any) -> None:
    body = {"operation": verb, "component_key": "worker", "allocation_ids": [project.allocation_ids[number]], **more}
    answered = project.operator.post(f"{project.path}/app-instances/{made['id']}/member-operations", body)
    assert answered.status_code == 201, answered.text


def refusal(project: Project, made: Doc) -> tuple[str, str]:
    ended = project.shown(made, "/member-operations")[-1]
    assert ended["status"] == "failed"
    return ended["error"]["code"], ended["error"]["message"]


def worker_of(project: Project, made: Doc) -> str:
    return next(str(one["id"]) for one in project.shown(made, "/members") if one["component_key"] == "worker")


@pytest.fixture
def running(dialable: Project, hosts: Hosts) -> Doc:
    """A cluster with one worker, before anything is denied."""
    made = dialable.deploy(workers=1)
    assert work(dialable) == work(dialable) == []
    assert dialable.shown(made)["health"] == "healthy"
    hosts.runs.clear()
    return made


def test_a_deploy_whose_entitlement_ended_fails_and_touches_no_host(dialable: Project, hosts: Hosts) -> None:
    made = dialable.deploy(workers=1)
    entitle(dialable, "disabled")
    assert "deploy only where policy allows" in {row["rule"] for row in answer(environment(dialable), "plan")}
    assert work(dialable) == [] and hosts.runs == []
    assert dialable.shown(made)["status"] == "failed"
    (controller,) = dialable.shown(made, "/members")
    error = controller["adapter_detail"]["last_adapter_error"]
    assert (controller["status"], error["code"], error["class"]) == ("failed", "not_entitled", "intervention")
    assert "is disabled" in error["message"]
    assert refusal(dialable, made)[0] == "not_entitled"


def test_a_failed_deploy_is_tried_again_once_the_project_is_entitled(dialable: Project, hosts: Hosts) -> None:
    made = dialable.deploy(workers=0)
    entitle(dialable, "disabled")
    assert work(dialable) == []
    operations = f"{dialable.path}/app-instances/{made['id']}/operations"
    assert dialable.operator.post(operations, {"operation": "retry"}).status_code == 201
    assert work(dialable) == [] and hosts.runs == []
    (first,) = dialable.shown(made, "/operations")
    assert (first["status"], first["error"]["code"]) == ("failed", "not_entitled")
    entitle(dialable, "enabled")
    assert dialable.operator.post(operations, {"operation": "retry"}).status_code == 201
    assert work(dialable) == []
    assert dialable.shown(made)["status"] == "running"


@pytest.mark.parametrize(
    ("limits", "code"), [({"regions": ["elsewhere"]}, "region_denied"), ({"skus": ["cpu-64"]}, "sku_denied")]
)
def test_a_deploy_outside_of_the_policy_names_the_list(
    dialable: Project, hosts: Hosts, limits: dict[str, list[str]], code: str
) -> None:
    entitle(dialable, "enabled", **limits)
    made = dialable.deploy(workers=0)
    assert work(dialable) == [] and hosts.runs == []
    (reason,) = dialable.shown(made)["status_detail"]["reasons"]
    ((field, allowed),) = limits.items()
    assert reason["code"] == code and f"effective_policy.{field} allows {allowed[0]}" in reason["message"]


@pytest.mark.parametrize("verb", ["add", "replace"])
@pytest.mark.parametrize(
    ("deny", "code"),
    [
        (lambda project: entitle(project, "disabled"), "not_entitled"),
        (lambda project: put_allocation(project, 3, region="elsewhere"), "region_denied"),
        (lambda project: put_allocation(project, 3, sku="cpu-64"), "sku_denied"),
    ],
)
def test_a_machine_that_is_not_allowed_is_refused_and_the_cluster_runs_on(
    dialable: Project, hosts: Hosts, running: Doc, deny: Callable[[Project], None], code: str, verb: str
) -> None:
    put_allocation(dialable, 3)
    entitle(dialable, "enabled", regions=["local"], skus=["cpu-2"])
    deny(dialable)
    targets: Doc = {"member_ids": [worker_of(dialable, running)]} if verb == "replace" else {}
    request(dialable, running, verb, **targets)
    assert work(dialable) == []
    assert {playbook for _, playbook, _ in hosts.runs} <= {"observe"}
    assert refusal(dialable, running)[0] == code
    assert sorted(one["status"] for one in dialable.shown(running, "/members")) == ["ready", "ready"]
    seen = dialable.shown(running)
    assert (seen["status"], seen["health"]) == ("running", "healthy")


def test_a_tenants_deny_beats_what_its_project_allows(dialable: Project, hosts: Hosts, running: Doc) -> None:
    entitle(dialable, "enabled", regions=["local"])
    dialable.platform.control.restrict(dialable.org_id, regions=["elsewhere"])
    request(dialable, running)
    assert work(dialable) == []
    code, message = refusal(dialable, running)
    assert code == "region_denied" and "effective_policy.regions allows none" in message


def test_an_entitlement_that_ends_shows_in_health_and_stops_nothing(
    dialable: Project, hosts: Hosts, running: Doc
) -> None:
    entitle(dialable, "disabled")
    assert work(dialable, observe_seconds=0) == []
    seen = dialable.shown(running)
    assert (seen["status"], seen["health"]) == ("running", "healthy")
    (reason,) = seen["status_detail"]["reasons"]
    assert reason["code"] == "no_new_machines" and "is disabled" in reason["message"]
    entitle(dialable, "enabled")
    request(dialable, running)
    assert work(dialable, observe_seconds=0) == work(dialable, observe_seconds=0) == []
    seen = dialable.shown(running)
    assert (seen["health"], seen["status_detail"]["reasons"]) == ("healthy", [])
    assert [one["status"] for one in dialable.shown(running, "/members")] == ["ready"] * 3


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (404, GONE, "entitlement_policy_missing"),
        (403, {"code": "insufficient_permissions", "message": "no"}, "entitlement_unreadable"),
        (200, {"items": [{"id": "odd"}], "next_cursor": None}, "entitlement_unreadable"),
        (200, {"entitled": True}, "entitlement_unreadable"),
    ],
)
def test_an_answer_that_is_no_clear_yes_is_a_no(
    dialable: Project, hosts: Hosts, status: int, body: Doc, code: str
) -> None:
    control = dialable.platform.control
    made = dialable.deploy(workers=0)
    control.inject_fault("status", "/entitlements$", status=status, body=body, times=9)
    assert work(dialable) == [] and hosts.runs == []
    (reason,) = dialable.shown(made)["status_detail"]["reasons"]
    assert reason["code"] == code
    control.clear_faults()


def test_without_an_answer_a_deploy_waits_for_the_next_tick(dialable: Project, hosts: Hosts) -> None:
    control = dialable.platform.control
    made = dialable.deploy(workers=0)
    control.inject_fault("status", "/entitlements$", status=503, times=9)
    assert work(dialable) == [] and hosts.runs == []
    assert dialable.shown(made)["status"] == "requested"
    control.clear_faults()
    assert work(dialable) == []
    assert dialable.shown(made)["status"] == "running"


def test_a_platform_without_entitlements_is_used_with_the_setting_alone(dialable: Project, hosts: Hosts) -> None:
    control = dialable.platform.control
    made = dialable.deploy(workers=0)
    assert work(dialable, entitlement_policy="none") == [] and hosts.runs == []
    assert dialable.shown(made)["status"] == "requested", "the platform answered, so the setting is wrong"
    control.inject_fault("status", "/entitlements$", status=404, body=GONE, times=9)
    assert work(dialable, entitlement_policy="none") == []
    assert dialable.shown(made)["status"] == "running"
    control.clear_faults()


def test_an_instance_without_a_policy_gets_no_machine(dialable: Project, hosts: Hosts) -> None:
    made = dialable.deploy(workers=0)
    listed = dialable.shown(made) | {"effective_policy": {"regions": "all"}}
    dialable.platform.control.inject_fault(
        "status", "/app-instances$", status=200, body={"items": [listed], "next_cursor": None}, method="GET", times=1
    )
    assert work(dialable) == [] and hosts.runs == []
    assert dialable.shown(made)["status"] == "failed"
    (reason,) = dialable.shown(made)["status_detail"]["reasons"]
    assert (
        reason["code"] == "effective_policy_unreadable" and "regions: Input should be a valid list" in reason["message"]
    )


def test_entitlements_are_read_once_a_pass_and_not_by_a_quiet_tick(
    dialable: Project, hosts: Hosts, running: Doc
) -> None:
    control = dialable.platform.control

    def reads(**settings: Any) -> int:
        mark = control.requests()["last"]
        assert work(dialable, **settings) == []
        return sum(row["path"].endswith("/entitlements") for row in control.requests(mark)["requests"])

    assert reads() == 0
    assert reads(observe_seconds=0) == 1
