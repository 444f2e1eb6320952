"""Workers that hang in the middle of a play keep no other instance waiting. On one Debian only.

Each hanging worker lacks a package, and its package source answers and never ends. So its play waits for apt.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from sandbox.fleet.fleet import Fleet
from tests.commands import ends
from tests.e2e.cluster import Cluster, Runner, deploy, fleet_named, until

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("hanging")]

SUITE = "bookworm"
CONTROLLERS = [f"gs-{number}" for number in range(1, 6)]
SLOW_WORKERS = [f"gs-{number}" for number in range(6, 10)]
USUAL, WITH_ONE, WITH_FOUR = "gs-10", "gs-11", "gs-12"
LATER = 5  # seconds from the moment when the others hang to the request

ASKED = "/run/endless-source-asked"
# A byte a second: apt gives up on a source that sends nothing for half a minute.
SERVER = f"""
import pathlib, socket, threading, time
def answer(caller):
    caller.recv(10000)
    pathlib.Path("{ASKED}").touch()
    caller.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/plain\\r\\nConnection: close\\r\\n\\r\\n")
    while True:
        caller.sendall(b"#")
        time.sleep(1)
listener = socket.create_server(("127.0.0.1", 8099))
while True:
    threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
"""
BREAK = """
dpkg --purge --force-depends slurmd
mkdir -p /root/apt-aside
mv /etc/apt/sources.list /etc/apt/sources.list.d /root/apt-aside/ 2>/dev/null
mkdir -p /etc/apt/sources.list.d
echo "deb [trusted=yes] http://127.0.0.1:8099/ endless main" > /etc/apt/sources.list
systemd-run --quiet --unit=endless-source python3 -c "$0"
"""
MEND = """
rm -r /etc/apt/sources.list /etc/apt/sources.list.d
mv /root/apt-aside/* /etc/apt/
systemctl stop endless-source
"""


@dataclass
class Hanging:
    fleet: Fleet
    slow: list[Cluster]
    other: Cluster
    usual: float = 0.0
    runner: Runner | None = None

    def seconds_to_ready(self, host: str) -> float:
        """From the request until the worker is ready."""
        begun = time.monotonic()
        self.other.add(host)

        def is_ready() -> bool:
            return bool(self.other.workers().get(host, {}).get("status") == "ready")

        until(is_ready, 300, f"{host} is ready", seen=self.other.workers)
        return time.monotonic() - begun

    def add_slow(self, number: int) -> None:
        self.slow[number].add(SLOW_WORKERS[number])

    def wait_for_apt(self, number: int) -> None:
        """Until apt has its endless answer."""
        host = SLOW_WORKERS[number]
        until(lambda: self.fleet.exec(host, ["test", "-e", ASKED]).returncode == 0, 300, f"apt on {host} hangs")

    def status(self, number: int) -> str:
        return str(self.slow[number].operations()[-1]["status"])

    @property
    def is_running(self) -> bool:
        return self.runner is not None and self.runner.poll() is None


@pytest.fixture(scope="module")
def scenario() -> Iterator[Hanging]:
    quick = {"GPUAAS_WATCH_SECONDS": "2", "GPUAAS_LOG_LEVEL": "warning", "GPUAAS_RETRY_SECONDS": "5"}
    with fleet_named("e2e-hanging") as fleet:
        fleet.up(hosts=12, suite=SUITE, warm=True)
        *slow, other = [deploy(fleet, host, "", **quick, GPUAAS_MAX_ATTEMPTS="9") for host in CONTROLLERS]
        ends(other.command("run", "--json"), 0)
        for host in SLOW_WORKERS:
            ends(fleet.exec(host, ["sh", "-c", BREAK, SERVER]), 0)
        made = Hanging(fleet, slow, other)
        yield made
        if made.runner and made.is_running:
            made.runner.kill()


def test_the_usual_time_of_an_add_is_measured(scenario: Hanging) -> None:
    watching = scenario.other.start_run("run", "--watch")
    scenario.usual = scenario.seconds_to_ready(USUAL)
    watching.terminate()
    watching.communicate(timeout=120)
    assert watching.returncode == 0


def test_with_one_hanging_instance_an_add_takes_at_most_twice_its_usual_time(scenario: Hanging) -> None:
    """By `run`, as the timer starts it: it goes on for the others while it waits for the one that hangs."""
    scenario.add_slow(0)
    scenario.runner = scenario.other.start_run("run", "--json")
    scenario.wait_for_apt(0)
    time.sleep(LATER)
    took = scenario.seconds_to_ready(WITH_ONE)
    assert took <= 2 * scenario.usual, f"{took:.1f} s, usually {scenario.usual:.1f} s"
    assert scenario.is_running and scenario.status(0) == "running", "the other one still hangs"


def test_with_four_hanging_instances_an_add_takes_at_most_twice_its_usual_time(scenario: Hanging) -> None:
    for number in (1, 2, 3):
        scenario.add_slow(number)
    for number in (1, 2, 3):
        scenario.wait_for_apt(number)
    time.sleep(LATER)
    took = scenario.seconds_to_ready(WITH_FOUR)
    assert took <= 2 * scenario.usual, f"{took:.1f} s, usually {scenario.usual:.1f} s"
    assert scenario.is_running and [scenario.status(number) for number in range(4)] == ["running"] * 4


def test_what_hung_is_retried_and_ends_well_once_the_source_does(scenario: Hanging) -> None:
    for host in SLOW_WORKERS:
        ends(scenario.fleet.exec(host, ["sh", "-c", MEND]), 0)
    assert scenario.runner is not None
    scenario.runner.communicate(timeout=600)
    until(lambda: scenario.other.command("run").returncode == 0 and _all_ready(scenario), 600, "every worker is ready")
    for cluster in (*scenario.slow, scenario.other):
        cluster.runs_a_job_on_every_worker()


def _all_ready(scenario: Hanging) -> bool:
    return all(scenario.status(number) == "succeeded" for number in range(len(scenario.slow)))
