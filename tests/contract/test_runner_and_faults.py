"""A whole tick against a platform with faults: the result is that of an undisturbed tick."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from runner.loop import run as loop
from runner.platform.client import Client
from runner.slurm.app import SLURM
from tests.contract.simulated_hosts import Hosts, work
from tests.platform_process import Doc, Project
from tests.runner_process import settings


def deploy_through(project: Project, *, ticks: int = 2) -> Doc:
    made = project.deploy(workers=2)
    for _ in range(ticks):
        assert work(project) == []
    return made


def nothing_is_held(project: Project, made: Doc) -> bool:
    base = f"{project.path}/app-instances/{made['id']}"
    members = project.adapter.get(f"{base}/members").json()["items"]
    (operation,) = project.adapter.get(f"{base}/member-operations").json()["items"]
    leased = operation["status"] == "running" and datetime.fromisoformat(operation["lease_expires_at"])
    claimed = [one for one in members if one["adapter_detail"].get("claimed_by")]
    return not claimed and (not leased or leased <= datetime.now(UTC))


def assert_as_undisturbed(project: Project, made: Doc, hosts: Hosts) -> None:
    """Every record and event exists exactly once."""
    base = f"{project.path}/app-instances/{made['id']}"
    reader = project.adapter
    assert reader.get(base).json()["status"] == "running"
    members = reader.get(f"{base}/members").json()["items"]
    assert sorted((one["component_key"], one["status"]) for one in members) == [
        ("controller", "ready"),
        ("worker", "ready"),
        ("worker", "ready"),
    ]
    assert nothing_is_held(project, made)
    (operation,) = reader.get(f"{base}/member-operations").json()["items"]
    assert (operation["status"], operation["attempt"]) == ("succeeded", 1)
    kinds = [event["type"] for event in reader.get(f"{base}/events").json()["items"]]
    assert sorted(kinds) == ["apps.instance.requested", "apps.instance.running"]
    assert len([ids for _, _, ids in hosts.runs if ids]) == 1 and hosts.overlaps == []


WRITES = [
    ("PATCH", r"/member-operations/"),
    ("POST", r"/members$"),
    ("PATCH", r"/members/"),
    ("PATCH", r"/app-instances/[0-9a-f-]+$"),
    ("POST", r"/events$"),
]


@pytest.mark.parametrize(("method", "path"), WRITES)
@pytest.mark.parametrize("action", ["apply_then_drop", "abort_transaction"])
def test_a_write_whose_answer_is_lost_is_done_once(
    dialable: Project, hosts: Hosts, method: str, path: str, action: str
) -> None:
    dialable.platform.control.inject_fault(action, path, method=method)
    with capture_logs() as logs:
        made = deploy_through(dialable)
    assert [line["event"] for line in logs].count("call retried") == 1
    assert_as_undisturbed(dialable, made, hosts)


@pytest.mark.parametrize(
    ("action", "options", "logged"),
    [
        ("status", {"status": 500}, ["call retried"] * 2),
        ("status", {"status": 429, "headers": {"Retry-After": "0"}}, ["call retried"] * 2),
        ("garbage", {}, ["call retried"] * 2),
        ("drop", {}, ["call retried"] * 2),
        ("status", {"status": 200, "body": "[1, 2, {}]"}, ["record not readable"] * 6),
    ],
    ids=["500", "429", "garbage", "drop", "not-records"],
)
def test_reads_that_fail_for_a_moment_delay_a_deploy_and_change_nothing(
    dialable: Project, hosts: Hosts, action: str, options: dict[str, Any], logged: list[str]
) -> None:
    path = r"/(members|member-operations|operations|allocations)$"
    dialable.platform.control.inject_fault(action, path, method="GET", times=2, **options)
    with capture_logs() as logs:
        made = deploy_through(dialable, ticks=4)
    assert [line["event"] for line in logs if line["event"] in ("call retried", "record not readable")] == logged
    assert_as_undisturbed(dialable, made, hosts)


def test_retry_after_is_obeyed(dialable: Project, hosts: Hosts) -> None:
    headers = {"Retry-After": "1.5"}  # longer than any wait of our own at the first try
    dialable.platform.control.inject_fault("status", r"/members/", method="PATCH", status=429, headers=headers)
    with capture_logs() as logs:
        made = deploy_through(dialable)
    assert [line["wait_s"] for line in logs if line["event"] == "call retried"] == [1.5]
    assert_as_undisturbed(dialable, made, hosts)


def meanwhile(hosts: Hosts, happens: Callable[[], None]) -> None:
    """Call `happens` once, in the middle of the first play."""

    def once() -> None:
        hosts.meanwhile = lambda: None
        happens()

    hosts.meanwhile = once


def test_a_token_that_expires_in_the_middle_of_a_play_is_renewed(dialable: Project, hosts: Hosts) -> None:
    meanwhile(hosts, lambda: dialable.platform.control.rotate_signing_keys(immediate=True))
    assert_as_undisturbed(dialable, deploy_through(dialable), hosts)


def test_what_others_write_during_a_play_stays_in_the_record(dialable: Project, hosts: Hosts) -> None:
    def touch() -> None:
        adapter = dialable.adapter
        (instance,) = adapter.get(f"{dialable.path}/app-instances").json()["items"]
        base = f"{dialable.path}/app-instances/{instance['id']}/members"
        for member in adapter.get(base).json()["items"]:
            detail = {**member["adapter_detail"], "seen_by": "a person"}
            assert adapter.patch(f"{base}/{member['id']}", {"adapter_detail": detail}).status_code == 200

    meanwhile(hosts, touch)
    made = deploy_through(dialable)
    assert_as_undisturbed(dialable, made, hosts)
    members = dialable.adapter.get(f"{dialable.path}/app-instances/{made['id']}/members").json()["items"]
    assert {one["adapter_detail"].get("seen_by") for one in members} == {"a person"}


@pytest.mark.parametrize(("status", "code"), [(409, "invalid_transition"), (412, "precondition_failed")])
def test_a_conflict_at_a_claim_leaves_it_to_the_other_and_the_next_tick_goes_on(
    dialable: Project, hosts: Hosts, status: int, code: str
) -> None:
    body = {"code": code, "message": "changed meanwhile", "correlation_id": "c", "details": {}}
    dialable.platform.control.inject_fault("status", r"/member-operations/", method="PATCH", status=status, body=body)
    made = dialable.deploy(workers=2)
    with capture_logs() as logs:
        assert work(dialable) == []
    assert [line["event"] for line in logs].count("left to another runner") == 1
    assert hosts.runs == []
    assert work(dialable) == []
    assert_as_undisturbed(dialable, made, hosts)


def test_a_platform_that_is_away_too_long_is_a_problem_and_the_next_tick_completes(
    dialable: Project, hosts: Hosts
) -> None:
    made = dialable.deploy(workers=2)
    own = settings(dialable, api_patience_seconds=0)
    dialable.platform.control.inject_fault("status", r"/members/", method="PATCH", status=503, times=1)
    with Client(own) as client:
        (problem,) = loop.run(client, own, SLURM).problems
        assert "the next tick tries again" in problem
        assert nothing_is_held(dialable, made)
        for _ in range(2):
            assert loop.run(client, own, SLURM).problems == []
    assert_as_undisturbed(dialable, made, hosts)


def test_an_unknown_status_is_left_alone_and_others_are_served(dialable: Project, hosts: Hosts) -> None:
    strange, made = dialable.deploy(workers=2), dialable.deploy(workers=2, begin=3)
    control, path = dialable.platform.control, rf"/app-instances(/{strange['id']})?$"
    fields = {"status": "hibernating", "health": "dozing", "new_field": {"a": [1]}}
    control.inject_fault("spoil", path, method="GET", times=1_000, body={"id": strange["id"], "fields": fields})
    mark = control.requests()["last"]
    for _ in range(2):
        assert work(dialable) == []
    rows = control.requests(mark)["requests"]
    assert [row for row in rows if strange["id"] in row["path"] and row["method"] != "GET"] == []
    assert_as_undisturbed(dialable, made, hosts)
    control.clear_faults()
    assert work(dialable) == []
    assert dialable.shown(strange)["status"] == "running", "its status is known again"


def test_a_list_that_changes_while_it_is_read_shows_each_object_once(dialable: Project) -> None:
    first, second, third = dialable.operator.get(f"{dialable.path}/allocations").json()["items"][:3]
    control = dialable.platform.control
    for items, following in (([first, second], "more"), ([second, third], None)):
        body = {"items": items, "next_cursor": following}
        control.inject_fault("status", r"/allocations$", method="GET", status=200, body=body)
    mark = control.requests()["last"]
    with Client(settings(dialable)) as client:
        assert [str(one.id) for one in client.allocations()] == [one["id"] for one in (first, second, third)]
    rows = [row for row in control.requests(mark)["requests"] if row["path"].endswith("/allocations")]
    assert len(rows) == 2
