"""What goes wrong goes wrong in the right record, once, with the reason; and the next run goes on from there.

On one Debian only: none of this depends on which.
"""

import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from sandbox.fleet.fleet import Fleet
from sandbox.fleet.hosts import HostSpec
from tests.e2e.cluster import Cluster, deploy, fleet_named, kill, until
from tests.e2e.test_cluster import answers_the_five_questions
from tests.platform_process import Doc

pytestmark = pytest.mark.e2e

SUITE = "bookworm"
# Nothing listens on this port of the host itself, so apt fails at once and nobody else is asked.
BROKEN_SOURCES = (
    "rm -rf /etc/apt/sources.list.d/* /var/lib/apt/lists/*;"
    f" echo 'deb http://127.0.0.1:9/debian {SUITE} main' >/etc/apt/sources.list"
)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """gs-1 to gs-4 for a cluster with one worker that cannot install; the others for what each test says."""
    with fleet_named("e2e-faults") as fleet:
        warm = [HostSpec(f"gs-{number}", SUITE, warm=True) for number in (1, 2, 3, 5, 6, 7, 8, 9, 10)]
        fleet.ensure([*warm, HostSpec("gs-4", SUITE)])
        assert fleet.exec("gs-4", ["sh", "-c", BROKEN_SOURCES]).returncode == 0
        yield fleet


def nothing_is_claimed(cluster: Cluster) -> None:
    now = datetime.now(UTC)
    for operation in cluster.operations():
        until_when = operation["lease_expires_at"]
        assert operation["status"] != "running" or datetime.fromisoformat(until_when) <= now
    assert [one for one in cluster.members() if one["adapter_detail"].get("claimed_by")] == []


def happened_once(cluster: Cluster, *, workers: int) -> None:
    """A story with interruptions ends like one without: no second member, no second event."""
    instance = cluster.instance()
    assert (instance["status"], instance["health"]) == ("running", "healthy"), instance["status_detail"]
    assert sorted(one["component_key"] for one in cluster.members()) == ["controller", *["worker"] * workers]
    assert {one["status"] for one in cluster.members()} == {"ready"}
    assert [one["type"] for one in cluster.events()] == ["apps.instance.requested", "apps.instance.running"]
    nothing_is_claimed(cluster)
    cluster.runs_a_job_on_every_worker()


# -- hosts that fail ---------------------------------------------------------------------------------------------


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
    assert "127.0.0.1" in error["message"]
    assert "retry" in error["message"]
    assert error["host"] == f"worker-{workers['gs-4']['id'][:8]}"
    assert set(error) == {"code", "message", "class", "host", "task", "at"}
    partly_failed.runs_a_job_on_every_worker()


def test_its_operation_fails_with_a_result_for_each_member_and_the_exit_code_tells(partly_failed: Cluster) -> None:
    assert partly_failed.ran is not None
    assert partly_failed.ran.returncode == 1, partly_failed.ran.stderr
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

    assert cluster.run(**patient).returncode == 1
    assert of(impostor)["status"] == "failed"
    known = of(impostor)["adapter_detail"]
    assert (known["last_adapter_error"]["code"], known["attempt"]) == ("host_key_mismatch", 1)
    assert of(dead)["status"] == "reconciling"
    assert of(dead)["adapter_detail"]["last_adapter_error"]["code"] == "host_unreachable"
    nothing_is_claimed(cluster)

    assert cluster.run(**patient).returncode == 1
    known = of(dead)["adapter_detail"]
    assert (of(dead)["status"], known["attempt"]) == ("failed", 2)
    assert (known["last_adapter_error"]["code"], known["last_adapter_error"]["class"]) == (
        "host_unreachable",
        "retryable",
    )
    assert of(impostor)["adapter_detail"]["attempt"] == 1, "a wrong host key was tried again"
    ended = {one["id"]: (one["status"], one["error"]["code"]) for one in cluster.operations() if one["error"]}
    assert [ended[one] for one in operations] == [("failed", "host_unreachable"), ("failed", "host_key_mismatch")]
    cluster.runs_a_job_on_every_worker()


# -- a platform that fails ---------------------------------------------------------------------------------------


def test_a_deploy_survives_a_platform_that_answers_wrongly_late_or_not_at_all(fleet: Fleet) -> None:
    cluster = deploy(fleet, "gs-7", "", "--same-node", GPUAAS_API_TIMEOUT_SECONDS="2")
    control, own = fleet.control(), re.escape(f"/app-instances/{cluster.instance_id}")
    last = control.requests()["last"]
    faults: list[tuple[str, str, Doc]] = [
        ("garbage", f"{own}$", {"method": "GET"}),
        ("status", f"{own}/member-operations$", {"method": "GET", "status": 500, "times": 2}),
        ("apply_then_drop", f"{own}/member-operations/", {"method": "PATCH"}),
        ("status", f"{own}/members$", {"method": "POST", "status": 429, "headers": {"Retry-After": "1"}}),
        ("apply_then_drop", f"{own}/members$", {"method": "POST"}),
        ("hang", f"{own}/members/", {"method": "PATCH", "seconds": 3}),
        ("drop", f"{own}/members/", {"method": "PATCH", "times": 2}),
        ("apply_then_drop", f"{own}/events$", {"method": "POST"}),
        ("status", f"{own}$", {"method": "PATCH", "status": 503}),
        ("truncate", f"{own}$", {"method": "PATCH"}),
    ]
    for action, path, options in faults:
        control.inject_fault(action, path, **options)
    try:
        ran = cluster.run()
    finally:
        control.clear_faults()
    assert ran.returncode == 0, ran.stderr
    met = [one["fault"] for one in control.requests(since=last)["requests"] if one["fault"]]
    assert sorted(met) == sorted(action for action, _, options in faults for _ in range(options.get("times", 1)))
    happened_once(cluster, workers=1)


# -- a runner that is interrupted --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interrupted(fleet: Fleet) -> Cluster:
    """A deploy that the tests below keep interrupting."""
    return deploy(fleet, "gs-8", "gs-9", GPUAAS_LEASE_SECONDS="10", GPUAAS_RETRY_SECONDS="0", GPUAAS_MAX_ATTEMPTS="9")


def in_phase(cluster: Cluster, key: str, *phases: str) -> bool:
    return any(
        one["component_key"] == key and one["status"] == "reconciling" and one["adapter_detail"].get("phase") in phases
        for one in cluster.members()
    )


def test_a_runner_told_twice_to_end_stops_the_play_and_hands_its_work_back(interrupted: Cluster) -> None:
    runner = interrupted.start_run()
    until(lambda: in_phase(interrupted, "controller", "preflight", "munge"), 60, "the play begins")
    runner.send_signal(signal.SIGTERM)
    runner.send_signal(signal.SIGTERM)
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
    interrupted.add("gs-10")
    runner = interrupted.start_run()
    until(lambda: in_phase(interrupted, "worker", "preflight", "munge", "joining"), 60, "the worker joins")
    runner.send_signal(signal.SIGTERM)
    _, log = runner.communicate(timeout=120)
    assert runner.returncode == 0, log
    happened_once(interrupted, workers=2)
