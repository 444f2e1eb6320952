"""A whole cluster is stopped, started and restarted: a scenario in order, on real hosts of both suites.

What waits in the queue, what was accounted for and what runs is there before and after, by job id.
"""

import sys
from dataclasses import dataclass

import pytest

from tests.commands import EXEC, ends
from tests.e2e.cluster import Cluster, by_hand, kill, until
from tests.e2e.conftest import SUITES
from tests.platform_process import Doc
from tests.runner_process import COMMAND, answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("standing")]

# A job that ends once a file exists: no test waits for a clock.
HELD = "until [ -e /tmp/go ]; do sleep 0.2; done; rm /tmp/go"
CONTROLLER_UNITS = ("slurmctld", "slurmdbd", "mariadb", "munge")


@dataclass
class Whole:
    cluster: Cluster
    suite: str

    # -- what a Slurm user does --

    def slurm(self, *argv: str) -> str:
        return self.cluster.on("gs-1", *argv)

    def submit(self, host: str, script: str, *options: str) -> int:
        argv = ("sbatch", "--parsable", "--nodelist", host, *options, "--output=/dev/null", "--wrap", script)
        return int(self.slurm(*argv))

    def start_job(self, host: str) -> int:
        job = self.submit(host, HELD)
        until(lambda: self.state(job) == "RUNNING", 60, f"job {job} runs on {host}")
        return job

    def let_go(self, host: str, job: int) -> None:
        self.cluster.on(host, "touch", "/tmp/go")
        until(lambda: self.state(job) == "COMPLETED", 60, f"job {job} completes")

    def state(self, job: int) -> str:
        return (self.slurm("sacct", "-XnPj", str(job), "--format=State").splitlines() or [""])[-1].split(" ")[0]

    def queued(self, job: int) -> str:
        """Id, state, when it started and where."""
        return self.slurm("squeue", "-ho", "%i %T %S %N", "-j", str(job))

    def partition(self) -> str:
        return self.slurm("sinfo", "-ho", "%a").split()[0]

    # -- what an operator does --

    def ask(self, *arguments: str) -> Doc:
        verb, *rest = arguments
        asked: Doc = answer(self.cluster.variables, "op", verb, self.cluster.instance_id, *rest)
        return asked

    def run(self, **changes: str) -> int:
        done = self.cluster.run(**changes)
        sys.stdout.write(done.stderr)  # shown if the test fails
        return done.returncode

    def operation(self, asked: Doc) -> Doc:
        listed: list[Doc] = answer(self.cluster.variables, "get", "operations", "--instance", self.cluster.instance_id)
        return next(one for one in listed if one["id"] == asked["id"])

    def is_over(self, asked: Doc, **changes: str) -> bool:
        self.run(**changes)
        return self.operation(asked)["status"] not in ("accepted", "running")

    def play(self, playbook: str, *more: str) -> tuple[int, str]:
        """What a person types, with the inventory plugin and nothing of the runner's; its output if it failed."""
        play = ("ansible-playbook", "-i", "gpuaas.yml", f"playbooks/{playbook}.yml", *more)
        done = by_hand(self.cluster, COMMAND, *EXEC, "--instance", self.cluster.instance_id, "--", *play)
        return done.returncode, "" if done.returncode == 0 else done.stdout + done.stderr

    # -- what the API reports --

    def reported(self) -> tuple[str, str, list[str]]:
        instance = self.cluster.instance()
        return instance["status"], instance["health"], [one["code"] for one in instance["status_detail"]["reasons"]]

    def phases(self) -> set[tuple[str, str]]:
        return {(one["status"], one["adapter_detail"]["phase"]) for one in self.cluster.members()}

    def units(self, host: str, *names: str) -> set[tuple[str, str]]:
        """Whether each unit runs, and whether it would after a reboot."""
        shown = self.cluster.on(host, "systemctl", "show", "--property=ActiveState,UnitFileState", *names)
        blocks = [dict(line.split("=") for line in block.splitlines()) for block in shown.split("\n\n")]
        return {(block["ActiveState"], block["UnitFileState"]) for block in blocks}


