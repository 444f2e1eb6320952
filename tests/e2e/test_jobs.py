"""Jobs are addressed exactly: an array, a heterogeneous job and jobs that wait for a worker by name, on real hosts.

A scenario in order. What is drained is brought back by `op resume`; at the end two workers are removed from under jobs
that ask for them by name.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.commands import ends
from tests.e2e.cluster import Cluster, deploy, fleet_named, until
from tests.e2e.conftest import SUITES
from tests.platform_process import Doc
from tests.runner_process import answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("jobs")]

SLEEP = "sleep 3000"
HETEROGENEOUS = """#!/bin/sh
#SBATCH --nodes=1 --exclusive --time=60 --requeue --output=/dev/null
#SBATCH hetjob
#SBATCH --nodes=1 --exclusive --time=60
sleep 3000
"""


@dataclass(frozen=True)
class Seen:
    """One line of squeue: the job's address and own id, its state, where it runs and since when."""

    address: str
    job_id: str
    state: str
    host: str
    began: str


@dataclass
class Jobs:
    cluster: Cluster

    def slurm(self, *argv: str) -> str:
        return self.cluster.on("gs-1", *argv)

    def submit(self, *options: str, wrap: str = SLEEP) -> str:
        common = ("--parsable", "--time=60", "--chdir=/tmp", "--output=/dev/null", "--requeue")
        return self.slurm("sbatch", *common, *options, "--wrap", wrap)

    def queue(self, job: str) -> dict[str, Seen]:
        """By address; elements that have not started one by one."""
        shown = self.slurm("squeue", "--noheader", "--array", "--jobs", job, "--format=%i|%A|%T|%N|%S")
        return {seen.address: seen for line in shown.splitlines() for seen in [Seen(*line.strip().split("|"))]}

    def running(self, job: str, count: int) -> dict[str, Seen]:
        """Once so many of its elements or components run."""
        goal = f"{count} of job {job} run"
        until(lambda: [one.state for one in self.queue(job).values()].count("RUNNING") == count, 60, goal)
        return self.queue(job)

    def ended(self, job: str) -> None:
        self.slurm("scancel", job)
        until(lambda: not self.slurm("squeue", "--noheader"), 30, f"job {job} is gone")

    def required_nodes(self, job: str) -> str:
        shown = self.slurm("scontrol", "--oneliner", "show", "job", job)
        return next(field.partition("=")[2] for field in shown.split() if field.startswith("ReqNodeList="))

    def ask(self, verb: str, host: str, *more: str, code: int = 0) -> Doc:
        """Ask for it and let the runner do it, which ends with this code; the operation as it is then."""
        member = self.cluster.workers()[host]["id"]
        asked: Doc = answer(self.cluster.variables, "op", verb, self.cluster.instance_id, "--members", member, *more)
        ends(self.cluster.run(), code)
        return next(one for one in self.cluster.operations() if one["id"] == asked["id"])

    def worker(self, host: str) -> Doc:
        return self.cluster.workers()[host]

    def did(self, host: str) -> str:
        return str(self.worker(host)["adapter_detail"]["leave"]["announced_eviction"])

    def flags(self, host: str) -> str:
        return self.slurm("sinfo", "--noheader", "--nodes", host, "--format=%T %E")


@pytest.fixture(scope="module", params=SUITES)
def jobs(request: pytest.FixtureRequest) -> Iterator[Jobs]:
    """gs-1 with workers gs-2, gs-3 and gs-4. Heterogeneous jobs are started by backfill only, so it looks often."""
    with fleet_named(f"e2e-jobs-{request.param}") as fleet:
        fleet.up(hosts=4, suite=request.param, warm=True)
        often = ("--slurm", "SchedulerParameters=bf_interval=2")
        cluster = deploy(fleet, "gs-1", "gs-2,gs-3,gs-4", *often, GPUAAS_RETRY_SECONDS="0")
        ends(cluster.run(), 0)
        yield Jobs(cluster)


@pytest.mark.parametrize("policy", ["cancel", "requeue"])
def test_only_the_element_on_the_drained_worker_ends(jobs: Jobs, policy: str) -> None:
    array = jobs.submit("--array=1-3", "--exclusive")
    before = jobs.running(array, 3)
    assert {one.host for one in before.values()} == {"gs-2", "gs-3", "gs-4"}
    # The one element that has the array's own id: by that id all three would end.
    hit = next(one for one in before.values() if one.job_id == array)
    others = {address: one for address, one in before.items() if address != hit.address}

    operation = jobs.ask("drain", hit.host, "--deadline", "0", "--on-deadline", policy)

    until(lambda: jobs.queue(array).get(hit.address) != hit, 30, f"{hit.address} has ended")
    after = jobs.queue(array)
    assert {address: after.get(address) for address in others} == others, "an element on another worker was touched"
    assert (after[hit.address].state == "PENDING") if policy == "requeue" else (hit.address not in after)
    assert jobs.did(hit.host) == f"{policy} of job {hit.address}"
    if operation["status"] != "succeeded":  # the job was still being cleared away
        ends(jobs.cluster.run(), 0)
    assert jobs.worker(hit.host)["adapter_detail"]["phase"] == "drained"

    jobs.ended(array)
    assert jobs.ask("resume", hit.host)["status"] == "succeeded"
    assert jobs.worker(hit.host)["status"] == "ready"
    jobs.cluster.runs_a_job_on_every_worker()


