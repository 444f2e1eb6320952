"""A cluster that was deployed, used and decommissioned leaves hosts that are, file by file, what they were.

One suite on bare hosts, where everything has to be installed and to go again, the other on warm ones, where packages
and accounts were there and stay; that one has its controller and a worker on the same host, whose MariaDB holds data
of another owner, and a worker whose homes are on a file system of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import hvac
import pytest
from hvac import exceptions

from sandbox.fleet.fleet import Fleet
from sandbox.fleet.hosts import HostSpec
from tests.commands import ends, fails
from tests.e2e.cluster import Cluster, deploy, fleet_named, kill, nothing_is_claimed, until
from tests.e2e.foreign import OURS, Server, put_homes_elsewhere, server, sql, start_owners_server, use_it_meanwhile
from tests.e2e.host_picture import difference, picture
from tests.platform_process import Doc
from tests.runner_process import answer, gpuaas_slurm

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("scenario"), pytest.mark.scenario("in_pieces")]

KEPT_LOGS = "/var/log/gpuaas-slurm"
HELD = "until [ -e /tmp/go ]; do sleep 0.2; done; rm /tmp/go"


@dataclass
class Scenario:
    fleet: Fleet
    suite: str
    warm: bool
    before: dict[str, set[str]]
    users: Path
    server: Server | None  # of the warm suite, before any cluster
    clusters: list[Cluster] = field(default_factory=list)
    asked: list[Doc] = field(default_factory=list)

    @property
    def first(self) -> Cluster:
        return self.clusters[0]

    def deploy(self) -> Cluster:
        more = ["--same-node", "--users", str(self.users)] if self.warm else []
        made = deploy(self.fleet, "gs-1", "gs-2", *more, GPUAAS_RETRY_SECONDS="0")
        self.clusters.append(made)
        ran = made.run()
        ends(ran, 0)
        assert made.instance()["status"] == "running", made.instance()["status_detail"]
        made.runs_a_job_on_every_worker()
        return made


def start_job(cluster: Cluster, host: str) -> int:
    job = cluster.on("gs-1", "sbatch", "--parsable", "--nodelist", host, "--output=/dev/null", "--wrap", HELD)
    until(lambda: cluster.on("gs-1", "squeue", "-hj", job, "-o", "%T") == "RUNNING", 60, f"job {job} runs on {host}")
    return int(job)


def instance_operations(cluster: Cluster) -> dict[str, Doc]:
    listed = cluster.api.get(f"{cluster.path}/operations").json()["items"]
    return {one["id"]: one for one in listed}


def secrets_are_gone(cluster: Cluster) -> None:
    variables = cluster.variables
    vault = hvac.Client(url=variables["VAULT_ADDR"])
    vault.auth.approle.login(role_id=variables["VAULT_ROLE_ID"], secret_id=variables["VAULT_SECRET_ID"])
    path = f"projects/{variables['GPUAAS_PROJECT_ID']}/app-instances/{cluster.instance_id}"
    with pytest.raises(exceptions.InvalidPath):
        vault.secrets.kv.v2.read_secret_metadata(path=path)


@pytest.fixture(scope="module", params=[("bookworm", False), ("trixie", True)], ids=["bookworm-bare", "trixie-warm"])
def scenario(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    """gs-1 with worker gs-2; on the warm suite gs-1 is a worker too, and the cluster has a user."""
    suite, warm = request.param
    users = tmp_path_factory.mktemp("users") / "users.json"
    users.write_text('[{"name": "ada", "uid": 2001}]')
    with fleet_named(f"e2e-gone-{suite}") as fleet:
        fleet.ensure([HostSpec(name, suite, warm) for name in ("gs-1", "gs-2")])
        if warm:
            start_owners_server(fleet, "gs-1")
            put_homes_elsewhere(fleet, "gs-2")
        before = {host: picture(fleet, host) for host in ("gs-1", "gs-2")}
        one = Scenario(fleet, suite, warm, before, users, server(fleet, "gs-1") if warm else None)
        one.deploy()
        yield one


def test_a_server_that_was_there_is_neither_configured_nor_restarted(scenario: Scenario) -> None:
    if not scenario.server:
        pytest.skip("MariaDB came with the cluster here")
    assert server(scenario.fleet, "gs-1") == scenario.server
    assert "slurm_acct_db" in sql(scenario.fleet, "gs-1", "SHOW DATABASES")
    assert scenario.first.on("gs-1", "sacct", "--allusers", "--noheader", "--format=JobID") != ""
    use_it_meanwhile(scenario.fleet, "gs-1")
    scenario.server = replace(scenario.server, dump=server(scenario.fleet, "gs-1").dump)
    for host in ("gs-1", "gs-2"):
        scenario.first.on(host, "sh", "-c", "echo draft >/home/ada/thesis")


def test_a_running_job_is_waited_for_and_named_while_the_instance_is_deleting(scenario: Scenario) -> None:
    cluster = scenario.first
    job = start_job(cluster, "gs-2")
    keep = ["--keep-logs", "--remove-homes"] if scenario.warm else []
    terms = [["--reason", "end of the project"], ["--deadline", "0", "--on-deadline", "cancel"]]
    scenario.asked = [
        answer(cluster.variables, "op", "decommission", cluster.instance_id, *keep, *one) for one in terms
    ]
    ran = cluster.run()
    ends(ran, 0)
    instance = cluster.instance()
    assert instance["status"] == "deleting"
    assert [reason["code"] for reason in instance["status_detail"]["reasons"]] == ["jobs_running"]
    assert f"job {job}" in instance["status_detail"]["reasons"][0]["message"]
    assert cluster.on("gs-1", "squeue", "-hj", str(job), "-o", "%T") == "RUNNING", (
        "the second asker's terms do not count"
    )
    assert "end of the project" in cluster.on("gs-1", "sinfo", "-Rho", "%E")
    # What a host without a controller is asked for, as both versions show it.
    assert f"slurmstepd: [{job}.batch]" in cluster.on("gs-2", "ps", "-C", "slurmstepd", "-o", "args=")
    shown = gpuaas_slurm(cluster.variables, "status", "-o", "wide", "--instance", cluster.instance_id).stdout
    assert "decommission: waiting for jobs" in shown and "draining" in shown
    nothing_is_claimed(cluster)


def test_after_the_jobs_every_member_is_removed_with_a_result(scenario: Scenario) -> None:
    cluster = scenario.first
    cluster.on("gs-2", "touch", "/tmp/go")

    def gone() -> bool:
        ran = cluster.run()
        ends(ran, 0)
        return bool(cluster.instance()["status"] == "deleted")

    until(gone, 600, "the instance is deleted", every=1)
    members = cluster.members()
    assert {member["status"] for member in members} == {"deleted"}
    assert all(member["adapter_detail"]["host_cleaned"] for member in members)
    assert all(member["adapter_detail"]["residue"] == [] for member in members)
    operations = instance_operations(cluster)
    for asked in scenario.asked:
        ended = operations[asked["id"]]
        assert ended["status"] == "succeeded", ended
        assert set(ended["result"]["members"]) == {member["id"] for member in members}
    kinds = [event["type"] for event in cluster.events()]
    assert kinds[-2:] == ["apps.instance.deleting", "apps.instance.deleted"]
    nothing_is_claimed(cluster)
    secrets_are_gone(cluster)


def test_the_servers_data_configuration_and_process_are_what_they_were(scenario: Scenario) -> None:
    if not scenario.server:
        pytest.skip("MariaDB came with the cluster here")
    assert server(scenario.fleet, "gs-1") == scenario.server
    assert sql(scenario.fleet, "gs-1", OURS) == ""


def test_homes_on_another_file_system_stay_though_their_removal_was_asked_for(scenario: Scenario) -> None:
    if not scenario.warm:
        pytest.skip("no users here")
    left = {one["id"]: one["adapter_detail"]["homes_left"] for one in scenario.first.members()}
    worker = scenario.first.workers()["gs-2"]["id"]
    assert left.pop(worker) == ["/home/ada: it is on another file system"]
    assert set(map(tuple, left.values())) == {()}
    assert scenario.first.on("gs-2", "cat", "/home/ada/thesis") == "draft"
    fails(scenario.fleet.exec("gs-1", ["ls", "/home/ada"]))
    results = instance_operations(scenario.first)[scenario.asked[0]["id"]]["result"]["members"]
    assert results[worker]["homes_left"] == ["/home/ada: it is on another file system"]


@pytest.mark.parametrize("host", ["gs-1", "gs-2"])
def test_every_host_is_file_by_file_what_it_was_but_for_what_policy_keeps(scenario: Scenario, host: str) -> None:
    kept = {"gs-1": [KEPT_LOGS], "gs-2": [KEPT_LOGS, "/home/ada"]}[host] if scenario.warm else []
    now = picture(scenario.fleet, host)
    assert [one for one in difference(scenario.before[host], now, *kept) if not one.startswith("+ database")] == []
    if scenario.warm:
        journals = scenario.first.on(host, "find", KEPT_LOGS, "-name", "journal.txt", "-size", "+0")
        assert len(journals.split()) == (2 if host == "gs-1" else 1), "one for each member that was here"
    else:
        fails(scenario.fleet.exec(host, ["ls", KEPT_LOGS]))


def test_a_second_decommission_of_what_is_gone_is_answered_at_once(scenario: Scenario) -> None:
    again = gpuaas_slurm(scenario.first.variables, "op", "decommission", scenario.first.instance_id)
    ends(again, 2)
    assert "deleted" in again.stderr, again.stderr


def test_the_same_hosts_serve_a_new_cluster_at_once(scenario: Scenario) -> None:
    again = scenario.deploy()
    assert again.instance_id != scenario.first.instance_id

    def accounted() -> set[str]:
        output = again.on("gs-1", "sacct", "--allusers", "--noheader", "--parsable2", "--format=JobID")
        return {line.split(".")[0] for line in output.split()}

    assert until(accounted, 60, "the job is accounted") == {"1"}, "something of the old accounting is there"


# -- a cluster in pieces, on one suite: none of this depends on the Slurm version ----------------------------------


@pytest.fixture(scope="module")
def in_pieces() -> Iterator[Cluster]:
    """gs-1 with workers gs-2 and gs-3. A job runs on gs-2; then the controller is lost and gs-3 does not answer."""
    with fleet_named("e2e-pieces") as fleet:
        fleet.up(hosts=3, suite="trixie", warm=True)
        cluster = deploy(fleet, "gs-1", "gs-2,gs-3", GPUAAS_LEASE_SECONDS="10")
        ran = cluster.run()
        ends(ran, 0)
        start_job(cluster, "gs-2")
        fleet.kill("gs-1")
        fleet.pause("gs-3")
        yield cluster


def reasons(cluster: Cluster) -> dict[str | None, str]:
    return {one.get("member_id"): one["code"] for one in cluster.instance()["status_detail"]["reasons"]}


def test_a_lost_controller_ends_no_job_and_an_unreachable_host_is_named(in_pieces: Cluster) -> None:
    cluster = in_pieces
    workers = cluster.workers()
    answer(cluster.variables, "op", "decommission", cluster.instance_id, "--host-patience", "0")
    ran = cluster.run()
    ends(ran, 0)
    assert reasons(cluster) == {
        None: "controller_lost",
        workers["gs-2"]["id"]: "jobs_on_host",
        workers["gs-3"]["id"]: "host_unreachable",
    }
    assert {worker["status"] for worker in cluster.workers().values()} == {"deleting"}
    assert "slurmstepd" in cluster.on("gs-2", "ps", "-e", "-o", "comm=")


def test_hosts_that_answer_are_cleaned_and_a_killed_runner_is_taken_over(
    in_pieces: Cluster,
) -> None:
    cluster = in_pieces
    cluster.on("gs-2", "touch", "/tmp/go")
    # Its slurmstepd stays for many minutes: it tries to report to a controller that is gone.
    until(lambda: cluster.fleet.exec("gs-2", ["ls", "/tmp/go"]).returncode != 0, 60, "the job has ended")
    runner = cluster.start_run()
    until(
        lambda: (
            cluster.workers()["gs-2"]["adapter_detail"]["phase"] in ("cleaning", "removed") or runner.poll() is not None
        ),
        300,
        "its host is being cleaned",
    )
    kill(runner)

    def cleaned() -> bool:
        cluster.run()
        return bool(cluster.workers()["gs-2"]["status"] == "deleted")

    until(cleaned, 600, "the next runner goes on", every=2)
    assert cluster.workers()["gs-2"]["adapter_detail"]["host_cleaned"] is True
    assert cluster.workers()["gs-3"]["status"] == "deleting"


def test_the_rest_ends_when_a_host_answers_again_or_its_allocation_is_released(in_pieces: Cluster) -> None:
    cluster, fleet = in_pieces, in_pieces.fleet
    fleet.unpause("gs-3")
    fleet.control().set_allocation_status(
        cluster.variables["GPUAAS_PROJECT_ID"], str(cluster.controller()["allocation_id"]), "released"
    )

    def gone() -> bool:
        cluster.run()
        return bool(cluster.instance()["status"] == "deleted")

    until(gone, 600, "the instance is deleted", every=1)
    assert cluster.workers()["gs-3"]["adapter_detail"]["host_cleaned"] is True
    lost = cluster.controller()["adapter_detail"]
    assert lost["host_cleaned"] is False and "released" in lost["host_left"]
    (operation,) = instance_operations(cluster).values()
    assert operation["status"] == "succeeded"
    secrets_are_gone(cluster)
