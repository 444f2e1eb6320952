"""Upgrades within a series and across series, a slurmdbd that takes its time, and the way back by a restored backup.

The packages come from a private repository: those of the suite under other versions, so that there is always one to
move to. The "next series" has the same programs. Its slurmdbd is held, or fails, as long as a file exists: that shows
how a conversion is waited for, not a conversion. On Debian 13 it is held for longer than the 300 s that a start had.

One job runs from the beginning to the end, under everything. A scenario in order, on both suites.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from sandbox.fleet.hosts import HostSpec
from tests.commands import EXEC, ends, fails
from tests.e2e.cluster import Cluster, by_hand, deploy, fleet_named, until
from tests.e2e.conftest import SUITES
from tests.e2e.private_repository import BREAK, HOLD, serve_openly, use
from tests.platform_process import Doc
from tests.runner_process import COMMAND, answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("scenario")]

HOSTS = ("gs-1", "gs-2")
NEXT = {"bookworm": "23.02.9-1", "trixie": "25.05.9-1"}
HELD_SECONDS = {"bookworm": 20, "trixie": 310}
HELD_JOB = "until [ -e /tmp/go ]; do sleep 0.2; done"
OURS = "dpkg-query -W -f '${source:Package} ${Package} ${Version}\\n' | awk '$1 == \"slurm-wlm\" {print $3}' | sort -u"
MOVE_NOTE = "/var/lib/gpuaas-slurm/slurm/move.json"
BACKUPS = "/var/lib/gpuaas-slurm/slurm/backups"
FOREIGN = "CREATE DATABASE other; CREATE TABLE other.t (x INT); INSERT INTO other.t VALUES (42);"
DUMP_FOREIGN = "mariadb-dump --skip-dump-date --databases other | sha256sum"


@dataclass
class Scenario:
    suite: str
    cluster: Cluster
    base: str
    job: str = ""
    foreign: str = ""
    backups: list[str] = field(default_factory=list)
    before_next: tuple[list[str], str] = ([], "")  # history and queue before the upgrade across series

    def on(self, *argv: str) -> str:
        return self.cluster.on("gs-1", *argv)

    def upgrade(self, version: str) -> Doc:
        asked: Doc = answer(
            self.cluster.variables, "op", "upgrade", self.cluster.instance_id, "--slurm-version", version
        )
        return asked

    def outcome(self, asked: Doc) -> Doc:
        found: Doc = self.cluster.api.get(f"{self.cluster.path}/operations/{asked['id']}").json()
        return found

    def packages(self) -> list[str]:
        return [self.cluster.on(host, "sh", "-c", OURS) for host in HOSTS]

    def queue(self) -> str:
        return self.on("squeue", "--noheader", "--sort=i", "--format=%i %T %r")

    def finished(self) -> list[str]:
        """Jobs that ended, as the accounting database has them."""
        rows = self.on("sacct", "-aXnP", "--starttime=now-1day", "--format=JobID,State").splitlines()
        return [job for job, _, state in (row.partition("|") for row in rows) if state == "COMPLETED"]

    def complete_a_job(self) -> str:
        job = self.on("sbatch", "--parsable", "--output=/dev/null", "--wrap=true")
        until(lambda: job in self.finished(), 60, f"job {job} is in the accounting database", seen=self.finished)
        return job

    def hold_a_job(self) -> str:
        return self.on("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true")

    def by_hand(self, *more: str, code: int = 0) -> str:
        """The restore play, as its message and docs/usage/changes.md have it."""
        group = f"instance_{self.cluster.instance_id.replace('-', '_')}"
        play = ("ansible-playbook", "-i", "gpuaas.yml", "playbooks/restore_backup.yml", "--limit", group, *more)
        done = by_hand(self.cluster, COMMAND, *EXEC, "--instance", self.cluster.instance_id, "--", *play)
        return ends(done, code).stdout

    def note(self) -> Doc:
        note: Doc = self.cluster.instance()["status_detail"]["lifecycle"]
        return note


@pytest.fixture(scope="module", params=SUITES)
def scenario(request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """gs-1 with the worker gs-2; a job that runs throughout, one that is held, and a database that is not ours."""
    with fleet_named(f"e2e-upgrade-{request.param}") as fleet:
        fleet.ensure([HostSpec(name, request.param, warm=True) for name in HOSTS])
        repository = serve_openly(fleet, "gs-1", {"all": ["", "+private2", NEXT[request.param]]})
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: use(fleet, host, repository, "all"), HOSTS))
        cluster = deploy(fleet, "gs-1", "gs-2", GPUAAS_RETRY_SECONDS="0", GPUAAS_CONVERSION_LOOK_SECONDS="5")
        ends(cluster.run(), 0)
        one = Scenario(request.param, cluster, repository.base)
        one.on("mariadb", "--execute", FOREIGN)
        one.foreign = one.on("sh", "-c", DUMP_FOREIGN)
        job = one.on("sbatch", "--parsable", "--output=/dev/null", "--wrap", HELD_JOB)
        until(lambda: "RUNNING" in one.on("squeue", "-ho", "%T", "-j", job), 60, "the job runs")
        one.job = one.on("squeue", "--noheader", "--job", job, "--format=%i %T %S %N")
        yield one


@pytest.fixture(autouse=True)
def the_job_and_the_foreign_database_stay(scenario: Scenario) -> Iterator[None]:
    yield
    if scenario.job:
        assert (
            scenario.on("squeue", "--noheader", "--job", scenario.job.split()[0], "--format=%i %T %S %N")
            == scenario.job
        )
    assert scenario.on("sh", "-c", DUMP_FOREIGN) == scenario.foreign


def test_a_runner_killed_while_packages_move_is_followed_by_one_that_finishes(scenario: Scenario) -> None:
    scenario.complete_a_job()
    scenario.hold_a_job()
    target = f"{scenario.base}+private2"
    asked = scenario.upgrade(target)
    runner = scenario.cluster.start_run()
    until(
        lambda: target in scenario.on("dpkg-query", "-W", "-f", "${Version}\n", "slurm*"),
        120,
        "a package is unpacked",
        every=0.05,
    )
    os.killpg(runner.pid, signal.SIGKILL)
    runner.communicate()
    assert scenario.outcome(asked)["status"] == "running"
    scenario.cluster.end_leases()
    ends(scenario.cluster.run(), 0)
    ended = scenario.outcome(asked)
    assert ended["status"] == "succeeded"
    assert (ended["result"]["from"], ended["result"]["to"]) == (scenario.base, target)
    assert ended["result"]["backup"] == f"{BACKUPS}/{asked['id']}"
    assert scenario.packages() == [target, target]
    scenario.backups.append(asked["id"])


def test_a_backup_has_a_manifest_and_is_listed_by_the_play(scenario: Scenario) -> None:
    manifest = json.loads(scenario.on("cat", f"{BACKUPS}/{scenario.backups[0]}/manifest.json"))
    name = re.search(r"^ClusterName=(\S+)", scenario.on("cat", "/etc/slurm/slurm.conf"), re.MULTILINE)
    assert name and manifest["cluster"] == name[1]
    assert (manifest["version"], manifest["change"]) == (scenario.base, scenario.backups[0])
    listed = scenario.by_hand()
    assert scenario.backups[0] in listed and scenario.base in listed
    kept = scenario.on("find", f"{BACKUPS}/{scenario.backups[0]}", "-type", "f", "-printf", "%f %m %u\n")
    assert {line.split(" ", 1)[1] for line in kept.splitlines()} == {"600 root"}


def test_what_cannot_be_restored_is_refused_and_no_daemon_is_stopped(scenario: Scenario) -> None:
    before = [scenario.cluster.process("gs-1", unit) for unit in ("slurmctld", "slurmdbd")]
    path = f"{BACKUPS}/{scenario.backups[0]}"
    scenario.on("sh", "-c", f"cp -a {path} {BACKUPS}/spoilt && echo x >>{BACKUPS}/spoilt/state.tar.gz")
    assert "is not a backup on this controller" in scenario.by_hand("-e", "backup=nosuch", code=2)
    assert "was changed or damaged" in scenario.by_hand("-e", "backup=spoilt", code=2)
    scenario.on("rm", "-r", f"{BACKUPS}/spoilt")
    assert [scenario.cluster.process("gs-1", unit) for unit in ("slurmctld", "slurmdbd")] == before


def test_a_restore_within_a_series_brings_queue_and_history_of_the_backup_back(scenario: Scenario) -> None:
    history, queue = scenario.finished(), scenario.queue()
    since = scenario.complete_a_job()
    scenario.hold_a_job()
    assert since in scenario.finished() and scenario.queue() != queue
    output = scenario.by_hand("-e", f"backup={scenario.backups[0]}")
    assert "before-restore-" in output
    assert (scenario.finished(), scenario.queue()) == (history, queue)
    assert scenario.packages() == [f"{scenario.base}+private2"] * 2
    serves(scenario)


def test_a_failed_upgrade_across_series_stops_and_names_the_restore(scenario: Scenario) -> None:
    controller, scenario.before_next = (
        scenario.cluster.process("gs-1", "slurmctld"),
        (scenario.finished(), scenario.queue()),
    )
    scenario.on("touch", BREAK)
    asked = scenario.upgrade(NEXT[scenario.suite])
    ends(scenario.cluster.run(GPUAAS_CONVERSION_LOOK_SECONDS="60"), 1)
    ended = scenario.outcome(asked)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "upgrade_unfinished")
    message = ended["error"]["message"]
    assert f"{BACKUPS}/{asked['id']}" in message
    assert "playbooks/restore_backup.yml" in message and f"-e backup={asked['id']}" in message
    assert "as requested, this slurmdbd does not start" in message
    assert scenario.packages() == [NEXT[scenario.suite], f"{scenario.base}+private2"], "nothing was taken back"
    assert scenario.cluster.process("gs-1", "slurmctld") == controller, "slurmctld waits for slurmdbd"
    scenario.backups.append(asked["id"])


def test_the_next_upgrade_goes_on_forwards_and_a_conversion_is_waited_for(scenario: Scenario) -> None:
    controller = scenario.cluster.process("gs-1", "slurmctld")
    scenario.on("sh", "-c", f"touch {HOLD} && rm {BREAK}")
    asked = scenario.upgrade(NEXT[scenario.suite])
    ends(scenario.cluster.run(), 0)
    slurmdbd, first = (
        scenario.cluster.process("gs-1", "slurmdbd"),
        scenario.cluster.controller()["adapter_detail"]["conversion"],
    )
    assert scenario.outcome(asked)["status"] == "running"
    assert (scenario.note()["phase"], scenario.note()["attempts"]["count"]) == ("converting database", 0)
    assert scenario.cluster.instance()["health"] == "progressing"
    # A runner that dies while it waits changes nothing.
    runner, noted = scenario.cluster.start_run(), scenario.on("stat", "--format=%Y", MOVE_NOTE)
    until(
        lambda: scenario.on("stat", "--format=%Y", MOVE_NOTE) != noted, 120, "the runner looks at slurmdbd", every=0.2
    )
    os.killpg(runner.pid, signal.SIGKILL)
    runner.communicate()
    scenario.cluster.end_leases()
    since = (
        int(scenario.on("systemctl", "show", "slurmdbd", "--property=ActiveEnterTimestampMonotonic", "--value")) / 1e6
    )
    held = f"until [ $(cut -d. -f1 /proc/uptime) -gt {since + HELD_SECONDS[scenario.suite]:.0f} ]; do sleep 1; done"
    scenario.on("sh", "-c", held)
    ends(scenario.cluster.run(), 0)
    later = scenario.cluster.controller()["adapter_detail"]["conversion"]
    assert later["seconds"] > HELD_SECONDS[scenario.suite] - 5 and later["seconds"] > first["seconds"]
    assert scenario.note()["attempts"]["count"] == 0
    assert scenario.cluster.process("gs-1", "slurmdbd") == slurmdbd, "it was never restarted"
    assert scenario.cluster.process("gs-1", "slurmctld") == controller, "slurmctld waits for slurmdbd"
    scenario.on("rm", HOLD)
    ends(scenario.cluster.run(), 0)
    ended = scenario.outcome(asked)
    assert ended["status"] == "succeeded"
    assert (ended["result"]["from"], ended["result"]["to"]) == (f"{scenario.base}+private2", NEXT[scenario.suite])
    assert ended["result"]["backup"] == f"{BACKUPS}/{scenario.backups[1]}", "the backup from before the first try"
    assert scenario.packages() == [NEXT[scenario.suite]] * 2
    assert scenario.cluster.controller()["adapter_detail"]["conversion"] is None
    serves(scenario)


def test_a_rollback_across_series_is_refused_and_names_the_restore(scenario: Scenario) -> None:
    asked: Doc = answer(scenario.cluster.variables, "op", "rollback", scenario.cluster.instance_id)
    ends(scenario.cluster.run(), 1)
    ended = scenario.outcome(asked)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "rollback_across_series")
    assert "playbooks/restore_backup.yml" in ended["error"]["message"]
    assert scenario.packages() == [NEXT[scenario.suite]] * 2


def test_a_restore_across_series_brings_packages_queue_and_history_back(scenario: Scenario) -> None:
    scenario.complete_a_job()
    scenario.hold_a_job()
    assert scenario.before_next[0] and (scenario.finished(), scenario.queue()) != scenario.before_next
    scenario.by_hand("-e", f"backup={BACKUPS}/{scenario.backups[1]}")
    assert scenario.packages() == [f"{scenario.base}+private2"] * 2
    assert (scenario.finished(), scenario.queue()) == scenario.before_next
    serves(scenario)
    ends(scenario.cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
    assert scenario.cluster.instance()["health"] == "healthy"


def test_the_job_from_the_beginning_ends_well(scenario: Scenario) -> None:
    job, scenario.job = scenario.job.split()[0], ""
    scenario.cluster.on("gs-2", "touch", "/tmp/go")
    until(lambda: job in scenario.finished(), 60, "the job completes", seen=scenario.finished)
    fails(scenario.cluster.fleet.exec("gs-1", ["ls", MOVE_NOTE]), why="nothing is under way")


def serves(scenario: Scenario) -> None:
    """The cluster takes a job beside the one that runs, and its record is in the database before the next step."""
    scenario.complete_a_job()
