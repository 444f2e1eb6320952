"""The runner's own clock is wrong, or jumps: the platform's counts, so nothing is done twice or waits for ever.

The platform is real; hosts are not.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from structlog.testing import capture_logs

from runner.loop import run as loop
from runner.loop import shared
from runner.platform import clock
from runner.platform.client import Client
from runner.slurm.app import SLURM
from tests.contract.simulated_hosts import Hosts
from tests.platform_process import Doc, Project
from tests.runner_process import settings

HOUR = timedelta(hours=1)
LEASE = 60


class Wall:
    """The clock on this machine's wall, which somebody set wrong."""

    def __init__(self) -> None:
        self.off = timedelta()

    def now(self, zone: tzinfo) -> datetime:
        return datetime.now(zone) + self.off


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    made = Wall()
    monkeypatch.setattr(clock, "datetime", made)
    return made


@pytest.fixture
def project(dialable: Project) -> Project:
    return dialable


def run(project: Project, name: str, **changes: Any) -> shared.Summary:
    own = settings(project, runner_id=name, lease_seconds=LEASE, **changes)
    with Client(own) as client:
        return loop.run(client, own, SLURM)


def listed(project: Project, instance_id: str, what: str) -> list[Doc]:
    found: list[Doc] = project.operator.get(f"{project.path}/app-instances/{instance_id}/{what}").json()["items"]
    return found


def add(project: Project, instance_id: str, allocation_id: str) -> None:
    body = {"operation": "add", "component_key": "worker", "allocation_ids": [allocation_id]}
    path = f"{project.path}/app-instances/{instance_id}/member-operations"
    assert project.operator.post(path, body).status_code == 201


@pytest.mark.parametrize("off", [HOUR, -HOUR, timedelta(days=4000)])
def test_a_runner_whose_clock_is_wrong_works_as_any_other_and_leaves_nothing_held(
    project: Project, hosts: Hosts, wall: Wall, off: timedelta
) -> None:
    made = project.deploy(workers=1)
    wall.off = off
    with capture_logs() as said:
        assert run(project, "wrong").problems == []
    told = [line["seconds_ahead"] for line in said if "seconds_ahead" in line]
    assert told and all(abs(seconds - off.total_seconds()) < 60 for seconds in told)
    add(project, made["id"], project.allocation_ids[2])
    assert run(project, "wrong").problems == []
    told = project.operator.get(f"{project.path}/app-instances/{made['id']}").json()["status_detail"]["observed_at"]
    assert abs(datetime.fromisoformat(told) - datetime.now(UTC)) < timedelta(minutes=1)
    wall.off = timedelta()
    add(project, made["id"], project.allocation_ids[3])
    assert run(project, "right").problems == []
    members, operations = listed(project, made["id"], "members"), listed(project, made["id"], "member-operations")
    assert [member["status"] for member in members] == ["ready"] * 4
    assert {(one["status"], one["attempt"]) for one in operations} == {("succeeded", 1)}
    joined = [member_id for _, playbook, ids in hosts.runs if playbook != "observe" for member_id in ids]
    assert len(joined) == len(set(joined)) == 4, "a member was played twice"


@pytest.mark.parametrize(("first", "second"), [(-HOUR, HOUR), (timedelta(), HOUR), (HOUR, timedelta())])
def test_what_one_runner_holds_another_leaves_alone_whatever_their_clocks_say(
    project: Project, hosts: Hosts, wall: Wall, first: timedelta, second: timedelta
) -> None:
    """The clock jumps while the first one's play runs, and another runner starts by it. That a controller is held is
    kept in its notes, where no platform judges by its own clock whether a claim may be taken over."""
    made = project.deploy(workers=0)
    held: list[Doc] = []

    def meanwhile() -> None:
        hosts.meanwhile = lambda: None
        wall.off = second
        held.extend(listed(project, made["id"], "members"))
        run(project, "second")

    hosts.meanwhile = meanwhile
    wall.off = first
    assert run(project, "first").problems == []
    leases = [one["adapter_detail"]["lease_expires_at"] for one in held if one["adapter_detail"].get("claimed_by")]
    assert leases, "the controller was held while its play ran"
    for lease in leases:
        assert abs(datetime.fromisoformat(lease) - datetime.now(UTC)) < timedelta(seconds=LEASE + 10)
    assert hosts.overlaps == [], "a member was in two plays at once"
    assert {who for who, playbook, _ in hosts.runs if playbook == "deploy"} == {"first"}
    assert {one["status"] for one in listed(project, made["id"], "members")} == {"ready"}
