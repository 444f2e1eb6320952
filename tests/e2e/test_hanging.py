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
from tests.platform_process import Doc

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("hanging")]

SUITE = "bookworm"
CONTROLLERS = [f"gs-{number}" for number in range(1, 6)]
SLOW_WORKERS = [f"gs-{number}" for number in range(6, 10)]
USUAL, WITH_ONE, WITH_FOUR, WITH_ONE_PLACE = "gs-10", "gs-11", "gs-12", "gs-13"
LATER = 5  # seconds from the moment when the others hang to the request
# Longer than any part of an add that works takes without an event.
STALL = 15

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

    def detail(self, number: int) -> Doc:
        """adapter_detail of the slow worker."""
        found: Doc = self.slow[number].workers()[SLOW_WORKERS[number]]["adapter_detail"]
        return found

    def errors(self) -> list[str | None]:
        """The code of each slow worker's last error."""
        found = [self.detail(number)["last_adapter_error"] for number in range(len(self.slow))]
        return [error and error["code"] for error in found]

    def end_runner(self) -> None:
        """With one signal; plays that have stalled are stopped."""
        assert self.runner is not None
        self.runner.terminate()
        self.runner.communicate(timeout=300)
        assert self.runner.returncode == 0
        self.runner = None

    @property
    def is_running(self) -> bool:
        return self.runner is not None and self.runner.poll() is None


@pytest.fixture(scope="module")
def scenario() -> Iterator[Hanging]:
    quick = {"GPUAAS_WATCH_SECONDS": "2", "GPUAAS_LOG_LEVEL": "warning", "GPUAAS_RETRY_SECONDS": "5"}
    with fleet_named("e2e-hanging") as fleet:
        fleet.up(hosts=13, suite=SUITE, warm=True)
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
    assert scenario.detail(0)["last_adapter_error"] is None, "and was not stopped"


def test_with_four_hanging_instances_an_add_takes_at_most_twice_its_usual_time(scenario: Hanging) -> None:
    for number in (1, 2, 3):
        scenario.add_slow(number)
    for number in (1, 2, 3):
        scenario.wait_for_apt(number)
    time.sleep(LATER)
    took = scenario.seconds_to_ready(WITH_FOUR)
    assert took <= 2 * scenario.usual, f"{took:.1f} s, usually {scenario.usual:.1f} s"
    assert scenario.is_running and [scenario.status(number) for number in range(4)] == ["running"] * 4
    assert scenario.errors() == [None] * 4, "none of them was stopped"


def test_after_a_signal_plays_that_hang_are_stopped_and_the_run_ends(scenario: Hanging) -> None:
    scenario.end_runner()
    assert scenario.errors() == ["play_stalled"] * 4
    assert [scenario.status(number) for number in range(4)] == ["running"] * 4, "they are retried"


def test_with_one_place_for_plays_a_stalled_play_is_stopped_and_an_add_proceeds(scenario: Hanging) -> None:
    """The modules of the stopped plays still run on the hosts, so the retries hang as well: they wait for the lock."""
    attempts = [scenario.detail(number)["attempt"] for number in range(4)]
    bounds = {"GPUAAS_PARALLEL_PLAYS": "1", "GPUAAS_STALL_SECONDS": str(STALL)}
    scenario.runner = scenario.other.start_run("run", "--watch", **bounds)

    def stopped() -> list[Doc]:
        """Details of workers whose retry was stopped."""
        details = [scenario.detail(number) for number in range(4)]
        return [one for one, before in zip(details, attempts, strict=True) if one["attempt"] > before]

    found = until(stopped, 300, "a retry is stopped, because others wait", seen=scenario.errors)
    for detail in found:
        error = detail["last_adapter_error"]
        assert (error["code"], error["class"]) == ("play_stalled", "retryable"), error
        assert detail["next_attempt_at"], "it is retried after a pause"
    scenario.seconds_to_ready(WITH_ONE_PLACE)
    assert scenario.is_running and [scenario.status(number) for number in range(4)] == ["running"] * 4
    scenario.end_runner()


def test_what_hung_is_retried_and_ends_well_once_the_source_does(scenario: Hanging) -> None:
    for host in SLOW_WORKERS:
        ends(scenario.fleet.exec(host, ["sh", "-c", MEND]), 0)
    until(lambda: scenario.other.command("run").returncode == 0 and _all_ready(scenario), 600, "every worker is ready")
    for cluster in (*scenario.slow, scenario.other):
        cluster.runs_a_job_on_every_worker()


def _all_ready(scenario: Hanging) -> bool:
    return all(scenario.status(number) == "succeeded" for number in range(len(scenario.slow)))
