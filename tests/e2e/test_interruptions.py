"""A runner may be ended at any time, kindly or not: the next one goes on from what is. On one Debian only."""

import signal
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster, deploy, fleet_named, happened_once, kill, nothing_is_claimed, until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def interrupted() -> Iterator[Cluster]:
    """A deploy that the tests below keep interrupting."""
    settings = {"GPUAAS_LEASE_SECONDS": "10", "GPUAAS_RETRY_SECONDS": "0", "GPUAAS_MAX_ATTEMPTS": "9"}
    with fleet_named("e2e-runner") as fleet:
        fleet.up(hosts=3, suite="bookworm", warm=True)
        yield deploy(fleet, "gs-1", "gs-2", **settings)


def in_phase(cluster: Cluster, key: str, *phases: str) -> bool:
    return any(
        one["component_key"] == key and one["status"] == "reconciling" and one["adapter_detail"].get("phase") in phases
        for one in cluster.members()
    )


def test_a_runner_told_twice_to_end_stops_the_play_and_hands_its_work_back(interrupted: Cluster) -> None:
    runner = interrupted.start_run()
    until(lambda: in_phase(interrupted, "controller", "preflight", "munge"), 60, "the play begins")
    # Two of the same kind at once would count as one.
    runner.send_signal(signal.SIGTERM)
    runner.send_signal(signal.SIGINT)
    runner.communicate(timeout=60)
    assert interrupted.instance()["status"] == "deploying"
    nothing_is_claimed(interrupted)


def test_after_a_killed_runner_the_next_one_waits_for_the_lease_and_then_completes(interrupted: Cluster) -> None:
    runner = interrupted.start_run()
    until(lambda: in_phase(interrupted, "controller", "accounting"), 60, "the deploy is half done")
    kill(runner)
    early = interrupted.run()
    assert early.returncode == 0, early.stderr
    assert interrupted.instance()["status"] == "deploying", "work that another runner holds was taken"

    def complete() -> bool:
        assert interrupted.run().returncode == 0
        return bool(interrupted.instance()["status"] == "running")

    until(complete, 120, "the next runs complete the deploy", every=1)
    happened_once(interrupted, workers=1)


def test_a_runner_told_once_to_end_finishes_its_step_first(interrupted: Cluster) -> None:
    until(lambda: interrupted.run() and interrupted.instance()["status"] == "running", 120, "the deploy is complete")
    interrupted.add("gs-3")
    runner = interrupted.start_run()
    until(lambda: in_phase(interrupted, "worker", "preflight", "munge", "joining"), 60, "the worker joins")
    runner.send_signal(signal.SIGTERM)
    _, log = runner.communicate(timeout=120)
    assert runner.returncode == 0, log
    happened_once(interrupted, workers=2)