@pytest.fixture(scope="module")
def whole(standing: Cluster) -> Whole:
    """gs-1 with workers gs-2 and gs-3."""
    return Whole(standing.changed(GPUAAS_RETRY_SECONDS="0", GPUAAS_LEASE_SECONDS="20"), standing.suite)


def test_stop_waits_for_what_runs_and_keeps_what_waits(whole: Whole) -> None:
    running = whole.start_job("gs-2")
    waiting = whole.submit("gs-2", "true", f"--dependency=afterok:{running}")
    stop = whole.ask("stop", "--reason", "new racks")
    drain = whole.ask("drain", "--members", "gs-3")
    for _ in range(2):
        ends(whole.cluster.run(), 0)
        assert whole.reported() == ("running", "progressing", ["stopping"])
        assert whole.partition() == "down"
        note = whole.cluster.instance()["status_detail"]["lifecycle"]
        assert (note["operation_id"], note["jobs"], note["jobs_left"]) == (stop["id"], [str(running)], 1)
        assert whole.operation(stop)["status"] == "running"
        assert whole.phases() == {("ready", "serving")}, "no worker is drained for it"
    assert f"waits for job {running}" in whole.cluster.command("status", "-o", "wide").stdout
    whole.let_go("gs-2", running)
    assert whole.state(waiting) == "PENDING", "it could run now, but the partition is closed"
    until(lambda: whole.is_over(stop), 120, "the cluster is stopped", every=1)
    assert whole.operation(stop)["status"] == "succeeded"
    assert whole.reported() == ("stopped", "unknown", ["stopped"])
    assert whole.phases() == {("requested", "stopped")}
    assert whole.units("gs-1", *CONTROLLER_UNITS) == {("inactive", "disabled")}
    for host in ("gs-2", "gs-3"):
        assert whole.units(host, "slurmd", "munge") == {("inactive", "disabled")}

    idle = answer(whole.cluster.variables, "run", "--instance", whole.cluster.instance_id)
    assert (idle["plays"], idle["writes"]) == (0, 0), "a stopped cluster is left alone"
    assert whole.operation(drain)["status"] == "accepted", "what is asked of members waits"
    refused = whole.ask("restart")
    ends(whole.cluster.run(), 1)
    assert whole.operation(refused)["error"]["code"] == "instance_state"

    start = whole.ask("start")
    until(lambda: whole.is_over(start), 120, "the cluster is started", every=1)
    assert whole.operation(start)["status"] == "succeeded", whole.operation(start)
    assert {one["status"] for one in whole.operation(start)["result"]["members"].values()} == {"ready"}
    until(lambda: whole.state(waiting) == "COMPLETED", 60, "what waited runs, under the id it had")
    assert whole.state(running) == "COMPLETED", "what ran is remembered"
    assert whole.units("gs-1", *CONTROLLER_UNITS) == {("active", "enabled")}
    until(lambda: whole.is_over(drain), 120, "what was asked meanwhile goes on", every=1)
    assert whole.operation(drain)["status"] == "succeeded"
    assert whole.reported() == ("running", "healthy", [])
    assert whole.cluster.workers()["gs-3"]["adapter_detail"]["phase"] == "drained"


def test_restart_renews_every_daemon_and_keeps_the_running_job(whole: Whole) -> None:
    """gs-3 is drained by us since the test before; the partition is closed by a person. Both stay as they are."""
    job = whole.start_job("gs-2")
    whole.slurm("scontrol", "update", "partitionname=main", "state=down")
    before = whole.queued(job)
    renewed = [("gs-1", "slurmdbd"), ("gs-1", "slurmctld"), ("gs-2", "slurmd"), ("gs-3", "slurmd")]
    kept = [("gs-1", "munge"), ("gs-1", "mariadb"), ("gs-2", "munge")]
    first = {place: whole.cluster.process(*place) for place in (*renewed, *kept)}
    restart = whole.ask("restart")
    until(lambda: whole.is_over(restart), 200, "the cluster is restarted", every=1)
    assert whole.operation(restart)["status"] == "succeeded", whole.operation(restart)
    assert whole.reported() == ("running", "unhealthy", ["no_partition_open"]), "the person's closing is shown"
    for place in renewed:
        assert whole.cluster.process(*place) != first[place], f"{place} was not restarted"
    for place in kept:
        assert whole.cluster.process(*place) == first[place], f"{place} was restarted"
    assert whole.queued(job) == before, "id, state, start and node"
    assert whole.partition() == "down"
    assert whole.cluster.workers()["gs-3"]["adapter_detail"]["phase"] == "drained"
    assert "DRAIN" in whole.slurm("scontrol", "show", "node", "gs-3")
    whole.let_go("gs-2", job)
    whole.slurm("scontrol", "update", "partitionname=main", "state=up")
    whole.slurm("scontrol", "update", "nodename=gs-3", "state=resume")

    def all_serve() -> bool:
        return whole.run(GPUAAS_OBSERVE_SECONDS="0") == 0 and whole.phases() == {("ready", "serving")}

    until(all_serve, 60, "the drained one is given back", every=1)
    whole.cluster.runs_a_job_on_every_worker()


