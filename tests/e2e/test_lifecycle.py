"""Workers come and go while others work: a scenario in order, on real hosts of both suites.

Two jobs run on two workers from the beginning to the end. Whatever is done to the other workers, these jobs go on, and
neither slurmctld nor any other slurmd is restarted. Over 300 lines, because it is one scenario whose steps depend on
each other.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from sandbox.fleet.hosts import HostSpec
from tests.commands import EXEC, ends
from tests.e2e.cluster import Cluster, by_hand, deploy, fleet_named, until
from tests.e2e.conftest import SUITES
from tests.log_lines import named, read_lines
from tests.platform_process import Doc
from tests.runner_process import COMMAND, answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("life")]

WITNESSES = ("gs-2", "gs-3")
# A job that ends once a file exists: no test waits for a clock.
HELD = "until [ -e /tmp/go ]; do sleep 0.2; done; rm /tmp/go"


@dataclass
class Life:
    cluster: Cluster
    processes: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, int] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    log: str = ""  # of every run so far

    # -- what a Slurm user does --

    def submit(self, host: str, *options: str, script: str = HELD) -> int:
        job = self.slurm("sbatch", "--parsable", "--nodelist", host, *options, "--output=/dev/null", "--wrap", script)
        return int(job)

    def start(self, host: str, *options: str) -> int:
        job = self.submit(host, *options)
        until(lambda: self.state(job) == "RUNNING", 30, f"job {job} runs on {host}")
        return job

    def let_go(self, host: str) -> None:
        self.cluster.on(host, "touch", "/tmp/go")

    def slurm(self, *argv: str) -> str:
        return self.cluster.on("gs-1", *argv)

    def state(self, job: int) -> str:
        """As sacct has it; the latest state if the job was requeued."""
        return (self.slurm("sacct", "-XnPj", str(job), "--format=State").splitlines() or [""])[-1].split(" ")[0]

    def node(self, host: str) -> dict[str, str]:
        shown = self.slurm("scontrol", "--oneliner", "show", "node", host)
        return dict(part.partition("=")[::2] for part in shown.split(" ") if "=" in part) | {"whole": shown}

    # -- what an operator does --

    def ask(self, *arguments: str) -> Doc:
        verb, *rest = arguments
        asked: Doc = answer(self.cluster.variables, "op", verb, self.cluster.instance_id, *rest)
        return asked

    def run(self, **changes: str) -> int:
        done = self.cluster.run(**changes)
        self.log += done.stderr
        return done.returncode

    def worker(self, host: str) -> Doc:
        return self.cluster.workers()[host]

    def operation(self, asked: Doc) -> Doc:
        return next(one for one in self.cluster.operations() if one["id"] == asked["id"])

    # -- what must never change --

    def remember(self) -> None:
        self.jobs = {host: self.start(host) for host in WITNESSES}
        self.processes = self._processes()
        listed = ",".join(map(str, self.jobs.values()))
        self.started = sorted(self.slurm("squeue", "-ho", "%i %S", "-j", listed).split("\n"))

    def _processes(self) -> dict[str, str]:
        slurmds = {host: self.cluster.process(host, "slurmd") for host in WITNESSES}
        return {"slurmctld": self.cluster.process("gs-1", "slurmctld"), **slurmds}

    def others_are_unchanged(self) -> None:
        assert self._processes() == self.processes, "a daemon was restarted"
        for host, job in self.jobs.items():
            assert self.state(job) == "RUNNING", f"job {job} on {host}"
        started = self.slurm("squeue", "-ho", "%i %S", "-j", ",".join(map(str, self.jobs.values()))).split("\n")
        assert sorted(started) == self.started, "a job was started anew"
        self.cluster.runs_a_job_on_every_worker()


def play_by_hand(life: Life, playbook: str, host: str, *more: str) -> str:
    """What a person at 3 a.m. types, with the inventory plugin and nothing of the runner's."""
    limit = f"worker-{life.worker(host)['id'][:8]},controller-{life.cluster.controller()['id'][:8]}"
    play = ("ansible-playbook", "-i", "gpuaas.yml", f"playbooks/{playbook}.yml", "--limit", limit, *more)
    done = by_hand(life.cluster, COMMAND, *EXEC, "--instance", life.cluster.instance_id, "--", *play)
    ends(done, 0)
    return done.stdout


@pytest.fixture(scope="module", params=SUITES)
def life(request: pytest.FixtureRequest) -> Iterator[Life]:
    """gs-1 with workers gs-2, gs-3 and gs-4; gs-5 and gs-6 warm in reserve; gs-7 has nothing of Slurm."""
    suite = request.param
    with fleet_named(f"e2e-life-{suite}") as fleet:
        warm = [HostSpec(f"gs-{number}", suite, True) for number in range(1, 7)]
        fleet.ensure([*warm, HostSpec("gs-7", suite, False)])
        cluster = deploy(fleet, "gs-1", "gs-2,gs-3,gs-4", GPUAAS_RETRY_SECONDS="0")
        ends(cluster.run(), 0)
        one = Life(cluster)
        one.remember()
        yield one


