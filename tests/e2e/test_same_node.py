"""The worker on its controller's host: every verb of a worker, and stop and start, with the controller beside it.

docs/usage/placement.md has the table of verbs that this scenario and others show.
"""

from collections.abc import Iterator

import pytest

from tests.commands import ends
from tests.e2e.cluster import Cluster, deploy, fleet_named, until
from tests.platform_process import Doc
from tests.runner_process import answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("cluster")]

HOST, OTHER = "gs-1", "gs-2"
CONTROLLER_UNITS = ("slurmctld", "slurmdbd", "mariadb", "munge")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Controller and worker on gs-1; gs-2 in reserve."""
    with fleet_named("e2e-same-node") as fleet:
        fleet.up(hosts=2, suite="bookworm", warm=True)
        made = deploy(fleet, HOST, "", "--same-node", GPUAAS_RETRY_SECONDS="0")
        ends(made.run(), 0)
        yield made


def ask(cluster: Cluster, *arguments: str) -> Doc:
    verb, *rest = arguments
    asked: Doc = answer(cluster.variables, "op", verb, cluster.instance_id, *rest)
    return asked


def ended(cluster: Cluster, asked: Doc) -> Doc:
    listed: list[Doc] = answer(cluster.variables, "get", "operations", "--instance", cluster.instance_id)
    return next(one for one in listed if one["id"] == asked["id"])


def carry_out(cluster: Cluster, *arguments: str) -> None:
    """Request it, and run until it is over; it must succeed."""
    asked = ask(cluster, *arguments)

    def is_over() -> bool:
        cluster.run()
        return ended(cluster, asked)["status"] not in ("accepted", "running")

    until(is_over, 300, f"{arguments[0]} is over", every=1)
    assert ended(cluster, asked)["status"] == "succeeded", ended(cluster, asked)


def daemons(cluster: Cluster) -> dict[str, str]:
    return {unit: cluster.process(HOST, unit) for unit in CONTROLLER_UNITS}


def worker_id(cluster: Cluster, host: str = HOST) -> str:
    return str(cluster.workers()[host]["id"])


def test_a_drain_of_the_worker_leaves_its_controller_serving(cluster: Cluster) -> None:
    before = daemons(cluster)
    carry_out(cluster, "drain", "--members", worker_id(cluster))
    assert "DRAIN" in cluster.on(HOST, "scontrol", "--oneliner", "show", "node", HOST)
    assert cluster.controller()["status"] == "ready"
    assert daemons(cluster) == before


def test_a_resume_gives_the_worker_back(cluster: Cluster) -> None:
    before = daemons(cluster)
    carry_out(cluster, "resume", "--members", worker_id(cluster))
    cluster.runs_a_job_on_every_worker()
    assert daemons(cluster) == before


def test_a_removal_takes_slurmd_and_leaves_what_the_controller_needs(cluster: Cluster) -> None:
    before = daemons(cluster)
    carry_out(cluster, "remove", "--members", worker_id(cluster))
    assert cluster.workers()[HOST]["status"] == "deleted"
    assert cluster.on(HOST, "sinfo", "--noheader", "--Node", "--format=%N") == ""
    assert "inactive" in cluster.on(HOST, "sh", "-c", "systemctl is-active slurmd || true")
    assert daemons(cluster) == before
    assert cluster.controller()["status"] == "ready"
    assert cluster.instance()["status"] == "running"


def test_an_add_of_the_controllers_allocation_brings_its_worker_back(cluster: Cluster) -> None:
    before = daemons(cluster)
    carry_out(cluster, "add", "--allocations", HOST)
    assert cluster.workers()[HOST]["status"] == "ready"
    cluster.runs_a_job_on_every_worker()
    assert daemons(cluster) == before
    assert cluster.instance()["health"] == "healthy"


def test_a_stop_ends_all_daemons_of_the_host_and_a_start_brings_them_back(cluster: Cluster) -> None:
    carry_out(cluster, "stop")
    assert cluster.instance()["status"] == "stopped"
    for unit in ("slurmd", *CONTROLLER_UNITS):
        assert cluster.on(HOST, "sh", "-c", f"systemctl is-active {unit} || true") == "inactive", unit
    carry_out(cluster, "start")
    assert (cluster.instance()["status"], cluster.instance()["health"]) == ("running", "healthy")
    cluster.runs_a_job_on_every_worker()


def test_a_restart_renews_the_daemons_of_both(cluster: Cluster) -> None:
    before = {unit: cluster.process(HOST, unit) for unit in ("slurmctld", "slurmd")}
    carry_out(cluster, "restart")
    assert all(cluster.process(HOST, unit) != one for unit, one in before.items())
    cluster.runs_a_job_on_every_worker()


def test_an_add_of_another_host_joins_beside_the_first_worker(cluster: Cluster) -> None:
    before = daemons(cluster)
    carry_out(cluster, "add", "--allocations", OTHER)
    assert {host for host, one in cluster.workers().items() if one["status"] == "ready"} == {HOST, OTHER}
    cluster.runs_a_job_on_every_worker()
    assert daemons(cluster) == before


def test_a_replace_moves_the_worker_off_its_controllers_host(cluster: Cluster) -> None:
    before = daemons(cluster)
    carry_out(cluster, "remove", "--members", worker_id(cluster, OTHER))
    carry_out(cluster, "replace", "--members", worker_id(cluster), "--allocations", OTHER)
    assert (cluster.workers()[HOST]["status"], cluster.workers()[OTHER]["status"]) == ("deleted", "ready")
    cluster.runs_a_job_on_every_worker()
    assert daemons(cluster) == before


def test_a_rotation_reaches_a_worker_beside_its_controller(cluster: Cluster) -> None:
    carry_out(cluster, "add", "--allocations", HOST)
    key = cluster.on(HOST, "sha256sum", "/etc/munge/munge.key")
    carry_out(cluster, "rotate-credentials")
    assert cluster.on(HOST, "sha256sum", "/etc/munge/munge.key") != key
    cluster.runs_a_job_on_every_worker()