def test_a_stop_that_is_called_off_opens_the_cluster_again(whole: Whole) -> None:
    job = whole.start_job("gs-2")
    stop = whole.ask("stop")
    ends(whole.cluster.run(), 0)
    assert whole.partition() == "down"
    whole.ask("cancel", stop["id"])
    ends(whole.cluster.run(), 0)
    assert whole.partition() == "up"
    assert whole.reported() == ("running", "healthy", [])
    assert whole.state(job) == "RUNNING"
    whole.let_go("gs-2", job)
    whole.cluster.runs_a_job_on_every_worker()


def test_a_person_with_ansible_closes_restarts_and_opens_a_cluster(whole: Whole) -> None:
    job = whole.start_job("gs-2")
    before = whole.queued(job)
    assert whole.play("quiesce") == (0, "")
    assert whole.partition() == "down"
    code, output = whole.play("stop")
    assert code == 2 and f"Jobs are running: {job}" in output
    assert whole.units("gs-1", *CONTROLLER_UNITS) == whole.units("gs-2", "slurmd") == {("active", "enabled")}
    first = whole.cluster.process("gs-2", "slurmd")
    assert whole.play("restart") == (0, "")
    assert whole.cluster.process("gs-2", "slurmd") != first
    assert (whole.queued(job), whole.partition()) == (before, "down")
    assert whole.play("quiesce", "-e", "reopen=true") == (0, "")
    assert whole.partition() == "up"
    whole.let_go("gs-2", job)


def test_at_the_deadline_jobs_are_ended_and_a_dead_host_is_not_waited_for(whole: Whole) -> None:
    """The last one, and on one suite: it kills a host, and the runner in the middle of the start."""
    if whole.suite != SUITES[0]:
        pytest.skip("does not depend on the version of Slurm")
    job = whole.start_job("gs-2")
    dead = whole.cluster.workers()["gs-3"]
    whole.cluster.fleet.kill("gs-3")
    stop = whole.ask("stop", "--deadline", "0", "--on-deadline", "cancel")
    until(lambda: whole.is_over(stop), 200, "the cluster is stopped", every=1)
    ended = whole.operation(stop)
    assert (ended["status"], ended["result"]["did"]) == ("succeeded", f"cancel of job {job}")
    assert list(ended["result"]["not_reached"]) == [f"worker-{dead['id'][:8]}"]
    assert whole.reported() == ("stopped", "unknown", ["stopped"])
    assert whole.cluster.workers()["gs-3"]["adapter_detail"]["last_adapter_error"]["code"] == "not_stopped"

    start = whole.ask("start")
    runner = whole.cluster.start_run(GPUAAS_LEASE_SECONDS="10")
    until(lambda: ("reconciling", "accounting") in whole.phases(), 120, "the start is half done")
    assert whole.reported() == ("deploying", "progressing", ["starting"])
    kill(runner)
    until(lambda: whole.is_over(start, GPUAAS_MAX_ATTEMPTS="1"), 200, "another runner finishes it", every=1)
    ended = whole.operation(start)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "partly_failed")
    workers = whole.cluster.workers()
    assert (workers["gs-2"]["status"], workers["gs-3"]["status"]) == ("ready", "failed")
    assert workers["gs-3"]["adapter_detail"]["last_adapter_error"]["code"] == "host_unreachable"
    assert whole.reported()[:2] == ("running", "degraded")
    assert whole.state(job) == "CANCELLED"
