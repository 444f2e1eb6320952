"""The life of a shared runtime with projects on it, by the real runner on real hosts: a scenario in order.

Everything is asked for by commands of the tenant's administrator, and carried out by a runner with the runtime's own
operator identity. Over 300 lines, because each part goes on from the cluster that the one before it left.
"""

import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandbox.fleet.keys import KeyPair
from tests.commands import ends, fails
from tests.e2e.cluster import Cluster, deploy, fleet_named, nothing_is_claimed, until
from tests.e2e.conftest import SUITES
from tests.e2e.host_picture import difference, picture
from tests.e2e.private_repository import serve_openly, use
from tests.e2e.shared_cluster import SharedCluster, account, deploy_shared
from tests.platform_process import ApiClient, Doc, our_manifest
from tests.runner_process import answer, gpuaas_slurm

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("tenant")]

HOSTS = ("gs-1", "gs-2", "gs-3", "gs-4")
DAEMONS = (("gs-1", "munge"), ("gs-1", "slurmctld"), ("gs-1", "slurmdbd"), ("gs-2", "munge"), ("gs-2", "slurmd"))
NOT_COMPARED = (
    # An upgrade and its rollback name packages to apt, which then takes them for requested by a person.
    "/var/lib/apt/extended_states",
    # `use` makes it, and the adapter removes it with what is its own.
    "- path /var/lib/gpuaas-slurm",
)
# Who may submit once red and green are allowed.
PERMISSIONS = {"ann": True, "bob": False, "gil": True}
OURS = "dpkg-query -W -f '${source:Package} ${Package} ${Version}\\n' | awk '$1 == \"slurm-wlm\" {print $3}' | sort -u"


@dataclass
class Tenant:
    cluster: SharedCluster
    deployed: str  # what the deploy printed
    beside: Cluster  # of the project green, on a host of its own
    projects: dict[str, dict[str, str]]  # the settings of each project's operator
    key: KeyPair  # of ann
    base: str  # the version of Slurm's packages
    before: dict[str, set[str]]
    job: str = ""
    consumer: str = ""
    attributed: list[Doc] = field(default_factory=list)

    def project(self, name: str) -> str:
        return self.projects[name]["GPUAAS_PROJECT_ID"]

    def follow(self) -> None:
        """What was asked of attachments is carried out: no daemon is restarted and no job is lost."""
        before = [self.cluster.process(*one) for one in DAEMONS]
        ends(self.cluster.run(), 0)
        assert [self.cluster.process(*one) for one in DAEMONS] == before, "a daemon was restarted"
        if self.job:
            assert self.cluster.state(self.job) == "RUNNING"
        shown = self.cluster.instance()
        assert (shown["status"], shown["health"]) == ("running", "healthy"), shown["status_detail"]

    def permissions(self) -> dict[str, bool]:
        return {user: self.cluster.may_submit(user) for user in PERMISSIONS}

    def left_on(self, host: str) -> list[str]:
        now = picture(self.cluster.fleet, host)
        return [line for line in difference(self.before[host], now) if not any(one in line for one in NOT_COMPARED)]

    def consumed(self) -> Doc:
        """The project's own instance, as the project reads it."""
        variables = self.projects["red"]
        client = ApiClient(variables["GPUAAS_BASE_URL"], variables["GPUAAS_OPERATOR_TOKEN"])
        found: Doc = client.get(f"/projects/{self.project('red')}/app-instances/{self.consumer}").json()
        return found


@pytest.fixture(scope="module", params=SUITES)
def tenant(request: pytest.FixtureRequest) -> Iterator[Tenant]:
    """gs-1 with workers gs-2 and gs-3; gs-4 in reserve. gs-5 is of a project that has a cluster of its own."""
    with fleet_named(f"e2e-tenant-{request.param}") as fleet:
        fleet.up(hosts=5, suite=request.param, warm=True)
        repository = serve_openly(fleet, "gs-1", {"all": ["", "+private2"]})
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: use(fleet, host, repository, "all"), HOSTS))
        key = KeyPair.generate()
        for name, user in (("red", "ann"), ("blue", "bob"), ("green", "gil")):
            fleet.add_project(name, ["gs-5"] if name == "green" else [])
            keys = [f"{key.public} ann@laptop"] if user == "ann" else []
            fleet.set_people([{"subject": f"idp|{user}", "username": user, "ssh_keys": keys}], name)
        projects = {name: fleet.env(name) for name in ("red", "blue", "green")}
        before = {host: picture(fleet, host) for host in HOSTS}
        cluster, deployed = deploy_shared(fleet, "gs-1", "gs-2,gs-3")
        beside = deploy(fleet, "gs-5", "", "--same-node", **projects["green"])
        with ThreadPoolExecutor() as pool:
            for ran in pool.map(lambda one: one.run(), (cluster, beside)):
                ends(ran, 0)
        yield Tenant(cluster, deployed, beside, projects, key, repository.base, before)