def test_a_component_is_cancelled_alone_and_a_requeue_takes_the_whole_job(jobs: Jobs) -> None:
    jobs.cluster.on("gs-1", "sh", "-c", f"cat >/tmp/het.sh <<'X'\n{HETEROGENEOUS}X")
    het = jobs.slurm("sbatch", "--parsable", "--chdir=/tmp", "/tmp/het.sh")
    before = jobs.running(het, 2)
    leader, component = before[f"{het}+0"], before[f"{het}+1"]

    jobs.ask("drain", component.host, "--deadline", "0", "--on-deadline", "cancel")
    until(lambda: component.address not in jobs.queue(het), 30, f"{component.address} has ended")
    assert jobs.queue(het)[leader.address] == leader, "component zero was touched"
    assert jobs.did(component.host) == f"cancel of job {component.address}"

    jobs.ask("drain", leader.host, "--deadline", "0", "--on-deadline", "requeue")
    until(lambda: {one.state for one in jobs.queue(het).values()} == {"PENDING"}, 30, f"all of {het} waits")
    assert set(jobs.queue(het)) == {leader.address, component.address}
    assert jobs.did(leader.host) == f"requeue of job {leader.address} (the whole heterogeneous job {het})"

    jobs.ended(het)
    for host in (component.host, leader.host):
        jobs.ask("resume", host)
    assert {worker["status"] for worker in jobs.cluster.workers().values()} == {"ready"}


def test_what_a_person_set_down_stays_out_of_service_across_a_restart(jobs: Jobs) -> None:
    jobs.slurm("scontrol", "update", "NodeName=gs-2", "State=DOWN", "Reason=broken fan")
    before = jobs.cluster.process("gs-1", "slurmctld")
    answer(jobs.cluster.variables, "op", "restart", jobs.cluster.instance_id)
    ends(jobs.cluster.run(), 0)
    assert jobs.cluster.process("gs-1", "slurmctld") != before
    assert jobs.flags("gs-2") == "drained broken fan"

    refused = jobs.ask("resume", "gs-2", code=1)
    assert (refused["status"], refused["error"]["code"]) == ("failed", "drain_not_ours")
    assert jobs.flags("gs-2") == "drained broken fan", "a person's drain was undone"
    jobs.slurm("scontrol", "update", "NodeName=gs-2", "State=RESUME")
    until(lambda: jobs.flags("gs-2").startswith("idle"), 30, "gs-2 serves")


def test_a_removal_frees_a_waiting_job_of_the_worker_that_it_names(jobs: Jobs) -> None:
    one = jobs.submit("--hold", "--nodelist=gs-4")
    array = jobs.submit("--hold", "--nodelist=gs-4", "--array=1,3-4")
    removal = jobs.ask("remove", "gs-4", "--deadline", "0", "--on-deadline", "requeue")
    assert removal["status"] == "succeeded", removal
    assert jobs.worker("gs-4")["status"] == "deleted"
    assert jobs.required_nodes(one) == "(null)"
    jobs.slurm("scontrol", "release", f"{one},{array}")
    started = {**jobs.running(one, 1), **jobs.running(array, 3)}
    assert {seen.host for seen in started.values()} <= {"gs-2", "gs-3"}
    jobs.slurm("scancel", one, array)


def test_a_waiting_job_is_named_and_a_removal_cancels_it_at_its_deadline(jobs: Jobs) -> None:
    job = jobs.submit("--hold", "--nodelist=gs-3")
    waiting = jobs.ask("remove", "gs-3")
    assert waiting["status"] == "running"
    assert jobs.worker("gs-3")["adapter_detail"]["jobs_naming_node"] == [job]
    answer(jobs.cluster.variables, "op", "cancel", jobs.cluster.instance_id, waiting["id"])

    removal = jobs.ask("remove", "gs-3", "--deadline", "0", "--on-deadline", "cancel")
    assert removal["status"] == "succeeded", removal
    assert jobs.slurm("sacct", "-XnPj", job, "--format=State").startswith("CANCELLED")
    assert jobs.worker("gs-3")["status"] == "deleted"
    jobs.cluster.runs_a_job_on_every_worker()
