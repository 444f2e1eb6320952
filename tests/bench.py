"""./dev bench: how long deploys, joins and idle ticks take, with a target for each.

It is a benchmark, not a test: the exit code is 0 whatever the figures are, unless it could not measure. Joins are
compared with a floor measured in the same run: one ssh command that does the same work by hand.

Over 300 lines, because all scenarios share one set of hosts and one table of figures.
"""

import argparse
import base64
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from rich.console import Console
from rich.table import Table

from runner.act import play_secrets
from runner.model.platform import InstanceStatus
from runner.platform.client import Client
from runner.slurm.app import SLURM
from sandbox.fleet.fleet import Fleet
from sandbox.fleet.hosts import Host
from sandbox.fleet.images import SUITES
from tests import telemetry_cost
from tests.e2e.cluster import Cluster, deploy, fleet_named
from tests.e2e.record_events import settings_of
from tests.runner_process import gpuaas_slurm, own_processes

OUT = Path("bench.json")
ROUNDS = 3
GROWTH_ROUNDS = 5
SETTINGS = {"GPUAAS_LOG_LEVEL": "warning", "GPUAAS_OBSERVE_SECONDS": "86400"}


@dataclass(frozen=True)
class Figure:
    suite: str
    what: str
    value: float
    unit: str
    target: float | None = None

    @property
    def verdict(self) -> str:
        return "" if self.target is None else "ok" if self.value <= self.target else "over"


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--suite", action="append", choices=SUITES, help="default: bookworm")
    parser.add_argument("--quick", action="store_true", help="leave out how joins grow with their number")
    parser.add_argument("--telemetry", action="store_true", help="measure only what metrics and traces cost")
    parser.add_argument("--turns", type=int, default=telemetry_cost.TURNS, help="joins for what telemetry costs")
    given, load = parser.parse_args(), os.getloadavg()
    figures: list[Figure] = []
    for suite in given.suite or ["bookworm"]:
        if not given.telemetry:
            figures += measure(suite)
            figures += [] if given.quick else measure_seven(suite) + measure_growth(suite)
        if given.telemetry or not given.quick:
            figures += measure_telemetry(suite, given.turns)
    show(figures, load)
    OUT.write_text(json.dumps(document(figures, load), indent=2) + "\n")
    sys.stdout.write(f"written: {OUT}\n")


def measure(suite: str) -> list[Figure]:
    """gs-1 with workers gs-2 and gs-3; then from gs-4 on, one worker by hand and one by the adapter in turn."""
    with fleet_named("bench") as fleet:
        fleet.up(hosts=3 + 2 * ROUNDS, suite=suite, warm=True)
        started = time.monotonic()
        cluster = deploy(fleet, "gs-1", "gs-2,gs-3", **SETTINGS)
        tick(cluster)
        if cluster.instance()["status"] != InstanceStatus.RUNNING:
            raise SystemExit(f"bench: the deploy did not end running: {cluster.instance()['status_detail']}")
        deployed = time.monotonic() - started
        idle, requests = measure_idle(cluster)
        by_hand, by_adapter = measure_joins(cluster)
    floor, join = statistics.median(by_hand), statistics.median(by_adapter)
    return [
        Figure(suite, "deploy, controller and 2 warm workers: request to running", deployed, "s", 45),
        Figure(suite, "idle tick: wall", idle, "s", 1.5),
        Figure(suite, "idle tick: API requests for the instance", requests, "", 2),
        Figure(suite, f"join one warm worker by hand over ssh: the floor (median of {ROUNDS})", floor, "s"),
        Figure(suite, f"join one warm worker: the tick that does it (median of {ROUNDS})", join, "s"),
        Figure(suite, "join one warm worker: ratio to the floor", join / floor, "x", 6),
    ]


def measure_seven(suite: str) -> list[Figure]:
    """gs-1 with worker gs-2; then gs-3 to gs-9 at once by the adapter, and gs-10 to gs-16 at once by hand."""
    with fleet_named("bench") as fleet:
        fleet.up(hosts=16, suite=suite, warm=True)
        cluster = deploy(fleet, "gs-1", "gs-2", **SETTINGS)
        tick(cluster)
        cluster.add(names(3, 9))
        seven = tick(cluster)
        hosts = {host.name: host for host in fleet.hosts()}
        with hand_tools(cluster) as environment:
            by_hand = join_by_hand(cluster, [hosts[name] for name in names(10, 16).split(",")], environment)
    return [
        Figure(suite, "join 7 warm workers at once by hand: the floor", by_hand, "s"),
        Figure(suite, "join 7 warm workers at once: the tick that does it", seven, "s"),
        Figure(suite, "join 7 warm workers at once: ratio to the floor", seven / by_hand, "x", 4),
    ]