@pytest.fixture(autouse=True)
def other_workers_are_unchanged(life: Life) -> Iterator[None]:
    yield
    life.others_are_unchanged()


def test_a_node_with_a_job_stays_draining_until_the_job_is_done(life: Life) -> None:
    job = life.start("gs-4")
    drain = life.ask("drain", "--members", "gs-4", "--reason", "new disk")
    steps = answer(life.cluster.variables, "plan", "--live", "--instance", life.cluster.instance_id)
    assert steps[-1]["why"] == f"drain gs-4 (in the way: job {job})"
    for _ in range(2):
        ends(life.cluster.run(), 0)
        worker = life.worker("gs-4")
        assert (worker["status"], worker["adapter_detail"]["phase"]) == ("draining", "draining")
        assert worker["adapter_detail"]["jobs_remaining"] == 1
        assert worker["adapter_detail"]["jobs"] == [str(job)]
        assert f"gpuaas:{drain['id']}: new disk" in life.node("gs-4")["whole"]
        assert life.operation(drain)["status"] == "running"
    life.let_go("gs-4")
    until(lambda: life.state(job) == "COMPLETED", 30, "the job completes")
    until(lambda: life.node("gs-4")["State"].startswith("IDLE"), 30, "the node is free")
    ends(life.cluster.run(), 0)
    assert life.worker("gs-4")["adapter_detail"]["phase"] == "drained"
    assert life.operation(drain)["status"] == "succeeded"


