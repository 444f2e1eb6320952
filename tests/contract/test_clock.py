"""The runner's own clock is wrong, or jumps: the platform's clock counts, so nothing is done twice or waits for ever.

The platform is real; hosts are simulated.
"""

from datetime import UTC, datetime, timedelta, tzinfo

import pytest
from structlog.testing import capture_logs

from runner.platform import clock
from tests.contract.simulated_hosts import Hosts, work
from tests.platform_process import Doc, Project

HOUR = timedelta(hours=1)
LEASE = 60


class WrongClock:
    """The runner's clock, off by a given time."""

    def __init__(self) -> None:
        self.off = timedelta()

    def now(self, zone: tzinfo) -> datetime:
        return datetime.now(zone) + self.off


@pytest.fixture
def wrong_clock(monkeypatch: pytest.MonkeyPatch) -> WrongClock:
    made = WrongClock()
    monkeypatch.setattr(clock, "datetime", made)
    return made


@pytest.fixture
def project(dialable: Project) -> Project:
    return dialable


def run(project: Project, name: str) -> list[str]:
    return work(project, runner_id=name, lease_seconds=LEASE)


def add(project: Project, instance_id: str, allocation_id: str) -> None:
    body = {"operation": "add", "component_key": "worker", "allocation_ids": [allocation_id]}
    path = f"{project.path}/app-instances/{instance_id}/member-operations"
    assert project.operator.post(path, body).status_code == 201


@pytest.mark.parametrize("off", [HOUR, -HOUR, timedelta(days=4000)])
def test_a_runner_whose_clock_is_wrong_works_as_any_other_and_leaves_nothing_held(
    project: Project, hosts: Hosts, wrong_clock: WrongClock, off: timedelta
) -> None:
    made = project.deploy(workers=1)
    wrong_clock.off = off
    with capture_logs() as logs:
        assert run(project, "wrong") == []
    reported = [line["seconds_ahead"] for line in logs if "seconds_ahead" in line]
    assert reported and all(abs(seconds - off.total_seconds()) < 60 for seconds in reported)
    add(project, made["id"], project.allocation_ids[2])
    assert run(project, "wrong") == []
    observed_at = project.operator.get(f"{project.path}/app-instances/{made['id']}").json()["status_detail"][
        "observed_at"
    ]
    assert abs(datetime.fromisoformat(observed_at) - datetime.now(UTC)) < timedelta(minutes=1)
    wrong_clock.off = timedelta()
    add(project, made["id"], project.allocation_ids[3])
    assert run(project, "right") == []
    members, operations = project.shown(made, "/members"), project.shown(made, "/member-operations")
    assert [member["status"] for member in members] == ["ready"] * 4
    assert {(one["status"], one["attempt"]) for one in operations} == {("succeeded", 1)}
    joined = [member_id for _, playbook, ids in hosts.runs if playbook != "observe" for member_id in ids]
    assert len(joined) == len(set(joined)) == 4, "a member was played twice"


@pytest.mark.parametrize(("first", "second"), [(-HOUR, HOUR), (timedelta(), HOUR), (HOUR, timedelta())])
def test_a_runner_leaves_alone_what_another_holds_even_if_their_clocks_differ(
    project: Project, hosts: Hosts, wrong_clock: WrongClock, first: timedelta, second: timedelta
) -> None:
    """The clock jumps while the first one's play runs, and another runner starts by it. That a controller is held is
    kept in its notes, where no platform judges by its own clock whether a claim may be taken over."""
    made = project.deploy(workers=0)
    held: list[Doc] = []

    def meanwhile() -> None:
        hosts.meanwhile = lambda: None
        wrong_clock.off = second
        held.extend(project.shown(made, "/members"))
        run(project, "second")

    hosts.meanwhile = meanwhile
    wrong_clock.off = first
    assert run(project, "first") == []
    leases = [one["adapter_detail"]["lease_expires_at"] for one in held if one["adapter_detail"].get("claimed_by")]
    assert leases, "the controller was held while its play ran"
    for lease in leases:
        assert abs(datetime.fromisoformat(lease) - datetime.now(UTC)) < timedelta(seconds=LEASE + 10)
    assert hosts.overlaps == [], "a member was in two plays at once"
    assert {who for who, playbook, _ in hosts.runs if playbook == "deploy"} == {"first"}
    assert {one["status"] for one in project.shown(made, "/members")} == {"ready"}