def measure_growth(suite: str) -> list[Figure]:
    """One more worker, to clusters of 1, 7 and 15.

    The three clusters run at the same time and gs-27 joins and leaves each in turn, so that a slow minute of this
    machine affects all of them.
    """
    with fleet_named("bench") as fleet:
        fleet.up(hosts=27, suite=suite, warm=True)
        clusters = {
            1: deploy(fleet, "gs-1", "gs-2", "--name", "one", **SETTINGS),
            7: deploy(fleet, "gs-3", names(4, 10), "--name", "seven", **SETTINGS),
            15: deploy(fleet, "gs-11", names(12, 26), "--name", "fifteen", **SETTINGS),
        }
        tick(clusters[1], everything=True)
        for size, cluster in clusters.items():  # not measured: new hosts and cold caches
            if len(cluster.workers()) != size:
                raise SystemExit(f"bench: {len(cluster.workers())} workers where {size} should be")
            one_more(cluster)
        walls = [{size: one_more(cluster) for size, cluster in clusters.items()} for _ in range(GROWTH_ROUNDS)]
    cost = {size: statistics.median(wall[size] for wall in walls) for size in clusters}
    return [
        *(
            Figure(suite, f"join one to a cluster of {size} (median of {GROWTH_ROUNDS})", wall, "s")
            for size, wall in cost.items()
        ),
        Figure(suite, "join one: slowest of these to fastest", max(cost.values()) / min(cost.values()), "x", 1.15),
    ]


def measure_telemetry(suite: str, turns: int) -> list[Figure]:
    """gs-1 with worker gs-2; gs-3 joins and leaves, each time by a runner with telemetry or by one without."""
    with fleet_named("bench") as fleet:
        fleet.up(hosts=3, suite=suite, warm=True)
        cluster = deploy(fleet, "gs-1", "gs-2", **SETTINGS)
        tick(cluster)
        cost = telemetry_cost.of_joins(cluster, "gs-3", turns)
    imports = telemetry_cost.of_imports()
    joins, own = (
        f"CPU of a join in run --watch (median of {turns})",
        "of that the runner's own process, without Ansible",
    )
    return [
        Figure(suite, f"{joins}: without telemetry", cost.without.all, "s"),
        Figure(suite, f"{joins}: with metrics and traces", cost.with_it.all, "s"),
        Figure(suite, f"{own}: without telemetry", cost.without.own, "s"),
        Figure(suite, f"{own}: with metrics and traces", cost.with_it.own, "s"),
        Figure(suite, f"what telemetry adds to that CPU: ratio of the medians of {turns}", cost.ratio, "x", 1.03),
        Figure(suite, "the same, counted in the runner's own process, where it runs", cost.ratio_of_own, "x", 1.03),
        *(
            Figure(suite, f"CPU of loading {what}, once in a process", seconds, "s")
            for what, seconds in imports.items()
        ),
    ]


def names(first: int, last: int) -> str:
    return ",".join(f"gs-{number}" for number in range(first, last + 1))


def one_more(cluster: Cluster) -> float:
    """gs-27 joins, and leaves again so that the cluster is as large as before."""
    cluster.add("gs-27")
    wall = tick(cluster)
    if cluster.workers()["gs-27"]["status"] != "ready":
        raise SystemExit("bench: gs-27 did not become ready")
    remove(cluster, "gs-27")
    return wall


def remove(cluster: Cluster, host: str) -> None:
    done = cluster.command("op", "remove", cluster.instance_id, "--members", host)
    if done.returncode != 0:
        raise SystemExit(f"bench: cannot request the removal of {host}: {done.stderr}")
    tick(cluster)


def tick(cluster: Cluster, *, everything: bool = False) -> float:
    started = time.monotonic()
    done = gpuaas_slurm(cluster.variables, "run", *([] if everything else ["--instance", cluster.instance_id]))
    if done.returncode != 0:
        raise SystemExit(f"bench: the runner ended with {done.returncode}: {done.stderr[-2000:]}")
    return time.monotonic() - started


def measure_idle(cluster: Cluster) -> tuple[float, float]:
    """Wall time of a tick that has nothing to do, and its requests besides the token and the list of instances."""
    control = cluster.fleet.control()
    last = control.requests()["last"]
    walls = [tick(cluster, everything=True) for _ in range(ROUNDS)]
    seen = control.requests(since=last)["requests"]
    own = [one for one in seen if cluster.instance_id in one["path"]]
    return statistics.median(walls), len(own) / ROUNDS


def measure_joins(cluster: Cluster) -> tuple[list[float], list[float]]:
    """In turn, so that other load on this machine affects both alike."""
    hosts = {host.name: host for host in cluster.fleet.hosts()}
    by_hand: list[float] = []
    by_adapter: list[float] = []
    with hand_tools(cluster) as environment:
        for turn in range(ROUNDS):
            by_hand.append(join_by_hand(cluster, [hosts[f"gs-{4 + 2 * turn}"]], environment))
            name = f"gs-{5 + 2 * turn}"
            cluster.add(name)
            started = time.monotonic()
            tick(cluster)
            by_adapter.append(time.monotonic() - started)
            if cluster.workers()[name]["status"] != "ready":
                raise SystemExit(f"bench: {name} did not become ready")
    return by_hand, by_adapter


