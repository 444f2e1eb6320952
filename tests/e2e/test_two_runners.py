"""Two real runners on real hosts: one repairs a worker and is suspended in the middle, the other removes that worker.

The lease of the first runs out, the second takes the worker out and cleans its host, and then the first wakes up in the
middle of its play. Whatever it still sends comes too late: the host stays clean. On one Debian only.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.fleet.fleet import Fleet
from tests.commands import EXEC, ends
from tests.e2e.cluster import Cluster, Runner, by_hand, deploy, fleet_named, log_lines, nothing_is_claimed, until
from tests.e2e.host_picture import difference, picture
from tests.platform_process import Doc
from tests.runner_process import COMMAND, answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("pair")]

REPAIRED, WITNESS = "gs-2", "gs-3"


@dataclass
class Pair:
    fleet: Fleet
    cluster: Cluster
    temporary: Path
    before: set[str]
    suspended: Runner | None = None
    removal: Doc | None = None

    def processes(self) -> list[int]:
        """The first runner, its Ansible and whatever they started, by their environment."""
        mark, found = f"TMPDIR={self.temporary}\0".encode(), []
        for one in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in one.read_bytes():
                    found.append(int(one.parent.name))
        return found

    def signal(self, number: signal.Signals) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def play_output(self) -> str:
        """Output so far of the first runner's play."""
        output = ""
        for one in self.temporary.glob("gpuaas-runner-*/artifacts/*/stdout"):
            with contextlib.suppress(FileNotFoundError):
                output += one.read_text(errors="replace")
        return output

    def worker(self) -> Doc:
        return self.cluster.workers()[REPAIRED]

    def run(self) -> list[Doc]:
        """A tick of the second runner; gives back its log."""
        ran = self.cluster.run(GPUAAS_RUNNER_ID="remover")
        ends(ran, 0)
        return log_lines(ran.stderr)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    temporary = tmp_path_factory.mktemp("first")
    with fleet_named("e2e-pair") as fleet:
        fleet.up(hosts=3, suite="trixie", warm=True)
        before = picture(fleet, REPAIRED)
        quick = {"GPUAAS_LEASE_SECONDS": "15", "GPUAAS_OBSERVE_SECONDS": "0", "GPUAAS_RETRY_SECONDS": "0"}
        cluster = deploy(fleet, "gs-1", f"{REPAIRED},{WITNESS}", "--slurm", "SlurmdTimeout=10", **quick)
        ends(cluster.run(), 0)
        made = Pair(fleet, cluster, temporary, before)
        yield made
        made.signal(signal.SIGKILL)


def test_a_runner_is_suspended_in_the_middle_of_a_repair(pair: Pair) -> None:
    pair.cluster.on(REPAIRED, "systemctl", "stop", "slurmd")
    state = ("sinfo", "--noheader", f"--nodes={REPAIRED}", "--format=%T")
    until(lambda: "down" in pair.cluster.on("gs-1", *state), 120, "Slurm gives the worker up", every=0.5)
    runner = pair.cluster.start_run(GPUAAS_RUNNER_ID="repairer", TMPDIR=str(pair.temporary))
    deadline = time.monotonic() + 120
    while "TASK [munge : Run munge with the cluster's key]" not in pair.play_output():
        assert runner.poll() is None and time.monotonic() < deadline, pair.play_output()[-2000:]
        time.sleep(0.02)
    pair.signal(signal.SIGSTOP)
    pair.suspended = runner
    assert pair.worker()["adapter_detail"]["claimed_by"] == "repairer"


def test_a_removal_waits_for_the_holder_while_its_lease_stands(pair: Pair) -> None:
    pair.removal = answer(pair.cluster.variables, "op", "remove", pair.cluster.instance_id, "--members", REPAIRED)
    steps = answer(pair.cluster.variables | {"GPUAAS_RUNNER_ID": "remover"}, "plan")
    worker = pair.worker()
    assert worker["status"] == "ready"
    waiting = [one for one in steps if one["step"] == "wait" and "runner repairer holds it until" in one["why"]]
    assert any(worker["id"][:8] in one["subject"] for one in waiting), steps
    refused = by_hand(pair.cluster, COMMAND, *EXEC, "--instance", pair.cluster.instance_id, "--", "true")
    ends(refused, 3)
    assert "repairer" in refused.stderr


def test_once_the_lease_has_run_out_the_other_runner_removes_the_worker(pair: Pair) -> None:
    def removed() -> bool:
        pair.run()
        return bool(pair.worker()["status"] == "deleted")

    until(removed, 240, "the worker is removed", every=1, seen=pair.worker)
    assert pair.worker()["adapter_detail"]["host_cleaned"] is True
    assert difference(pair.before, picture(pair.fleet, REPAIRED)) == []


def test_the_first_runner_continues_and_changes_nothing(pair: Pair) -> None:
    assert pair.suspended
    record, witness = pair.worker(), pair.cluster.process(WITNESS, "slurmd")
    pair.signal(signal.SIGCONT)
    _, log = pair.suspended.communicate(timeout=120)
    assert {"lease lost", "left to another runner"} & {line["event"] for line in log_lines(log)}, log
    until(lambda: not pair.processes(), 30, "nothing of it runs any more", seen=pair.processes)
    assert pair.worker() == record, "it wrote to a member that is gone"
    assert difference(pair.before, picture(pair.fleet, REPAIRED)) == []
    assert pair.cluster.process(WITNESS, "slurmd") == witness


def test_both_end_in_one_consistent_state(pair: Pair) -> None:
    pair.run()
    assert pair.removal
    (operation,) = [one for one in pair.cluster.operations() if one["id"] == pair.removal["id"]]
    assert operation["status"] == "succeeded"
    assert REPAIRED not in pair.cluster.on("gs-1", "sinfo", "-hNo", "%N").split()
    nothing_is_claimed(pair.cluster)
    pair.cluster.runs_a_job_on_every_worker()
