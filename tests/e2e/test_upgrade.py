"""Upgrades within a series and across series, a slurmdbd that takes its time, and the way back by a restored backup.

The packages come from a private repository: those of the suite under other versions, so that there is always one to
move to. The "next series" has the same programs. Its slurmdbd is held, or fails, as long as a file says so: that shows
how a conversion is waited for, not a conversion. On Debian 13 it is held for longer than the 300 s that a start had.

One job runs from the beginning to the end, under everything. A story in order, on both suites.
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
from tests.commands import ends, fails
from tests.e2e.cluster import Cluster, by_hand, deploy, fleet_named, until
from tests.e2e.conftest import SUITES
from tests.e2e.private_repository import BREAK, HOLD, serve_openly, use
from tests.platform_process import Doc
from tests.runner_process import COMMAND, answer

pytestmark = [pytest.mark.e2e, pytest.mark.story("story")]

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

    def by_hand(self, *more: str) -> str:
        """The restore play, as its message and docs/usage/changes.md have it."""
        group = f"instance_{self.cluster.instance_id.replace('-', '_')}"
        play = ("ansible-playbook", "-i", "gpuaas.yml", "playbooks/restore_backup.yml", "--limit", group, *more)
        done = by_hand(self.cluster, COMMAND, "exec", "--instance", self.cluster.instance_id, "--", *play)
        if not more or "expect=failure" in more:
            return done.stdout
        ends(done, 0)
        return done.stdout

    def note(self) -> Doc:
        known: Doc = self.cluster.instance()["status_detail"]["lifecycle"]
        return known


@pytest.fixture(scope="module", params=SUITES)
def story(request: pytest.FixtureRequest) -> Iterator[Scenario]:
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
def the_job_and_the_foreign_database_stay(story: Scenario) -> Iterator[None]:
    yield
    if story.job:
        assert story.on("squeue", "--noheader", "--job", story.job.split()[0], "--format=%i %T %S %N") == story.job
    assert story.on("sh", "-c", DUMP_FOREIGN) == story.foreign


def test_a_runner_killed_while_packages_move_is_followed_by_one_that_finishes(story: Scenario) -> None:
    story.complete_a_job()
    story.hold_a_job()
    target = f"{story.base}+private2"
    asked = story.upgrade(target)
    runner = story.cluster.start_run()
    until(
        lambda: target in story.on("dpkg-query", "-W", "-f", "${Version}\n", "slurm*"),
        120,
        "a package is unpacked",
        every=0.05,
    )
    os.killpg(runner.pid, signal.SIGKILL)
    runner.communicate()
    assert story.outcome(asked)["status"] == "running"
    story.cluster.end_leases()
    ends(story.cluster.run(), 0)
    ended = story.outcome(asked)
    assert ended["status"] == "succeeded"
    assert (ended["result"]["from"], ended["result"]["to"]) == (story.base, target)
    assert ended["result"]["backup"] == f"{BACKUPS}/{asked['id']}"
    assert story.packages() == [target, target]
    story.backups.append(asked["id"])


def test_a_backup_has_a_manifest_and_is_listed_by_the_play(story: Scenario) -> None:
    manifest = json.loads(story.on("cat", f"{BACKUPS}/{story.backups[0]}/manifest.json"))
    name = re.search(r"^ClusterName=(\S+)", story.on("cat", "/etc/slurm/slurm.conf"), re.MULTILINE)
    assert name and manifest["cluster"] == name[1]
    assert (manifest["version"], manifest["change"]) == (story.base, story.backups[0])
    listed = story.by_hand()
    assert story.backups[0] in listed and story.base in listed
    kept = story.on("find", f"{BACKUPS}/{story.backups[0]}", "-type", "f", "-printf", "%f %m %u\n")
    assert {line.split(" ", 1)[1] for line in kept.splitlines()} == {"600 root"}


def test_what_cannot_be_restored_is_refused_and_no_daemon_is_stopped(story: Scenario) -> None:
    before = [story.cluster.process("gs-1", unit) for unit in ("slurmctld", "slurmdbd")]
    path = f"{BACKUPS}/{story.backups[0]}"
    story.on("sh", "-c", f"cp -a {path} {BACKUPS}/spoilt && echo x >>{BACKUPS}/spoilt/state.tar.gz")
    assert "is not a backup on this controller" in story.by_hand("-e", "backup=nosuch", "-e", "expect=failure")
    assert "was changed or damaged" in story.by_hand("-e", "backup=spoilt", "-e", "expect=failure")
    story.on("rm", "-r", f"{BACKUPS}/spoilt")
    assert [story.cluster.process("gs-1", unit) for unit in ("slurmctld", "slurmdbd")] == before


def test_a_restore_within_a_series_brings_queue_and_history_of_the_backup_back(story: Scenario) -> None:
    history, queue = story.finished(), story.queue()
    since = story.complete_a_job()
    story.hold_a_job()
    assert since in story.finished() and story.queue() != queue
    told = story.by_hand("-e", f"backup={story.backups[0]}")
    assert "before-restore-" in told
    assert (story.finished(), story.queue()) == (history, queue)
    assert story.packages() == [f"{story.base}+private2"] * 2
    serves(story)


def test_a_failed_upgrade_across_series_stops_and_names_the_restore(story: Scenario) -> None:
    controller, story.before_next = story.cluster.process("gs-1", "slurmctld"), (story.finished(), story.queue())
    story.on("touch", BREAK)
    asked = story.upgrade(NEXT[story.suite])
    ends(story.cluster.run(GPUAAS_CONVERSION_LOOK_SECONDS="60"), 1)
    ended = story.outcome(asked)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "upgrade_unfinished")
    message = ended["error"]["message"]
    assert f"{BACKUPS}/{asked['id']}" in message
    assert "playbooks/restore_backup.yml" in message and f"-e backup={asked['id']}" in message
    assert "as told, this slurmdbd does not start" in message
    assert story.packages() == [NEXT[story.suite], f"{story.base}+private2"], "nothing was taken back"
    assert story.cluster.process("gs-1", "slurmctld") == controller, "slurmctld waits for slurmdbd"
    story.backups.append(asked["id"])


def test_the_next_upgrade_goes_on_forwards_and_a_conversion_is_waited_for(story: Scenario) -> None:
    controller = story.cluster.process("gs-1", "slurmctld")
    story.on("sh", "-c", f"touch {HOLD} && rm {BREAK}")
    asked = story.upgrade(NEXT[story.suite])
    ends(story.cluster.run(), 0)
    slurmdbd, first = (
        story.cluster.process("gs-1", "slurmdbd"),
        story.cluster.controller()["adapter_detail"]["conversion"],
    )
    assert story.outcome(asked)["status"] == "running"
    assert (story.note()["phase"], story.note()["attempts"]["count"]) == ("converting database", 0)
    assert story.cluster.instance()["health"] == "progressing"
    # A runner that dies while it waits changes nothing.
    runner, noted = story.cluster.start_run(), story.on("stat", "--format=%Y", MOVE_NOTE)
    until(lambda: story.on("stat", "--format=%Y", MOVE_NOTE) != noted, 120, "the runner looks at slurmdbd", every=0.2)
    os.killpg(runner.pid, signal.SIGKILL)
    runner.communicate()
    story.cluster.end_leases()
    since = int(story.on("systemctl", "show", "slurmdbd", "--property=ActiveEnterTimestampMonotonic", "--value")) / 1e6
    held = f"until [ $(cut -d. -f1 /proc/uptime) -gt {since + HELD_SECONDS[story.suite]:.0f} ]; do sleep 1; done"
    story.on("sh", "-c", held)
    ends(story.cluster.run(), 0)
    later = story.cluster.controller()["adapter_detail"]["conversion"]
    assert later["seconds"] > HELD_SECONDS[story.suite] - 5 and later["seconds"] > first["seconds"]
    assert story.note()["attempts"]["count"] == 0
    assert story.cluster.process("gs-1", "slurmdbd") == slurmdbd, "it was never restarted"
    assert story.cluster.process("gs-1", "slurmctld") == controller, "slurmctld waits for slurmdbd"
    story.on("rm", HOLD)
    ends(story.cluster.run(), 0)
    ended = story.outcome(asked)
    assert ended["status"] == "succeeded"
    assert (ended["result"]["from"], ended["result"]["to"]) == (f"{story.base}+private2", NEXT[story.suite])
    assert ended["result"]["backup"] == f"{BACKUPS}/{story.backups[1]}", "the backup from before the first try"
    assert story.packages() == [NEXT[story.suite]] * 2
    assert story.cluster.controller()["adapter_detail"]["conversion"] is None
    serves(story)


def test_a_rollback_across_series_is_refused_and_names_the_restore(story: Scenario) -> None:
    asked: Doc = answer(story.cluster.variables, "op", "rollback", story.cluster.instance_id)
    ends(story.cluster.run(), 1)
    ended = story.outcome(asked)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "rollback_across_series")
    assert "playbooks/restore_backup.yml" in ended["error"]["message"]
    assert story.packages() == [NEXT[story.suite]] * 2


def test_a_restore_across_series_brings_packages_queue_and_history_back(story: Scenario) -> None:
    story.complete_a_job()
    story.hold_a_job()
    assert story.before_next[0] and (story.finished(), story.queue()) != story.before_next
    story.by_hand("-e", f"backup={BACKUPS}/{story.backups[1]}")
    assert story.packages() == [f"{story.base}+private2"] * 2
    assert (story.finished(), story.queue()) == story.before_next
    serves(story)
    ends(story.cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
    assert story.cluster.instance()["health"] == "healthy"


def test_the_job_from_the_beginning_ends_well(story: Scenario) -> None:
    job, story.job = story.job.split()[0], ""
    story.cluster.on("gs-2", "touch", "/tmp/go")
    until(lambda: job in story.finished(), 60, "the job completes", seen=story.finished)
    fails(story.cluster.fleet.exec("gs-1", ["ls", MOVE_NOTE]), why="nothing is under way")


def serves(story: Scenario) -> None:
    """The cluster takes a job beside the one that runs, and its record is in the database before the next chapter."""
    story.complete_a_job()