@contextmanager
def hand_tools(cluster: Cluster) -> Iterator[dict[str, str]]:
    """The environment of an ssh-agent that holds the access credential."""
    settings = settings_of(cluster.fleet)
    with Client(settings) as client:
        instance = client.instance(UUID(cluster.instance_id))
        with play_secrets.access(client, settings, SLURM, instance) as access:
            yield {**os.environ, **access.environment}


def join_by_hand(cluster: Cluster, hosts: Sequence[Host], environment: dict[str, str]) -> float:
    """The work of an administrator who knows exactly what to do: one ssh command per host, all at once, and one check
    on the controller."""
    controller = cluster.controller_host
    address = next(one.address for one in cluster.fleet.hosts() if one.name == controller)
    script = by_hand_script(cluster.fleet, controller, address)
    # One check for all hosts, started before the joins, so that the check itself adds no time.
    names = shlex.quote(",".join(host.name for host in hosts))
    shown = (
        f"until [ $(sinfo -N -h -t idle -n {names} -o %N 2>&1 | sort -u | wc -l) = {len(hosts)} ]; do sleep 0.1; done"
    )
    with ThreadPoolExecutor(max_workers=len(hosts) + 1) as pool:
        idle = pool.submit(cluster.fleet.exec, controller, ["timeout", "60", "sh", "-c", shown])
        started = time.monotonic()
        list(pool.map(lambda host: start_by_hand(host, script, environment), hosts))
        if idle.result().returncode != 0:
            raise SystemExit(f"bench: {names}, joined by hand, did not become idle")
        return time.monotonic() - started


def start_by_hand(host: Host, script: str, environment: dict[str, str]) -> None:
    ssh = [
        *("ssh", "-o", "UserKnownHostsFile=/dev/null", "-o", "GlobalKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"),
        *("-o", "StrictHostKeyChecking=yes", "-o", f"KnownHostsCommand=/bin/echo {host.address} {host.host_key}"),
        *("-o", "BatchMode=yes", f"ops@{host.address}", "sudo sh -eu"),
    ]
    done = subprocess.run(ssh, input=script, env=environment, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench: the join by hand failed on {host.name} ({done.returncode}): {done.stderr.strip()}")


def by_hand_script(fleet: Fleet, controller: str, address: str) -> str:
    """The same key, unit and start as the role's on a worker. The script goes to ssh by stdin, since it has the key."""
    key = base64.b64encode(base64.b64decode(fleet.exec(controller, ["base64", "/etc/munge/munge.key"]).stdout)).decode()
    unit = fleet.exec("gs-2", ["cat", "/etc/systemd/system/slurmd.service.d/gpuaas-slurm.conf"]).stdout
    if address not in unit:
        raise SystemExit("bench: the worker's drop-in is not where it was expected")
    return f"""
install -d -o munge -g munge -m 700 /etc/munge
umask 077
echo {key} | base64 -d >/etc/munge/munge.key
chown munge: /etc/munge/munge.key
chmod 400 /etc/munge/munge.key
umask 022
mkdir -p /etc/systemd/system/slurmd.service.d
cat >/etc/systemd/system/slurmd.service.d/by-hand.conf <<'UNIT'
{unit}UNIT
pmix=$(echo /usr/lib/*/pmix2/lib)
if [ -e "$pmix/libpmix.so.2" ] && [ ! -e "$pmix/libpmix.so" ]; then ln -s libpmix.so.2 "$pmix/libpmix.so"; fi
mkdir -p /etc/slurm
: >/etc/slurm/gres-here.conf
systemctl daemon-reload
systemctl enable --quiet --now munge
systemctl enable --quiet --now slurmd
"""


def document(figures: list[Figure], load: tuple[float, float, float]) -> dict[str, object]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "load_before": [round(one, 2) for one in load],
            "load_after": [round(one, 2) for one in os.getloadavg()],
        },
        "figures": [asdict(figure) | {"verdict": figure.verdict} for figure in figures],
    }


def show(figures: list[Figure], load: tuple[float, float, float]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("SUITE", "FIGURE", "VALUE", "TARGET", ""):
        table.add_column(column, justify="right" if column in ("VALUE", "TARGET") else "left")
    for one in figures:
        target = "" if one.target is None else f"<= {one.target:g} {one.unit}"
        table.add_row(one.suite, one.what, f"{one.value:.2f} {one.unit}".strip(), target.strip(), one.verdict)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(table)
    console.print(
        f"load of this machine before: {load[0]:.1f}, after: {os.getloadavg()[0]:.1f}; {os.cpu_count()} cores"
    )


if __name__ == "__main__":
    with own_processes():  # the measured time includes the start of the command
        main()
