"""Hosts that fail do so in the right record, with the reason, and affect no other host.

On one Debian only: none of this depends on which.
"""

from collections.abc import Iterator

import pytest

from sandbox.fleet.fleet import Fleet
from sandbox.fleet.hosts import HostSpec
from tests.commands import ends
from tests.e2e.cluster import Cluster, deploy, fleet_named, nothing_is_claimed
from tests.e2e.test_cluster import answers_the_five_questions
from tests.platform_process import Doc

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("partly_failed", independent=True)]

SUITE = "bookworm"
# Nothing listens on this port of the host itself, so apt fails at once and no other server is asked.
BROKEN_SOURCES = (
    "rm -rf /etc/apt/sources.list.d/* /var/lib/apt/lists/*;"
    f" echo 'deb http://127.0.0.1:9/debian {SUITE} main' >/etc/apt/sources.list"
)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """gs-1 to gs-3 are good, gs-4 cannot install, gs-5 will die, gs-6 will show a key that is not on record."""
    with fleet_named("e2e-hosts") as fleet:
        warm = [HostSpec(f"gs-{number}", SUITE, warm=True) for number in (1, 2, 3, 5, 6)]
        fleet.ensure([*warm, HostSpec("gs-4", SUITE)])
        ends(fleet.exec("gs-4", ["sh", "-c", BROKEN_SOURCES]), 0)
        yield fleet


@pytest.fixture(scope="module")
def partly_failed(fleet: Fleet) -> Cluster:
    """A deploy in which apt fails on one worker of three."""
    cluster = deploy(fleet, "gs-1", "gs-2,gs-3,gs-4", GPUAAS_MAX_ATTEMPTS="1")
    cluster.ran = cluster.run()
    return cluster


def test_apt_failing_on_one_of_three_workers_fails_that_worker_and_no_other(partly_failed: Cluster) -> None:
    workers = partly_failed.workers()
    assert {host: worker["status"] for host, worker in workers.items()} == {
        "gs-2": "ready",
        "gs-3": "ready",
        "gs-4": "failed",
    }
    error = workers["gs-4"]["adapter_detail"]["last_adapter_error"]
    assert error["code"] == "package_install_failed"
    assert "package index" in error["message"]
    assert "retry" in error["message"]
    assert error["host"] == f"worker-{workers['gs-4']['id'][:8]}"
    assert set(error) == {"code", "message", "class", "host", "task", "at"}
    partly_failed.runs_a_job_on_every_worker()


def test_its_operation_fails_with_a_result_for_each_member_and_exit_code_1(partly_failed: Cluster) -> None:
    assert partly_failed.ran is not None
    ends(partly_failed.ran, 1)
    (operation,) = partly_failed.operations()
    assert (operation["status"], operation["error"]["code"]) == ("failed", "partly_failed")
    statuses = {one["hostname"] or "gs-4": one["status"] for one in operation["result"]["members"].values()}
    assert statuses == {"gs-2": "ready", "gs-3": "ready", "gs-4": "failed"}
    nothing_is_claimed(partly_failed)


def test_the_instance_runs_degraded_and_names_the_worker_and_the_reason(partly_failed: Cluster) -> None:
    instance = partly_failed.instance()
    assert (instance["status"], instance["health"]) == ("running", "degraded")
    (reason,) = instance["status_detail"]["reasons"]
    assert reason["member_id"] == partly_failed.workers()["gs-4"]["id"]
    assert reason["code"] == "package_install_failed"


def test_the_five_questions_of_a_failure_are_answered_by_the_api_alone(partly_failed: Cluster) -> None:
    failed = partly_failed.workers()["gs-4"]
    answers_the_five_questions(partly_failed, partly_failed.instance()["correlation_id"], failed, "failed")
    (operation,) = partly_failed.operations()
    assert operation["result"]["members"][failed["id"]]["error"]["message"]


def test_a_dead_host_is_tried_a_bounded_number_of_times_and_a_wrong_host_key_once(
    fleet: Fleet, partly_failed: Cluster
) -> None:
    cluster = partly_failed
    dead, impostor = fleet.allocation_id("gs-5"), fleet.allocation_id("gs-6")
    operations = [cluster.add("gs-5")["id"], cluster.add("gs-6")["id"]]
    fleet.kill("gs-5")
    hosts = {host.name: host for host in fleet.hosts()}
    fleet.control().put_allocation(
        cluster.variables["GPUAAS_PROJECT_ID"],
        impostor,
        name="gs-6",
        connection={
            "host": hosts["gs-6"].address,
            "port": 22,
            "username": "ops",
            "host_keys": [hosts["gs-1"].host_key],
        },
    )
    patient = {"GPUAAS_MAX_ATTEMPTS": "2", "GPUAAS_RETRY_SECONDS": "0"}

    def of(allocation: str) -> Doc:
        return next(one for one in cluster.members() if one["allocation_id"] == allocation)

    ends(cluster.run(**patient), 1)
    assert of(impostor)["status"] == "failed"
    recorded = of(impostor)["adapter_detail"]
    assert (recorded["last_adapter_error"]["code"], recorded["attempt"]) == ("host_key_mismatch", 1)
    assert of(dead)["status"] == "reconciling"
    assert of(dead)["adapter_detail"]["last_adapter_error"]["code"] == "host_unreachable"
    nothing_is_claimed(cluster)

    ends(cluster.run(**patient), 1)
    recorded = of(dead)["adapter_detail"]
    assert (of(dead)["status"], recorded["attempt"]) == ("failed", 2)
    assert (recorded["last_adapter_error"]["code"], recorded["last_adapter_error"]["class"]) == (
        "host_unreachable",
        "retryable",
    )
    assert of(impostor)["adapter_detail"]["attempt"] == 1, "a wrong host key was tried again"
    ended = {one["id"]: (one["status"], one["error"]["code"]) for one in cluster.operations() if one["error"]}
    assert [ended[one] for one in operations] == [("failed", "host_unreachable"), ("failed", "host_key_mismatch")]
    cluster.runs_a_job_on_every_worker()
    # The last run ended before it came to the controller, which is no reason to doubt the cluster.
    assert cluster.instance()["health"] == "degraded"