def test_a_new_cluster_of_the_tenant_admits_no_account(tenant: Tenant) -> None:
    cluster, owner = tenant.cluster, tenant.cluster.fleet.env()["GPUAAS_PROJECT_ID"]
    shown = cluster.instance()
    assert (shown["status"], shown["health"]) == ("running", "healthy"), shown["status_detail"]
    assert {host: one["status"] for host, one in cluster.workers().items()} == {"gs-2": "ready", "gs-3": "ready"}
    assert "AllowAccounts=gpuaas_closed " in cluster.on("gs-1", "scontrol", "--oneliner", "show", "partition", "main")
    assert f"project {owner} pays for 1 controller and 2 reserved worker(s)" in tenant.deployed
    for shown_by in (cluster.shared("who"), ends(gpuaas_slurm(cluster.variables, "plan"), 0).stderr):
        assert f"project {owner} pays for 1 controller, 2 reserved workers" in shown_by


def test_attached_projects_have_users_on_every_host_and_submit_nothing(tenant: Tenant) -> None:
    cluster = tenant.cluster
    for name in tenant.projects:
        assert "pays for 1 controller, 2 reserved workers" in cluster.shared("attach", tenant.project(name))
    manifest, red = our_manifest(), tenant.projects["red"]
    body = {"app_slug": manifest["app_slug"], "app_version": manifest["version"], "control_plane_scope": "tenant"}
    made = ApiClient(red["GPUAAS_BASE_URL"], red["GPUAAS_OPERATOR_TOKEN"]).post(
        f"/projects/{tenant.project('red')}/app-instances", body
    )
    tenant.consumer = made.json()["id"]
    assert tenant.consumed()["status"] == "requested"
    tenant.follow()
    for name in tenant.projects:
        row = cluster.who(tenant.project(name))
        assert (row["status"], row["submits"], row["account"]) == ("active", "no", account(tenant.project(name)))
    for user in ("ann", "bob", "gil"):
        assert len({cluster.on(host, "id", user) for host in ("gs-1", "gs-2", "gs-3")}) == 1
        assert not cluster.may_submit(user)
    assert (tenant.consumed()["status"], tenant.consumed()["access"]) == ("running", None)


def test_an_allowed_project_uses_the_cluster_as_its_access_bundle_says(tenant: Tenant, tmp_path: Path) -> None:
    cluster, red = tenant.cluster, tenant.project("red")
    cluster.shared("allow", red)
    cluster.shared("limit", red, "--jobs", "3", "--wall-minutes", "120")
    cluster.shared("allow", tenant.project("green"))
    tenant.follow()
    bundle = answer(cluster.admin, "shared", "access", red)
    # The project reads the same on its own instance, without anything of the tenant's.
    assert tenant.consumed()["access"] == bundle and tenant.consumed()["health"] == "healthy"
    assert answer(tenant.projects["red"], "access", tenant.consumer) == bundle
    printed = gpuaas_slurm(tenant.projects["red"], "access", tenant.consumer).stdout
    assert bundle["ssh"]["command"] in printed and bundle["submit"]["batch"] in printed
    before = tenant.consumed()
    ends(gpuaas_slurm(tenant.projects["red"], "run"), 0)
    assert tenant.consumed() == before, "a project's own runner writes nothing of it"
    job = through_ssh(bundle, tenant.key, tmp_path, bundle["submit"]["batch"]).split()[-1]
    until(lambda: cluster.state(job) == "COMPLETED", 60, "the job of ann ends", seen=lambda: cluster.state(job))
    assert through_ssh(bundle, tenant.key, tmp_path, bundle["submit"]["interactive"]) in ("gs-2", "gs-3")
    row = cluster.who(red)
    assert (row["submits"], row["partitions"], row["limits"]) == ("yes", "main", "jobs 3, wall_minutes 120")
    assert tenant.permissions() == PERMISSIONS


def through_ssh(bundle: Doc, key: KeyPair, directory: Path, command: str) -> str:
    """A line typed after the bundle's own ssh line, with the user's own key."""
    identity, hosts = directory / "id", directory / "known_hosts"
    identity.touch(mode=0o600)
    identity.write_text(key.private)
    hosts.write_text(f"{bundle['ssh']['known_hosts']}\n")
    own = ["-F", "none", "-i", str(identity), "-o", f"UserKnownHostsFile={hosts}", "-o", "BatchMode=yes"]
    program, *arguments = shlex.split(bundle["ssh"]["command"])
    done = subprocess.run(
        [program, *own, *arguments, command], capture_output=True, text=True, check=False, timeout=120
    )
    return ends(done, 0).stdout.strip()


