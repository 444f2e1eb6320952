"""Two clusters get the same requests, step by step; the runners of one are killed in the middle of every playbook.

After each step both clusters look the same: members, operations, events, Slurm, and what lies on their hosts. A job
runs across it all. In the end nothing is left of any runner, and the hosts are what they were. On one Debian only.

Over 300 lines, because it is one scenario whose steps depend on each other.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandbox.fleet.fleet import Fleet
from tests.commands import ends
from tests.e2e.cluster import Cluster, deploy, fleet_named, log_lines, nothing_is_claimed, until
from tests.e2e.host_picture import difference, picture
from tests.leases import holder
from tests.platform_process import Doc
from tests.runner_process import answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("twins")]

# The cluster that is disturbed, and its twin. The second worker is a witness, the last host is in reserve.
HOSTS = (("gs-1", "gs-2", "gs-3", "gs-4"), ("gs-5", "gs-6", "gs-7", "gs-8"))
HELD = "until [ -e /tmp/go ]; do sleep 0.2; done; rm /tmp/go"
UNITS = "munge slurmd slurmctld slurmdbd mariadb"
# What lies on a host because of us, but for what daemons write about jobs while they run.
ON_HOST = f"""
systemctl is-active {UNITS} | tr '\\n' ' '; systemctl is-enabled {UNITS} 2>/dev/null | tr '\\n' ' '; echo
find /etc/slurm /etc/munge /etc/mysql /etc/systemd/system /var/lib/munge /var/lib/slurm /var/lib/gpuaas-slurm \
  -path '/var/lib/slurm/slurm*' -prune -o -printf '%p %y %m %u %g\\n' 2>/dev/null | sort
