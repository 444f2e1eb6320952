"""What metrics and traces cost: CPU of a join in `run --watch`, and CPU of loading what they need. For ./dev bench.

Two runners serve the cluster in turn, one with telemetry and one without; the other is stopped meanwhile. So both are
warm, and other load on this machine affects both alike.
"""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.e2e.cluster import Cluster
from tests.otlp import collecting
from tests.prometheus import free_port
from tests.runner_process import COMMAND, inherited
from tests.waits import until

TURNS = 10
PASS_SECONDS = 1
# A join's CPU is counted until its spans have been sent.
SENT_SECONDS = 2.5
LOADED = {
    "metrics": "from runner.telemetry import exposition, metrics",
    "traces": "from runner.telemetry import otlp, spans; otlp._Pipeline('http://127.0.0.1:1', '', {})",
}


class Spent(NamedTuple):
    """CPU seconds, user and system: of the runner with its children that have ended, and of its own process alone."""

    all: float
    own: float


@dataclass
class Cost:
    """What each join took."""

    off: list[Spent] = field(default_factory=list)
    on: list[Spent] = field(default_factory=list)

    @property
    def without(self) -> Spent:
        return _median(self.off)

    @property
    def with_it(self) -> Spent:
        return _median(self.on)

    @property
    def ratio(self) -> float:
        return self.with_it.all / self.without.all

    @property
    def ratio_of_own(self) -> float:
        """The same, without what Ansible's processes take: they have no telemetry, and vary by more than it costs."""
        return 1 + (self.with_it.own - self.without.own) / self.without.all


def _median(spent: Sequence[Spent]) -> Spent:
    return Spent(statistics.median(one.all for one in spent), statistics.median(one.own for one in spent))


def of_joins(cluster: Cluster, host: str, turns: int = TURNS) -> Cost:
    cost = Cost()
    with collecting() as collector:
        on = {"GPUAAS_METRICS_LISTEN": str(free_port()), "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        with _watching(cluster, {}) as plain, _watching(cluster, on) as full:
            for turn in range(turns + 1):  # the first one is not counted: each loads what it needs
                pair = ((plain, cost.off), (full, cost.on))
                for runner, spent in pair if turn % 2 else reversed(pair):  # neither is always the second
                    with _awake(runner):
                        took = _join(cluster, host, runner)
                        spent += [took] if turn else []
                        kind = "with" if spent is cost.on else "without"
                        sys.stderr.write(f"bench: join {turn} of {turns}, {kind} telemetry: CPU {took.all:.2f} s\n")
                        cluster.command("op", "remove", cluster.instance_id, "--members", host)
                        _until_ended(cluster)
        if not collector.of("host"):
            raise SystemExit("bench: the collector got no span of a host")
    return cost


def of_imports() -> dict[str, float]:
    """CPU seconds that loading adds to a cold `run`."""
    base = "from runner.cli import main; import requests"  # Vault's client loads requests too
    return {
        what: statistics.median(_cpu_of(f"{base}; {code}") for _ in range(TURNS))
        - statistics.median(_cpu_of(base) for _ in range(TURNS))
        for what, code in LOADED.items()
    }


def _cpu_of(code: str) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-c", code], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _join(cluster: Cluster, host: str, runner: "subprocess.Popen[bytes]") -> Spent:
    before = _cpu(runner.pid)
    cluster.add(host)
    _until_ended(cluster)
    time.sleep(SENT_SECONDS)
    if cluster.workers()[host]["status"] != "ready":
        raise SystemExit(f"bench: {host} did not become ready")
    after = _cpu(runner.pid)
    return Spent(after.all - before.all, after.own - before.own)


def _until_ended(cluster: Cluster) -> None:
    """Also wait for the release of members, which the runner whose turn is next would wait for."""

    def ended() -> bool:
        is_open = any(one["status"] in ("accepted", "running") for one in cluster.operations())
        return not is_open and not any(one["adapter_detail"].get("claimed_by") for one in cluster.members())

    until(ended, 300, "it has ended")


@contextlib.contextmanager
def _watching(cluster: Cluster, changes: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A runner that stays; it is stopped until it is its turn."""
    variables = {**inherited(), **cluster.variables, "GPUAAS_WATCH_SECONDS": str(PASS_SECONDS), **changes}
    runner = subprocess.Popen([COMMAND, "run", "--watch"], env=variables, stderr=subprocess.DEVNULL)
    try:
        os.kill(runner.pid, signal.SIGSTOP)
        yield runner
    finally:
        os.kill(runner.pid, signal.SIGCONT)
        runner.terminate()
        runner.wait(120)


@contextlib.contextmanager
def _awake(runner: "subprocess.Popen[bytes]") -> Iterator[None]:
    os.kill(runner.pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.kill(runner.pid, signal.SIGSTOP)


def _cpu(process: int) -> Spent:
    """So far. Its children are Ansible, ssh and the agent."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    times = [int(one) / os.sysconf("SC_CLK_TCK") for one in fields[11:15]]
    return Spent(sum(times), sum(times[:2]))
