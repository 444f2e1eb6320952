"""A cluster that an earlier release deployed is taken over by this one: nothing restarts, and every operation works.

The earlier release is real: its own runner and roles deploy the cluster and begin a drain that this release finishes.
A job runs on one worker through all of it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.commands import ends
from tests.e2e.cluster import Cluster, deploy, fleet_named, until
from tests.e2e.conftest import SUITES
from tests.e2e.declared_users import declare_users
from tests.e2e.former_release import USERS, former_gpuaas_slurm, hold_job, ledger, tick
from tests.e2e.host_picture import difference, picture
from tests.platform_process import Doc
from tests.runner_process import answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("taken")]

DAEMONS = {
    "gs-1": ("munge", "mariadb", "slurmdbd", "slurmctld"),
    "gs-2": ("munge", "slurmd"),
    "gs-3": ("munge", "slurmd"),
}
CONFIGURATION = "/etc/slurm/slurm.conf"


@dataclass
class Taken:
    cluster: Cluster
    job: str
    before: dict[str, set[str]]
    processes: dict[str, str]
    configuration: str

    def running(self, *hosts: str) -> dict[str, str]:
        return {f"{host} {unit}": self.cluster.process(host, unit) for host in hosts for unit in DAEMONS[host]}

    def slurm(self, *argv: str) -> str:
        return self.cluster.on("gs-1", *argv)

    def job_state(self) -> str:
        return self.slurm("squeue", "-ho", "%T", "-j", self.job)

    def ask(self, verb: str, *arguments: str) -> Doc:
        asked: Doc = answer(self.cluster.variables, "op", verb, self.cluster.instance_id, *arguments)
        return asked

    def operation(self, asked: Doc) -> str:
        return str(next(one for one in self.cluster.operations() if one["id"] == asked["id"])["status"])

    def check_untouched(self, *hosts: str) -> None:
        """The daemons on these hosts are the processes of the earlier release, and so is slurm.conf."""
        expected = {name: shown for name, shown in self.processes.items() if name.split()[0] in hosts}
        assert self.running(*hosts) == expected, "a daemon was restarted"
        assert self.slurm("sha256sum", CONFIGURATION) == self.configuration, "slurm.conf was changed"
        assert self.job_state() == "RUNNING"


@pytest.fixture(scope="module", params=SUITES)
def taken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taken]:
    """gs-1 with workers gs-2 and gs-3 by the earlier release, a job on gs-2; gs-4 in reserve."""
    users: Path = tmp_path_factory.mktemp("takeover") / "users.json"
    users.write_text(json.dumps(USERS))
    with fleet_named(f"e2e-takeover-{request.param}") as fleet:
        fleet.up(hosts=4, suite=request.param, warm=True)
        before = {host: picture(fleet, host) for host in ("gs-1", "gs-2", "gs-3", "gs-4")}
        # A worker that does not answer for 30 seconds is down, so that a repair need not be waited for. With 10 seconds
        # slurmctld took a worker on a busy machine for down, and requeued its job.
        more = ("--users", str(users), "--slurm", "SlurmdTimeout=30")
        cluster = deploy(fleet, "gs-1", "gs-2,gs-3", *more, GPUAAS_OBSERVE_SECONDS="0")
        ends(tick(cluster), 0)
        one = Taken(cluster, hold_job(cluster, "gs-2"), before, {}, "")
        one.processes = one.running(*DAEMONS)
        one.configuration = one.slurm("sha256sum", CONFIGURATION)
        assert "instance" not in ledger(cluster, "gs-1"), "the earlier release did not know of owners"
        yield one


def test_a_healthy_cluster_is_taken_over_without_a_change(taken: Taken) -> None:
    for _ in range(2):
        ends(taken.cluster.run(), 0)
    instance = taken.cluster.instance()
    assert (instance["status"], instance["health"]) == ("running", "healthy"), instance["status_detail"]
    taken.check_untouched("gs-1", "gs-2", "gs-3")


def test_a_repair_writes_the_owner_into_the_ledger(taken: Taken) -> None:
    taken.cluster.on("gs-3", "systemctl", "stop", "slurmd")
    until(
        lambda: ends(taken.cluster.run(), 0) and "instance" in ledger(taken.cluster, "gs-3"),
        180,
        "the worker is repaired and its ledger names the instance",
    )
    assert ledger(taken.cluster, "gs-3")["instance"] == taken.cluster.instance_id
    taken.check_untouched("gs-1", "gs-2")


def test_a_drain_begun_by_the_earlier_release_is_finished(taken: Taken) -> None:
    job = hold_job(taken.cluster, "gs-3")
    done = former_gpuaas_slurm(
        taken.cluster.variables, "op", "drain", taken.cluster.instance_id, "--members", "gs-3", "--json"
    )
    drain = json.loads(ends(done, 0).stdout)
    ends(tick(taken.cluster), 0)
    assert taken.cluster.workers()["gs-3"]["status"] == "draining"

    ends(taken.cluster.run(), 0)
    assert taken.operation(drain) == "running", "the job still runs"
    taken.cluster.on("gs-3", "touch", "/tmp/go")
    until(lambda: not taken.slurm("squeue", "-ho", "%T", "-j", job), 60, "the job ends")
    until(lambda: ends(taken.cluster.run(), 0) and taken.operation(drain) == "succeeded", 60, "the drain ends")

    assert taken.cluster.workers()["gs-3"]["adapter_detail"]["phase"] == "drained"
    taken.check_untouched("gs-1", "gs-2")


def test_a_worker_joins_the_cluster_taken_over(taken: Taken) -> None:
    taken.cluster.add("gs-4")
    ends(taken.cluster.run(), 0)
    assert taken.cluster.workers()["gs-4"]["status"] == "ready"
    assert ledger(taken.cluster, "gs-4")["instance"] == taken.cluster.instance_id
    taken.check_untouched("gs-1", "gs-2")


def test_a_new_user_changes_neither_slurm_conf_nor_a_process(taken: Taken, tmp_path: Path) -> None:
    """In this step alone this release plays the roles of the controller, which render slurm.conf anew."""
    before = taken.cluster.controller()["adapter_detail"]
    declare_users(taken.cluster, tmp_path, [*USERS, {"name": "carol", "uid": 3003}])
    after = taken.cluster.controller()["adapter_detail"]
    assert after["applied_config"] not in (None, before.get("applied_config"), before.get("wish"))
    assert after["config_version"] == before["config_version"]
    for host in ("gs-1", "gs-2", "gs-4"):
        assert taken.cluster.on(host, "id", "--user", "carol") == "3003"
        assert ledger(taken.cluster, host)["instance"] == taken.cluster.instance_id
    taken.check_untouched("gs-1", "gs-2")


def test_a_worker_of_the_earlier_release_leaves_a_clean_host(taken: Taken) -> None:
    removal = taken.ask("remove", "--members", "gs-3")
    until(lambda: ends(taken.cluster.run(), 0) and taken.operation(removal) == "succeeded", 120, "the removal ends")
    assert difference(taken.before["gs-3"], picture(taken.cluster.fleet, "gs-3"), "/home") == []
    taken.check_untouched("gs-1", "gs-2")


def test_it_is_decommissioned_and_its_hosts_are_clean(taken: Taken) -> None:
    taken.cluster.on("gs-2", "touch", "/tmp/go")
    until(lambda: not taken.job_state(), 60, "the job ends")
    state = ("sacct", "-XnPj", taken.job, "--format=State")
    until(lambda: taken.slurm(*state) == "COMPLETED", 60, "the job has completed in accounting")
    taken.ask("decommission")
    until(
        lambda: ends(taken.cluster.run(), 0) and taken.cluster.instance()["status"] == "deleted", 180, "it is deleted"
    )
    for host, before in taken.before.items():
        assert difference(before, picture(taken.cluster.fleet, host), "/home") == [], host