ps -e -o comm= | grep -E '^(munged|slurmd|slurmctld|slurmdbd|mariadbd)$' | sort
ls -A /home/*/.ansible/tmp /root/.ansible/tmp 2>/dev/null | grep -v ':$' | grep .
find /tmp /var/tmp /dev/shm -name '*ansible*' -o -name 'gpuaas*'
true
"""


@dataclass
class Twins:
    fleet: Fleet
    killed: Cluster
    twin: Cluster
    temporary: Path
    before: dict[str, set[str]]
    jobs: dict[str, str] = field(default_factory=dict)  # by the controller that knows them
    began: str = ""
    killed_at: list[str] = field(default_factory=list)

    # -- runners that die ------------------------------------------------------------------------------------

    def runner_at(self, place: str, over: Callable[[], bool]) -> "subprocess.Popen[str]":
        """A runner in the middle of that task. While another runner's lease stands, ticks pass without a play."""
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            assert not over(), f"it is over, and no runner came to {place!r}"
            dead = set(self._artifacts())
            runner = self.killed.start_run()
            while runner.poll() is None:
                if place in self._play_output(dead):
                    return runner
                time.sleep(0.02)
            _, log = runner.communicate()
            assert runner.returncode == 0, log
            time.sleep(1)
        raise AssertionError(f"no runner came to {place!r}")

    def _artifacts(self) -> Iterator[Path]:
        return self.temporary.glob("gpuaas-runner-*/artifacts/*/stdout")

    def _play_output(self, dead: set[Path]) -> str:
        """Output so far of the play that runs now."""
        output = ""
        for one in set(self._artifacts()) - dead:
            with contextlib.suppress(FileNotFoundError):
                output += one.read_text(errors="replace")
        return output

    def kill_at(self, place: str, over: Callable[[], bool], *, lease_stands: bool = False) -> None:
        """Its leases end with it, unless the test is about what happens until they run out."""
        runner = self.runner_at(place, over)
        os.killpg(runner.pid, signal.SIGKILL)
        runner.communicate()
        self.killed_at.append(place)
        assert list(self.temporary.iterdir()), "a runner that was killed cannot have tidied up"
        if not lease_stands:
            self.killed.end_leases()

    # -- a step -------------------------------------------------------------------------------------------

    def step(self, ask: Callable[[Cluster], Callable[[], bool]], *places: str) -> None:
        """Ask both for the same; the one's runners die at each of the places, the other's do not."""
        with ThreadPoolExecutor(1) as aside:
            undisturbed = aside.submit(self.undisturbed, ask)
            over = ask(self.killed)
            for place in places:
                self.kill_at(place, over)
            self.finish(self.killed, over)
            undisturbed.result()
        self.compare()

    def undisturbed(self, ask: Callable[[Cluster], Callable[[], bool]]) -> None:
        self.finish(self.twin, ask(self.twin))

    @staticmethod
    def finish(cluster: Cluster, over: Callable[[], bool]) -> None:
        def goes_on() -> bool:
            ran = cluster.run()
            ends(ran, 0)
            return over()

        until(goes_on, 300, "it is over", every=0.5)

    # -- what both must look like ------------------------------------------------------------------------------

    def compare(self) -> None:
        ours, theirs = seen(self.killed, HOSTS[0]), seen(self.twin, HOSTS[1])
        assert sorted([f"+ {one}" for one in ours - theirs] + [f"- {one}" for one in theirs - ours]) == []
        nothing_is_claimed(self.killed)
        assert self.leftovers() == []
        if self.jobs:
            assert self.killed.on("gs-1", "squeue", "-hj", self.jobs["gs-1"], "-o", "%T %S") == self.began

    def leftovers(self) -> list[str]:
        """Files and processes of the killed runners on this machine."""
        # An agent takes a moment to end.
        until(lambda: not self.processes(), 10, "no process of a runner is left", seen=self.processes)
        return [*map(str, self.temporary.iterdir())]

    def processes(self) -> list[str]:
        mark = f"TMPDIR={self.temporary}\0".encode()
        found = []
        for one in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (one / "environ").read_bytes():
                    found.append((one / "cmdline").read_text().replace("\0", " "))
        return found


def seen(cluster: Cluster, hosts: tuple[str, ...]) -> Counter[str]:
    """All that a person could compare, line by line, with each host by its place in the cluster."""
    instance = cluster.instance()
    detail = instance["status_detail"] or {}
    found: dict[str, Any] = {
        "instance": (instance["status"], instance["health"], [one["code"] for one in detail.get("reasons", [])]),
        "lifecycle": [(detail.get("lifecycle") or {}).get(name) for name in ("verb", "phase", "result")],
        "members": sorted(_shown(one) for one in cluster.members()),
        "operations": [(one["operation"], one["status"], one["error"]) for one in _operations(cluster)],
        "events": [one["type"] for one in cluster.events()],
    }
    for place, host in enumerate(hosts):
        found[f"host {place}"] = cluster.on(host, "sh", "-c", ON_HOST).splitlines()
    if instance["status"] == "running":
        ask = "sinfo -hNo '%N %P %a %t %c %E'; sacctmgr -nP show assoc format=account,user,qos"
        found["slurm"] = [line for line in cluster.on(hosts[0], "sh", "-c", ask).splitlines() if line]
    lines: Counter[str] = Counter()
    for what, values in found.items():
        for line in values:
            text = str(line)
            for place, host in enumerate(hosts):
                text = re.sub(rf"\b{host}\b", f"host-{place}", text)
            text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "{id}", text)
            lines[f"{what}: {text}"] += 1
    return lines


def _shown(member: Doc) -> list[str]:
    detail = member["adapter_detail"]
    names = ("phase", "registered_in_controller", "worker_hostname", "node_state", "host_cleaned")
    error = (detail.get("last_adapter_error") or {}).get("code")
    seen = [str(detail.get(name)) for name in names]
    return [member["component_key"], member["status"], str(error), str(holder(member)), *seen]


def _operations(cluster: Cluster) -> list[Doc]:
    return [*cluster.operations(), *cluster._get("/operations")["items"]]


def asks(*arguments: str) -> Callable[[Cluster], Callable[[], bool]]:
    """What a person types; a number is the host at that place of the cluster."""

    def ask(cluster: Cluster) -> Callable[[], bool]:
        hosts = HOSTS[0] if cluster.controller_host == HOSTS[0][0] else HOSTS[1]
        verb, *rest = [hosts[int(argument)] if argument.isdecimal() else argument for argument in arguments]
        asked: Doc = answer(cluster.variables, "op", verb, cluster.instance_id, *rest)

        def over() -> bool:
            (found,) = [one for one in _operations(cluster) if one["id"] == asked["id"]]
            assert found["status"] in ("accepted", "running", "succeeded"), found
            return bool(found["status"] == "succeeded")

        return over

    return ask


def is_running(cluster: Cluster) -> Callable[[], bool]:
    def over() -> bool:
        instance = cluster.instance()
        assert instance["status"] != "failed", instance["status_detail"]
        return bool(instance["status"] == "running")

    return over


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    temporary = tmp_path_factory.mktemp("killed")
    patient = {"GPUAAS_RETRY_SECONDS": "0", "GPUAAS_MAX_ATTEMPTS": "9"}
    with fleet_named("e2e-killed") as fleet:
        fleet.up(hosts=8, suite="trixie", warm=True)
        before = {host: picture(fleet, host) for host in ("gs-1", "gs-3")}
        killed = deploy(fleet, "gs-1", "gs-2,gs-3", **patient, GPUAAS_LEASE_SECONDS="10", TMPDIR=str(temporary))
        killed.own_process = True  # what its runners leave behind is found by their environment
        twin = deploy(fleet, "gs-5", "gs-6,gs-7", **patient)
        yield Twins(fleet, killed, twin, temporary, before)


def test_a_runner_stops_its_play_after_the_second_signal(twins: Twins) -> None:
    runner = twins.runner_at("munge : Run munge with the cluster's key", is_running(twins.killed))
    # Two of the same kind at once would count as one.
    runner.send_signal(signal.SIGTERM)
    runner.send_signal(signal.SIGINT)
    runner.communicate(timeout=60)
    assert twins.killed.instance()["status"] == "deploying"
    nothing_is_claimed(twins.killed)
    assert twins.leftovers() == []


def test_work_of_a_killed_runner_is_left_alone_while_its_lease_stands(twins: Twins) -> None:
    twins.kill_at("munge : Run munge with the cluster's key", is_running(twins.killed), lease_stands=True)
    early = twins.killed.run()
    ends(early, 0)
    assert '"plays": 0' in early.stdout, early.stdout
    assert [line for line in log_lines(early.stderr) if line["event"] == "removed what a killed runner left"]
    assert twins.leftovers() == [], "a tick without a play tidies up too"


def test_deploy(twins: Twins) -> None:
    twins.step(
        is_running,
        "slurmdbd : Run MariaDB and slurmdbd",
        "slurmctld : Try the configuration and put it live",
        "slurmd : Report that the worker is joining",
    )
    for controller, witness, *_ in HOSTS:
        submit = ("sbatch", "--parsable", "--nodelist", witness, "--output=/dev/null", "--wrap", HELD)
        job = twins.killed.on(controller, *submit)
        asked = ("squeue", "-hj", job, "-o", "%T %S")
        until(lambda: twins.killed.on(controller, *asked).startswith("RUNNING"), 60, "the job runs")  # noqa: B023
        twins.jobs[controller] = job
    twins.began = twins.killed.on("gs-1", "squeue", "-hj", twins.jobs["gs-1"], "-o", "%T %S")


def test_add(twins: Twins) -> None:
    twins.step(
        asks("add", "--allocations", "3"),
        "munge : Report that munge is being set up",
        "slurmd : Report that the worker is joining",
    )


def test_a_runner_finishes_its_step_after_the_first_signal(twins: Twins) -> None:
    with ThreadPoolExecutor(1) as aside:
        undisturbed = aside.submit(twins.undisturbed, asks("restart"))
        over = asks("restart")(twins.killed)
        twins.kill_at("Restart the controller", over)
        runner = twins.runner_at("Restart the controller", over)
        before = twins.killed.process("gs-2", "slurmd")
        runner.send_signal(signal.SIGTERM)
        _, log = runner.communicate(timeout=120)
        assert runner.returncode == 0, log
        assert [line["event"] for line in log_lines(log)].count("ending after this step") == 1
        assert twins.killed.process("gs-2", "slurmd") != before, "workers come later in the same play"
        twins.finish(twins.killed, over)
        undisturbed.result()
    twins.compare()


def test_drain(twins: Twins) -> None:
    twins.step(asks("drain", "--members", "2", "--reason", "old"), "drain : Change the nodes and take a snapshot")


def test_remove(twins: Twins) -> None:
    clean = "decommission : Restore the former state of the host"
    twins.step(asks("remove", "--members", "2"), "decommission : Stop and disable slurmd", clean)
    assert difference(twins.before["gs-3"], picture(twins.fleet, "gs-3")) == []


def test_rotate_credentials(twins: Twins) -> None:
    def keys() -> set[str]:
        return {twins.killed.on(host, "sha256sum", "/etc/munge/munge.key") for host in ("gs-1", "gs-2", "gs-4")}

    def processes() -> list[str]:
        daemons = (("gs-1", "slurmctld"), ("gs-1", "slurmdbd"), ("gs-2", "slurmd"), ("gs-4", "slurmd"))
        return [twins.killed.process(host, unit) for host, unit in daemons]

    before, running = keys(), processes()
    moment = "Promote the new key and set each host's timer"
    twins.step(asks("rotate-credentials"), "Stage the new key beside the live one", moment)
    assert len(keys()) == len(before) == 1 and keys() != before
    assert processes() == running, "a daemon was restarted"
    twins.killed.runs_a_job_on_every_worker()


def test_stop(twins: Twins) -> None:
    for controller, witness, *_ in HOSTS:
        twins.killed.on(witness, "touch", "/tmp/go")
        state = ("sacct", "-XnPj", twins.jobs.pop(controller), "--format=State")
        until(lambda: twins.killed.on(controller, *state) == "COMPLETED", 60, "the job ends as it would have")  # noqa: B023
    twins.step(asks("stop"), "Stop the worker's services", "Stop the controller's services")


def test_start(twins: Twins) -> None:
    twins.step(asks("start"), "slurmdbd : Run MariaDB and slurmdbd")
    twins.killed.runs_a_job_on_every_worker()


def test_decommission(twins: Twins) -> None:
    clean = "decommission : Restore the former state of the host"
    twins.step(asks("decommission"), clean, "PLAY [Remove the controller from its host]")
    assert difference(twins.before["gs-1"], picture(twins.fleet, "gs-1")) == []
    assert len(twins.killed_at) == 17
