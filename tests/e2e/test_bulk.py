"""Eight workers asked for at once, by two operations; two of the hosts are broken, each in its own way."""

from collections.abc import Iterator

import pytest

from tests.commands import ends
from tests.e2e.cluster import Cluster, deploy, fleet_named, log_lines
from tests.e2e.conftest import SUITES

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("bulk")]

WHOLE = [f"gs-{number}" for number in (2, 3, 5, 6, 8, 9)]
NO_MUNGE, NO_ANSWER = "gs-4", "gs-7"


@pytest.fixture(scope="module", params=SUITES)
def bulk(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, str, int]]:
    """The cluster after the bulk add, the runner's log, and its exit code."""
    with fleet_named(f"e2e-bulk-{request.param}") as fleet:
        fleet.up(hosts=9, suite=request.param, warm=True)
        cluster = deploy(fleet, "gs-1", "", GPUAAS_MAX_ATTEMPTS="1")
        ends(cluster.run(), 0)
        cluster.on(NO_MUNGE, "mv", "/usr/sbin/munged", "/usr/sbin/munged.away")
        fleet.pause(NO_ANSWER)
        cluster.add("gs-2", "gs-3", NO_MUNGE, "gs-5")
        cluster.add("gs-6", NO_ANSWER, "gs-8", "gs-9")
        done = cluster.run()
        fleet.unpause(NO_ANSWER)
        yield cluster, done.stderr, done.returncode


def test_two_operations_are_one_ansible_run(bulk: tuple[Cluster, str, int]) -> None:
    _, log, _ = bulk
    plays = [line for line in log_lines(log) if line["event"] == "play"]
    assert [(play["playbook"], play["members"]) for play in plays] == [("add_worker", 9)]


def test_each_worker_ends_by_itself(bulk: tuple[Cluster, str, int]) -> None:
    cluster, log, code = bulk
    workers = cluster.workers()
    assert {host: workers[host]["status"] for host in WHOLE} == dict.fromkeys(WHOLE, "ready")
    errors = {host: workers[host]["adapter_detail"]["last_adapter_error"] for host in (NO_MUNGE, NO_ANSWER)}
    assert errors[NO_ANSWER]["code"] == "host_unreachable"
    assert errors[NO_MUNGE]["code"] != "host_unreachable" and "munge" in errors[NO_MUNGE]["message"]
    assert {workers[host]["status"] for host in errors} == {"failed"}
    assert code == 1, log


def test_each_operation_has_a_result_for_each_member(bulk: tuple[Cluster, str, int]) -> None:
    cluster, _, _ = bulk
    for operation in cluster.operations():
        results = operation["result"]["members"]
        assert len(results) == 4
        assert [one["status"] for one in results.values()].count("ready") == 3
        assert (operation["status"], operation["error"]["code"]) == ("failed", "partly_failed")


def test_the_workers_that_came_take_jobs(bulk: tuple[Cluster, str, int]) -> None:
    cluster, _, _ = bulk
    cluster.runs_a_job_on_every_worker()


def test_the_broken_ones_can_be_added_again_once_mended(bulk: tuple[Cluster, str, int]) -> None:
    cluster, _, _ = bulk
    cluster.on(NO_MUNGE, "mv", "/usr/sbin/munged.away", "/usr/sbin/munged")
    cluster.add(NO_MUNGE, NO_ANSWER)
    ends(cluster.run(), 0)
    ready = [host for host, worker in cluster.workers().items() if worker["status"] == "ready"]
    assert sorted(ready) == sorted([*WHOLE, NO_MUNGE, NO_ANSWER])


def test_all_are_drained_by_one_call_and_removed_by_one_run(bulk: tuple[Cluster, str, int]) -> None:
    cluster, _, _ = bulk
    done = cluster.command("op", "remove", cluster.instance_id, "--members", ",".join(WHOLE), "--json")
    ends(done, 0)
    ran = cluster.run()
    ends(ran, 0)
    assert [line["playbook"] for line in log_lines(ran.stderr) if line["event"] == "play"] == [
        "drain_worker",
        "remove_worker",
    ]
    assert {cluster.workers()[host]["status"] for host in WHOLE} == {"deleted"}
    cluster.runs_a_job_on_every_worker()