def test_each_job_leads_back_to_its_project_and_identity(tenant: Tenant) -> None:
    ended = ("sacct", "-anXP", "--starttime=2020-01-01", "--format=JobID,State")
    until(
        lambda: "1|COMPLETED" in tenant.cluster.on("gs-1", *ended).splitlines(), 60, "slurmdbd has the end of the job"
    )
    tenant.attributed = tenant.cluster.jobs()
    red = tenant.project("red")
    assert ("1", red, "idp|ann") in {(one["JobID"], one["project_id"], one["subject"]) for one in tenant.attributed}
    assert all(one["project_id"] for one in tenant.attributed)


def test_a_projects_own_cluster_and_the_shared_one_do_not_reach_each_other(tenant: Tenant) -> None:
    cluster, beside = tenant.cluster, tenant.beside
    assert beside.instance()["health"] == "healthy"
    names = [one.on(host, "scontrol", "show", "config") for one, host in ((cluster, "gs-1"), (beside, "gs-5"))]
    assert len({line for shown in names for line in shown.splitlines() if line.startswith("ClusterName")}) == 2
    for source, target in (("gs-1", "gs-5"), ("gs-5", "gs-1")):
        credential = cluster.on(source, "munge", "--no-input")
        fails(cluster.fleet.exec(target, ["unmunge"], stdin=credential))
        # With the other's configuration a command reaches its slurmctld, which does not believe who it is.
        cluster.fleet.exec(target, ["tee", "/tmp/other.conf"], stdin=cluster.on(source, "cat", "/etc/slurm/slurm.conf"))
        other = ["env", "SLURM_CONF=/tmp/other.conf", "timeout", "60", "sbatch", "--wrap=true"]
        assert "submission failed" in fails(cluster.fleet.exec(target, other)).stderr
        logged = "until journalctl --unit=slurmctld --grep='decode failed: Invalid credential'; do sleep 0.2; done"
        cluster.on(source, "timeout", "30", "sh", "-c", logged)
        cluster.on(target, "rm", "/tmp/other.conf")
    for variables, other_id in ((cluster.variables, beside.instance_id), (beside.variables, cluster.instance_id)):
        ends(gpuaas_slurm(variables, "run", "--instance", other_id), 2)
    listed = answer(cluster.admin, "shared", "allocations")
    assert {one["project_id"] for one in listed} == {cluster.fleet.env()["GPUAAS_PROJECT_ID"]}


def test_a_suspended_project_keeps_its_job_and_gets_no_other(tenant: Tenant) -> None:
    cluster, red = tenant.cluster, tenant.project("red")
    tenant.job = cluster.start("ann", "gs-2")
    cluster.shared("suspend", red)
    tenant.follow()
    assert not cluster.may_submit("ann") and cluster.may_submit("gil")
    assert (cluster.who(red)["status"], tenant.consumed()["status"]) == ("suspended", "stopped")
    cluster.shared("resume", red)
    tenant.follow()
    assert cluster.may_submit("ann") and tenant.consumed()["status"] == "running"


def test_workers_come_and_go_under_the_jobs_of_a_project(tenant: Tenant) -> None:
    cluster = tenant.cluster
    daemons = [cluster.process(*one) for one in DAEMONS]
    cluster.carry_out("add", "--allocations", "gs-4")
    cluster.let_go(cluster.start("ann", "gs-4"), "gs-4")
    cluster.carry_out("drain", "--members", "gs-4", "--reason", "a new disk")
    assert "DRAIN" in cluster.on("gs-1", "scontrol", "show", "node", "gs-4")
    cluster.carry_out("remove", "--members", "gs-4", "--remove-homes")
    assert cluster.workers()["gs-4"]["adapter_detail"]["host_cleaned"] is True
    cluster.carry_out("replace", "--members", "gs-3", "--allocations", "gs-4", "--remove-homes")
    assert sorted(cluster.on("gs-1", "sinfo", "-hNo", "%N").split()) == ["gs-2", "gs-4"]
    cluster.let_go(cluster.start("ann", "gs-4"), "gs-4")
    assert cluster.state(tenant.job) == "RUNNING" and [cluster.process(*one) for one in DAEMONS] == daemons
    assert tenant.left_on("gs-3") == []


def test_a_rotation_changes_the_key_on_every_host_and_no_permission(tenant: Tenant) -> None:
    cluster = tenant.cluster
    old = cluster.on("gs-1", "sha256sum", "/etc/munge/munge.key")
    cluster.carry_out("rotate-credentials")
    (new,) = {cluster.on(host, "sha256sum", "/etc/munge/munge.key") for host in ("gs-1", "gs-2", "gs-4")}
    assert new != old and cluster.state(tenant.job) == "RUNNING"
    assert tenant.permissions() == PERMISSIONS