def test_a_worker_that_a_person_gives_back_serves_again(life: Life) -> None:
    life.slurm("scontrol", "update", "nodename=gs-4", "state=resume")
    until(lambda: "DRAIN" not in life.node("gs-4")["State"], 10, "the node is back")
    ends(life.cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
    assert life.worker("gs-4")["status"] == "ready"


def test_a_persons_drain_is_reported_and_left_alone(life: Life) -> None:
    life.slurm("scontrol", "update", "nodename=gs-4", "state=drain", "reason=alice: bad fan")
    drain = life.ask("drain", "--members", "gs-4", "--reason", "ours")
    ends(life.cluster.run(), 0)
    assert life.operation(drain)["status"] == "succeeded"
    assert life.worker("gs-4")["adapter_detail"]["drain_reason"].startswith("alice: bad fan")
    assert "alice: bad fan" in life.node("gs-4")["whole"]
    life.slurm("scontrol", "update", "nodename=gs-4", "state=resume")
    ends(life.cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
    assert life.worker("gs-4")["status"] == "ready"


def test_a_drain_by_hand_is_what_the_next_tick_reports(life: Life) -> None:
    play_by_hand(life, "drain_worker", "gs-4", "-e", "drain_reason='hot'")
    ends(life.cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
    assert life.worker("gs-4")["adapter_detail"]["drain_reason"].startswith("gpuaas:manual: hot")
    (reason,) = life.cluster.instance()["status_detail"]["reasons"]
    assert reason["code"] == "worker_held_by_person" and "hot" in reason["message"]


def test_recovering_by_hand_gives_a_drained_worker_back_and_restarts_nothing(life: Life) -> None:
    before = life.cluster.process("gs-4", "slurmd")
    output = play_by_hand(life, "recover", "gs-4", "-e", "undrain=true")
    assert "drain lifted" in output
    assert life.cluster.process("gs-4", "slurmd") == before
    ends(life.cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
    assert (life.worker("gs-4")["status"], life.cluster.instance()["health"]) == ("ready", "healthy")


def test_a_drain_given_up_at_its_deadline_loses_nothing(life: Life) -> None:
    job = life.start("gs-4")
    drain = life.ask("drain", "--members", "gs-4", "--deadline", "0", "--on-deadline", "give_up")
    ends(life.cluster.run(), 1)
    ended = life.operation(drain)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "drain_deadline")
    assert life.state(job) == "RUNNING" and "DRAIN" not in life.node("gs-4")["State"]
    assert life.worker("gs-4")["status"] == "ready"
    life.let_go("gs-4")
    until(lambda: life.state(job) == "COMPLETED", 30, "the job completes")


def test_the_story_of_a_failed_drain_and_of_work_by_hand_is_found_by_their_ids(life: Life) -> None:
    variables = life.cluster.variables
    drain = next(one for one in reversed(life.cluster.operations()) if one["status"] == "failed")
    (explained,) = answer(variables, "explain", drain["correlation_id"])
    plays = [one["play"] for one in explained["story"] if one["kind"] == "play"]
    assert "drain_worker" in {one["playbook"] for one in plays} and "drain_deadline" in explained["end"]
    for host in (host for play in plays for host in play["hosts"].values()):
        assert host["outcome"] == "ok" and host["first_at"] <= host["last_at"]
    (member,) = explained["members"]
    assert member["host"] == "gs-4" and member["runtime"]["node_state"] and explained["next"]
    notes = life.cluster.instance()["status_detail"]["by_hand"]["notes"]
    assert [(one["verb"], one["why"], one["exit_code"]) for one in notes] == [("exec", "a test", 0)] * 2
    assert "drain_reason=***" in notes[0]["command"] and len(notes[0]["hosts"]) == 4
    (by_hand_explained,) = answer(variables, "explain", notes[0]["correlation_id"])
    assert [one["kind"] for one in by_hand_explained["story"]] == ["by hand", "ended"]


def test_a_cancelled_drain_is_undone(life: Life) -> None:
    job = life.start("gs-4")
    drain = life.ask("drain", "--members", "gs-4")
    ends(life.cluster.run(), 0)
    assert "DRAIN" in life.node("gs-4")["State"]
    life.ask("cancel", drain["id"])
    ends(life.cluster.run(), 0)
    assert "DRAIN" not in life.node("gs-4")["State"] and life.state(job) == "RUNNING"
    assert life.worker("gs-4")["status"] == "ready"
    life.let_go("gs-4")
    until(lambda: life.state(job) == "COMPLETED", 30, "the job completes")


@pytest.mark.parametrize(
    ("policy", "ended"), [("cancel", lambda state: state == "CANCELLED"), ("requeue", lambda state: state == "PENDING")]
)
def test_at_the_deadline_jobs_are_ended_as_chosen(life: Life, policy: str, ended: Callable[[str], bool]) -> None:
    job = life.start("gs-4", "--requeue")
    drain = life.ask("drain", "--members", "gs-4", "--deadline", "0", "--on-deadline", policy)
    until(lambda: life.run() == 0 and life.operation(drain)["status"] == "succeeded", 60, "the drain ends")
    until(lambda: ended(life.state(job)), 30, f"the job is {policy}ed")
    result = life.operation(drain)["result"]["members"][life.worker("gs-4")["id"]]
    assert result["did"] == f"{policy} of job {job}"
    life.slurm("scancel", str(job))
    life.slurm("scontrol", "update", "nodename=gs-4", "state=resume")
    ends(life.cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)


def test_a_waiting_job_that_names_the_node_holds_its_removal(life: Life) -> None:
    job = life.submit("gs-4", "--hold")
    remove = life.ask("remove", "--members", "gs-4")
    ends(life.cluster.run(), 0)
    assert life.operation(remove)["status"] == "running" and life.node("gs-4")["State"]
    assert life.worker("gs-4")["status"] == "draining"
    life.slurm("scancel", str(job))
    until(lambda: not life.slurm("squeue", "-hj", str(job)) or None, 30, "the waiting job is gone")
    ends(life.cluster.run(), 0)
    assert life.operation(remove)["status"] == "succeeded"
    gone = life.worker("gs-4")
    assert gone["status"] == "deleted" and gone["adapter_detail"]["host_cleaned"] is True
    assert gone["adapter_detail"]["allocation_released_by"] == "platform"
    assert "gs-4" not in life.slurm("sinfo", "-hNo", "%N").split()


def test_a_removed_worker_can_be_added_again(life: Life) -> None:
    life.ask("add", "--allocations", "gs-4")
    ends(life.cluster.run(), 0)
    assert [one["status"] for host, one in life.cluster.workers().items() if host == "gs-4"] == ["ready"]


FOOTPRINT = (
    "dpkg-query -W | sort; getent passwd | sort; getent group | sort;"
    " find /etc /opt /srv /usr /var/lib /var/log /var/spool /home /root -xdev"
    # What the package tools write down about themselves is theirs.
    " -not -path '/var/lib/apt/*' -not -path '/var/lib/ucf/*' -not -path '/var/lib/dpkg/*'"
    " -not -path '/var/log/journal/*' -not -path '/var/log/apt/*'"
    " -not -name '*.pyc' -not -name __pycache__ -not -name 'ld.so.cache'"
    " -not -path '/var/lib/systemd/*' -not -path '/etc/*-' -not -name 'dpkg.log' -not -name 'alternatives.log' | sort"
)


def test_a_worker_removed_by_hand_is_shown_as_gone_until_its_record_is_closed(life: Life) -> None:
    play_by_hand(life, "remove_worker", "gs-4")
    ends(life.cluster.run(GPUAAS_OBSERVE_SECONDS="0"), 0)
    assert life.worker("gs-4")["adapter_detail"]["node_state"] == "ABSENT"
    assert life.cluster.instance()["health"] == "degraded"
    life.ask("remove", "--members", life.worker("gs-4")["id"])
    ends(life.cluster.run(), 0)
    assert (life.worker("gs-4")["status"], life.cluster.instance()["health"]) == ("deleted", "healthy")
    life.ask("add", "--allocations", "gs-4")
    ends(life.cluster.run(), 0)


def test_a_cold_host_is_left_as_it_was_found(life: Life) -> None:
    before = life.cluster.on("gs-7", "sh", "-c", FOOTPRINT)
    life.ask("add", "--allocations", "gs-7")
    ends(life.cluster.run(), 0)
    assert life.worker("gs-7")["status"] == "ready"
    assert life.cluster.on("gs-7", "sh", "-c", FOOTPRINT) != before
    life.ask("remove", "--members", "gs-7")
    ends(life.cluster.run(), 0)
    assert life.worker("gs-7")["status"] == "deleted"
    after = life.cluster.on("gs-7", "sh", "-c", FOOTPRINT)
    assert sorted(set(after.splitlines()) ^ set(before.splitlines())) == []
    assert "slurm" not in life.cluster.on("gs-7", "ps", "-eo", "args")


def test_replace_brings_the_new_one_before_the_old_one_goes(life: Life) -> None:
    replace = life.ask("replace", "--members", "gs-4", "--allocations", "gs-5")
    ends(life.cluster.run(), 0)
    assert life.operation(replace)["status"] == "succeeded"
    assert (life.worker("gs-5")["status"], life.worker("gs-4")["status"]) == ("ready", "deleted")
    assert "gs-4" not in life.slurm("sinfo", "-hNo", "%N").split()


def test_a_replacement_that_fails_leaves_the_old_one_serving(life: Life) -> None:
    life.cluster.on("gs-6", "mv", "/usr/sbin/munged", "/usr/sbin/munged.away")
    replace = life.ask("replace", "--members", "gs-5", "--allocations", "gs-6")
    until(lambda: life.run() == 1, 60, "the replacement fails")
    ended = life.operation(replace)
    assert (ended["status"], ended["error"]["code"]) == ("failed", "replacement_failed")
    assert life.worker("gs-5")["status"] == "ready" and life.worker("gs-6")["status"] == "failed"


def test_a_worker_that_failed_half_way_is_cleaned_by_remove(life: Life) -> None:
    failed = life.worker("gs-6")["id"]
    life.ask("remove", "--members", failed)
    ends(life.cluster.run(), 0)
    assert life.worker("gs-6")["status"] == "deleted"
    life.cluster.on("gs-6", "mv", "/usr/sbin/munged.away", "/usr/sbin/munged")


def test_a_drain_survives_a_runner_that_is_killed_in_the_middle(life: Life) -> None:
    job = life.start("gs-5")
    drain = life.ask("drain", "--members", "gs-5")
    killed = life.cluster.start_run(GPUAAS_LEASE_SECONDS="10")
    until(lambda: life.worker("gs-5")["status"] == "draining", 30, "it has begun")
    dead = life.operation(drain)["claimed_by"]
    assert dead
    killed.kill()
    killed.wait()
    until(lambda: life.run() == 0 and life.operation(drain)["claimed_by"] != dead, 30, "another runner takes it over")
    until(lambda: life.run() == 0 and "DRAIN" in life.node("gs-5")["State"], 60, "another runner goes on", every=1)
    assert life.state(job) == "RUNNING"
    life.let_go("gs-5")
    until(lambda: life.state(job) == "COMPLETED", 30, "the job completes")
    until(lambda: life.run() == 0 and life.operation(drain)["status"] == "succeeded", 60, "it ends", every=1)


def test_a_worker_whose_host_is_gone_is_removed_and_not_called_clean(life: Life) -> None:
    life.cluster.fleet.kill("gs-5")
    began = time.monotonic()
    remove = life.ask("remove", "--members", "gs-5", "--host-patience", "0")
    until(lambda: life.run() == 0 and life.operation(remove)["status"] == "succeeded", 120, "it is taken out", every=1)
    gone = life.worker("gs-5")
    assert gone["status"] == "deleted" and gone["adapter_detail"]["host_cleaned"] is False
    assert gone["adapter_detail"]["host_left"], f"after {time.monotonic() - began:.0f} s"
    assert "gs-5" not in life.slurm("sinfo", "-hNo", "%N").split()


def test_every_line_of_the_runners_log_is_as_its_schema_has_it(life: Life) -> None:
    lines = read_lines(life.log)
    assert len(named(lines, "play")) > 5 and any("error_code" in line for line in lines)