def test_an_upgrade_and_its_rollback_keep_jobs_and_permissions(tenant: Tenant) -> None:
    cluster, target = tenant.cluster, f"{tenant.base}+private2"
    for verb, version in ((("upgrade", "--slurm-version", target), target), (("rollback",), tenant.base)):
        cluster.carry_out(*verb)
        assert {cluster.on(host, "sh", "-c", OURS) for host in ("gs-1", "gs-2", "gs-4")} == {version}
        assert cluster.state(tenant.job) == "RUNNING"
    assert tenant.permissions() == PERMISSIONS


def test_a_stopped_cluster_starts_with_the_permissions_that_it_had(tenant: Tenant) -> None:
    cluster = tenant.cluster
    cluster.let_go(tenant.job, "gs-2")
    tenant.job = ""
    cluster.carry_out("stop")
    assert (cluster.instance()["status"], tenant.consumed()["health"]) == ("stopped", "unknown")
    fails(cluster.as_user("ann", "squeue"))
    cluster.carry_out("start")
    assert tenant.permissions() == PERMISSIONS
    tenant.follow()
    assert tenant.consumed()["health"] == "healthy"
    cluster.let_go(cluster.start("ann", "gs-2"), "gs-2")


def test_a_project_detaches_after_its_job_and_its_history_stays(tenant: Tenant) -> None:
    cluster, red = tenant.cluster, tenant.project("red")
    tenant.job = cluster.start("ann", "gs-2")
    pending = ends(cluster.as_user("ann", "sbatch", "--parsable", "--begin=now+1hour", "--wrap=true"), 0).stdout.strip()
    cluster.shared("detach", red)
    tenant.follow()
    assert "CANCELLED" in cluster.state(pending), "it could not start any more, and would be waited for"
    assert not cluster.may_submit("ann")
    assert (cluster.who(red)["status"], tenant.consumed()["status"]) == ("detaching", "deleting")
    assert "waits for jobs of the project" in cluster.who(red)["why"]
    cluster.let_go(tenant.job, "gs-2")
    ended, tenant.job = tenant.job, ""

    def detached() -> bool:
        ends(cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
        return bool(cluster.who(red)["status"] == "detached")

    until(detached, 120, "the project is detached", every=1)
    assert tenant.consumed()["status"] == "deleted"
    listed = cluster.on("gs-1", "sacctmgr", "-nP", "show", "association", f"account={account(red)}", "format=user")
    assert listed == "" and not cluster.may_submit("ann") and cluster.may_submit("gil")
    now = {one["JobID"]: one for one in cluster.jobs()}
    for one in tenant.attributed:
        found = now[one["JobID"]]
        assert (found["project_id"], found["subject"]) == (one["project_id"], one["subject"])
    assert (now[ended]["project_id"], now[ended]["subject"], now[ended]["State"]) == (red, "idp|ann", "COMPLETED")


def test_a_project_that_leaves_the_tenant_is_out_and_its_own_cluster_goes_on(tenant: Tenant) -> None:
    cluster, green = tenant.cluster, tenant.project("green")
    before = [tenant.beside.process("gs-5", unit) for unit in ("slurmctld", "slurmd")]
    assert cluster.may_submit("gil")
    cluster.fleet.control().leave_tenant(green)
    tenant.follow()
    assert not cluster.may_submit("gil") and cluster.who(green)["status"] == "detached"
    ends(tenant.beside.run(), 0)
    assert tenant.beside.instance()["health"] == "healthy"
    assert [tenant.beside.process("gs-5", unit) for unit in ("slurmctld", "slurmd")] == before
    tenant.beside.runs_a_job_on_every_worker()


def test_a_decommission_leaves_every_host_as_it_was_found(tenant: Tenant) -> None:
    cluster = tenant.cluster
    cluster.shared("detach", tenant.project("blue"))
    tenant.follow()
    assert cluster.who(tenant.project("blue"))["status"] == "detached"
    cluster.ask("decommission", "--remove-homes")

    def gone() -> bool:
        ends(cluster.run(), 0)
        return bool(cluster.instance()["status"] == "deleted")

    until(gone, 600, "the runtime is deleted", every=1)
    assert {one["status"] for one in cluster.members()} == {"deleted"}
    assert {
        (one["adapter_detail"]["host_cleaned"], *one["adapter_detail"]["residue"]) for one in cluster.members()
    } == {(True,)}
    nothing_is_claimed(cluster)
    assert {host: tenant.left_on(host) for host in HOSTS} == {host: [] for host in HOSTS}
    tenant.beside.runs_a_job_on_every_worker()
