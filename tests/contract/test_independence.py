"""Instances proceed independently: if one of them hangs, the others are served.

The platform and each runner's threads are real; plays are simulated and hang when a test requests it. Over 300
lines, because every test needs the scene and its runners, which take a third of them.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from runner.act import effects, keyscan, play_queue
from runner.act.keyscan import ScannedHost
from runner.act.play_queue import PlayGate
from runner.loop import run as loop
from runner.loop import shared, tick
from runner.loop.schedule import Kind, Schedule
from runner.model.plan import AdapterError, ForgetSecrets, Plan
from runner.model.world import World
from runner.platform.client import Client
from runner.slurm.app import SLURM
from tests.contract.shared_runtime import KEY
from tests.contract.simulated_hosts import Hosts, work
from tests.platform_process import Doc, Platform, Project
from tests.runner_process import settings
from tests.waits import until

WAIT = 60


@dataclass
class Runner:
    """A run in a thread."""

    signals: shared.Signals
    ended: Future[shared.Summary]
    gates: list[PlayGate]
    schedules: list[Schedule]

    @property
    def is_ending(self) -> bool:
        """Whether only routine looks are under way."""
        return all(one.is_ending for one in self.schedules)

    def kind(self, instance_id: str) -> Kind | None:
        """What the instance's tick is to the run; None if it has none under way."""
        (schedule,) = self.schedules
        return schedule._under_way.get(UUID(instance_id))

    @property
    def waiting(self) -> int:
        """Plays that wait for their turn."""
        return sum(len(gate._queue.waiting) for gate in self.gates)


@dataclass
class Scene:
    project: Project
    hosts: Hosts
    pool: ThreadPoolExecutor
    monkeypatch: pytest.MonkeyPatch
    instances: list[str] = field(default_factory=list)
    runners: list[Runner] = field(default_factory=list)

    def deployed(self, count: int) -> list[str]:
        """Clusters of a controller each, with one free machine each."""
        for number in range(count):
            self.instances.append(str(self.project.deploy(workers=0, begin=2 * number)["id"]))
        assert work(self.project) == []
        assert {self.read(one)["status"] for one in self.instances} == {"running"}
        self.hosts.order.clear()
        self.hosts.most_at_once = 0
        return self.instances

    def add(self, instance_id: str) -> str:
        """Ask for the instance's free machine; gives the operation's id."""
        free = self.project.allocation_ids[2 * self.instances.index(instance_id) + 1]
        body = {"operation": "add", "component_key": "worker", "allocation_ids": [free]}
        made = self.project.operator.post(f"{self.path(instance_id)}/member-operations", body)
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    def drain(self, instance_id: str) -> None:
        body = {"operation": "drain", "component_key": "worker", "member_ids": [self.worker(instance_id)["id"]]}
        assert self.project.operator.post(f"{self.path(instance_id)}/member-operations", body).status_code == 201

    def make_stale(self, instance_id: str) -> None:
        detail = self.read(instance_id)["status_detail"] | {"observed_at": "2026-01-01T00:00:00Z"}
        assert self.project.adapter.patch(self.path(instance_id), {"status_detail": detail}).status_code == 200

    def start(self, *, forever: bool = False, **changes: Any) -> Runner:
        own = settings(self.project, **{"watch_seconds": 0.2, "observe_seconds": 3600, **changes})
        gates: list[PlayGate] = []

        class Gate(PlayGate):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                gates.append(self)

        schedules: list[Schedule] = []

        def schedule(*arguments: Any, **options: Any) -> Schedule:
            schedules.append(Schedule(*arguments, **options))
            return schedules[-1]

        self.monkeypatch.setattr(shared, "PlayGate", Gate)
        self.monkeypatch.setattr(loop, "Schedule", schedule)
        signals = shared.Signals()

        def run() -> shared.Summary:
            with Client(own) as client:
                return loop.run(client, own, SLURM, forever=forever, signals=signals)

        self.runners.append(Runner(signals, self.pool.submit(run), gates, schedules))
        return self.runners[-1]

    def path(self, instance_id: str) -> str:
        return f"{self.project.path}/app-instances/{instance_id}"

    def read(self, instance_id: str, what: str = "") -> Any:
        found = self.project.operator.get(self.path(instance_id) + what).json()
        return found["items"] if what else found

    def status(self, instance_id: str) -> str:
        """Status of the last operation."""
        return str(self.read(instance_id, "/member-operations")[-1]["status"])

    def worker(self, instance_id: str) -> Doc:
        return next(one for one in self.read(instance_id, "/members") if one["component_key"] == "worker")

    def error(self, instance_id: str) -> Doc | None:
        """The last error of the instance's worker."""
        found: Doc | None = self.worker(instance_id)["adapter_detail"]["last_adapter_error"]
        return found

    def wait(self, condition: Callable[[], Any], what: str) -> None:
        until(condition, WAIT, what)

    def ends(self, runner: Runner) -> shared.Summary:
        return runner.ended.result(WAIT)


@pytest.fixture
def scene(platform: Platform, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    project = platform.project(allocations=12)
    for number, allocation_id in enumerate(project.allocation_ids):
        connection = {"host": f"192.0.2.{number + 1}", "port": 22, "username": "ops", "host_keys": [KEY]}
        platform.control.put_allocation(project.project_id, allocation_id, connection=connection, gpus=0)
    with ThreadPoolExecutor(4) as pool:
        made = Scene(project, hosts, pool, monkeypatch)
        try:
            yield made
        finally:
            hosts.hanging.clear()
            for runner in made.runners:
                runner.signals.stop.set()
                runner.signals.abort.set()


@pytest.mark.parametrize("forever", [False, True], ids=["run", "watch"])
@pytest.mark.parametrize("count", [1, 4])
def test_while_plays_of_some_instances_hang_another_gets_its_worker(scene: Scene, count: int, forever: bool) -> None:
    *hanging, other = scene.deployed(count + 1)
    scene.hosts.hanging = set(hanging)
    for one in hanging:
        scene.add(one)
    runner = scene.start(forever=forever)
    scene.wait(lambda: scene.hosts.hung == set(hanging), "all of them hang")
    scene.add(other)  # requested when the run has ticked that instance already
    scene.wait(lambda: scene.status(other) == "succeeded", "the other one's worker is ready")
    assert scene.hosts.hung == set(hanging) and not runner.ended.done()
    assert [scene.error(one) for one in hanging] == [None] * count, "none of them was stopped"

    scene.hosts.hanging.clear()
    if forever:
        scene.wait(lambda: {scene.status(one) for one in hanging} == {"succeeded"}, "they go on")
        assert not runner.ended.done()
        runner.signals.stop.set()
    assert scene.ends(runner).problems == []
    assert {scene.status(one) for one in hanging} == {"succeeded"}, "a run waits for what it began"


@pytest.mark.parametrize("verb", ["add", "drain"])
def test_while_the_platform_does_not_answer_for_one_instance_another_is_served(scene: Scene, verb: str) -> None:
    """An add asks for the members of every other instance; it waits for them a few seconds."""
    silent, other = scene.deployed(2)
    if verb == "drain":
        scene.add(other)
        assert work(scene.project) == []
    control = scene.project.platform.control
    control.inject_fault("hold", f"/app-instances/{silent}", times=1_000)
    runner = scene.start(api_timeout_seconds=20, api_patience_seconds=0)
    scene.wait(control.held, "a call about it is held")
    scene.add(other) if verb == "add" else scene.drain(other)
    scene.wait(lambda: scene.status(other) == "succeeded", "the other one is served")
    assert control.held() and not runner.ended.done(), "the platform has not answered yet"
    problems = scene.ends(runner).problems
    assert problems and all(silent in problem for problem in problems)


def test_while_a_host_does_not_show_its_ssh_key_another_instance_is_served(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A black-holed host: ssh-keyscan waits for it. One instance slot is enough for both instances."""
    silent, other = scene.deployed(2)
    connection = {"host": "192.0.2.2", "port": 22, "username": "ops", "host_keys": []}
    project, control = scene.project, scene.project.platform.control
    control.put_allocation(project.project_id, project.allocation_ids[1], connection=connection, gpus=0)
    asked, answers = threading.Event(), threading.Event()

    def scan(wanted: Mapping[str, tuple[str, int]]) -> tuple[dict[str, ScannedHost], dict[str, AdapterError]]:
        asked.set()
        assert answers.wait(WAIT)
        return {name: ScannedHost(host, (KEY,)) for name, (host, _) in wanted.items()}, {}

    monkeypatch.setattr(keyscan, "scan", scan)
    scene.add(silent)
    runner = scene.start(parallel_instances=1)
    scene.wait(asked.is_set, "the key is asked for")
    scene.add(other)
    try:
        scene.wait(lambda: scene.status(other) == "succeeded", "the other one is served")
        assert scene.status(silent) == "running" and not runner.ended.done()
    finally:
        answers.set()
    assert scene.ends(runner).problems == []
    assert scene.status(silent) == "succeeded"


def test_no_instance_slot_is_held_while_vault_deletes_secrets(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = scene.deployed(1)
    own = settings(scene.project, parallel_instances=1)
    common = shared.Shared(own, SLURM)
    free: list[bool] = []

    def delete(_step: Any, world: World, *_: Any) -> World:
        free.append(common.instance_slots.acquire(blocking=False))
        common.instance_slots.release()
        return world

    monkeypatch.setattr(effects, "delete_secrets", delete)
    with Client(own) as client, common.instance_slots:
        under_way = tick.Tick(client, common, client.instance(UUID(one)), shared.Summary(), time.monotonic())
        under_way._write(Plan((ForgetSecrets("test"),)))
    assert free == [True]


def test_requested_work_is_played_before_routine_looks_that_came_first(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play_queue, "LOOK_SECONDS", 30)  # looks do not give up their places meanwhile
    first, *stale, asking = scene.deployed(4)
    scene.hosts.hanging = {first}
    scene.add(first)
    runner = scene.start(parallel_plays=1, stall_seconds=3600)
    scene.wait(lambda: scene.hosts.hung == {first}, "the only place is in use")
    for one in stale:
        scene.make_stale(one)
    scene.wait(lambda: runner.waiting == 2, "two looks wait for their turn")
    scene.add(asking)
    scene.wait(lambda: runner.waiting == 3, "the requested play waits as well")
    scene.hosts.order.clear()
    scene.hosts.hanging.clear()
    scene.ends(runner)
    assert scene.hosts.order[0] == (asking, "add_worker")


def test_a_run_whose_work_is_done_does_not_wait_for_a_look_that_hangs(scene: Scene) -> None:
    working, looked_at = scene.deployed(2)
    scene.hosts.hanging = {working, looked_at}
    scene.add(working)
    runner = scene.start(stall_seconds=1)
    scene.wait(lambda: scene.hosts.hung == {working}, "its play takes its time")
    scene.make_stale(looked_at)
    scene.wait(lambda: scene.hosts.hung == {working, looked_at}, "the look hangs")
    scene.hosts.hanging.discard(working)
    assert scene.ends(runner).failed_operations == 0
    assert scene.status(working) == "succeeded" and scene.hosts.hanging == {looked_at}


def test_an_ending_run_does_requested_work_and_begins_no_look(scene: Scene) -> None:
    working, looked_at, stale, asking = scene.deployed(4)
    scene.hosts.hanging = {working, looked_at}
    scene.add(working)
    runner = scene.start(stall_seconds=3600)
    scene.wait(lambda: scene.hosts.hung == {working}, "its play takes its time")
    scene.make_stale(looked_at)
    scene.wait(lambda: scene.hosts.hung == {working, looked_at}, "the look hangs")
    scene.hosts.hanging.discard(working)
    scene.wait(lambda: runner.is_ending, "only the look is under way")

    scene.make_stale(stale)
    control = scene.project.platform.control
    mark = control.requests()["last"]

    def checks() -> int:
        rows = control.requests(mark)["requests"]
        return len([row for row in rows if row["path"].endswith(f"{stale}/member-operations")])

    scene.wait(lambda: checks() >= 4, "it is asked whether work is requested, pass after pass")
    assert (stale, "observe") not in scene.hosts.order
    scene.add(asking)
    scene.wait(lambda: scene.status(asking) == "succeeded", "requested work is done")
    assert scene.hosts.hung == {looked_at} and not runner.ended.done()
    scene.hosts.hanging.clear()
    assert scene.ends(runner).problems == []


def test_a_look_that_finds_requested_work_after_its_wait_becomes_that_work(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(play_queue, "LOOK_SECONDS", 30)  # the look does not give up its place meanwhile
    first, second = scene.deployed(2)
    scene.hosts.hanging = {first}
    scene.add(first)
    runner = scene.start(parallel_plays=1, stall_seconds=3600)
    scene.wait(lambda: scene.hosts.hung == {first}, "the only place is in use")
    scene.make_stale(second)
    scene.wait(lambda: runner.waiting == 1, "the look waits for its turn")
    scene.add(second)
    scene.hosts.hanging = {second}
    scene.wait(lambda: scene.hosts.hung == {second}, "the place is its own")
    assert scene.hosts.order[-1] == (second, "add_worker")
    assert runner.kind(second) == Kind.WORK
    (gate,) = runner.gates
    (slot,) = gate._queue.running
    assert (slot.requested, slot.forks) == (True, 2), "the place is one for this play, not for the look"
    scene.hosts.hanging.clear()
    assert scene.ends(runner).problems == []
    assert {scene.status(one) for one in (first, second)} == {"succeeded"}


def test_no_more_plays_run_at_once_than_the_setting_allows(scene: Scene) -> None:
    for one in scene.deployed(6):
        scene.add(one)
    runner = scene.start(parallel_plays=2)
    assert scene.ends(runner).problems == []
    assert scene.hosts.most_at_once == 2
    assert {scene.status(one) for one in scene.instances} == {"succeeded"}


def test_memory_bounds_the_plays_at_once(scene: Scene) -> None:
    for one in scene.deployed(4):
        scene.add(one)
    assert scene.ends(scene.start(memory_mb=128)).problems == []
    assert scene.hosts.most_at_once == 1
    assert {scene.status(one) for one in scene.instances} == {"succeeded"}


def test_at_twice_the_bound_the_oldest_stalled_play_is_stopped_and_retried(scene: Scene) -> None:
    oldest, other, asking = scene.deployed(3)
    scene.hosts.hanging = {oldest, other}
    runner = scene.start(forever=True, parallel_plays=1, stall_seconds=1, retry_seconds=5)
    for one in (oldest, other):
        scene.add(one)
        scene.wait(lambda: one in scene.hosts.hung, "its play hangs")  # noqa: B023 - called at once
    scene.add(asking)
    scene.wait(lambda: scene.status(asking) == "succeeded", "the third play has a place")
    assert scene.hosts.most_at_once == 2
    assert scene.hosts.hung == {other} and scene.error(other) is None, "the newer play is left alone"
    detail = scene.worker(oldest)["adapter_detail"]
    assert (detail["last_adapter_error"]["code"], detail["last_adapter_error"]["class"]) == (
        "play_stalled",
        "retryable",
    )
    assert detail["attempt"] == 1 and detail["next_attempt_at"]
    assert scene.status(oldest) == "running", "its operation goes on"
    scene.hosts.hanging.clear()
    scene.wait(lambda: scene.status(oldest) == "succeeded", "it is retried")
    runner.signals.stop.set()
    assert scene.ends(runner).failed_operations == 0


def test_allocations_are_read_once_for_all_instances_of_a_pass(scene: Scene) -> None:
    hanging = scene.deployed(5)
    scene.hosts.hanging = set(hanging)
    for one in hanging:
        scene.add(one)
    control = scene.project.platform.control
    mark = control.requests()["last"]
    scene.start()
    scene.wait(lambda: scene.hosts.hung == set(hanging), "all of them are at their plays")
    rows = control.requests(mark)["requests"]
    assert len([row for row in rows if re.search(r"/allocations$", row["path"])]) == 1


def test_allocations_are_read_once_for_all_routine_looks_of_a_pass(scene: Scene) -> None:
    """Also for looks that wait for their turn, and for what is decided after each look."""
    for one in scene.deployed(5):
        scene.make_stale(one)
    control = scene.project.platform.control
    mark = control.requests()["last"]
    assert scene.ends(scene.start(parallel_plays=2, watch_seconds=3600)).problems == []
    assert sorted(scene.hosts.order) == sorted((one, "observe") for one in scene.instances)
    rows = control.requests(mark)["requests"]
    assert len([row for row in rows if re.search(r"/allocations$", row["path"])]) == 1


def test_allocations_are_read_anew_for_what_is_decided_after_a_play(scene: Scene) -> None:
    (one,) = scene.deployed(1)
    scene.hosts.hanging = {one}
    scene.add(one)
    runner = scene.start()
    scene.wait(lambda: scene.hosts.hung == {one}, "its play runs")
    control = scene.project.platform.control
    mark = control.requests()["last"]
    scene.hosts.hanging.clear()
    scene.ends(runner)
    paths = [row["path"] for row in control.requests(mark)["requests"] if row["method"] == "GET"]
    assert [path for path in paths if path.endswith("/allocations")]


def test_a_signal_lets_plays_end_gives_back_what_waits_and_a_second_one_stops_them(scene: Scene) -> None:
    hanging, waiting = scene.deployed(2)
    scene.hosts.hanging = {hanging}
    scene.add(hanging)
    runner = scene.start(forever=True, parallel_plays=1, stall_seconds=3600)
    scene.wait(lambda: scene.hosts.hung == {hanging}, "its play hangs")
    scene.add(waiting)
    scene.wait(lambda: runner.waiting == 1, "the other waits for its turn")
    begun = len(scene.hosts.order)

    runner.signals.stop.set()
    scene.wait(lambda: runner.waiting == 0, "what waits is given back")
    assert scene.hosts.hung == {hanging} and not runner.ended.done(), "the current step may finish"
    runner.signals.abort.set()
    assert scene.ends(runner).failed_operations == 0
    assert len(scene.hosts.order) == begun, "nothing new was begun"

    scene.hosts.hanging.clear()
    assert work(scene.project) == []
    assert {scene.status(one) for one in (hanging, waiting)} == {"succeeded"}, "nothing is lost"


def test_after_a_signal_a_stalled_play_is_stopped_so_that_the_run_ends(scene: Scene) -> None:
    """Under a timer the next run begins when this one has ended."""
    (one,) = scene.deployed(1)
    scene.hosts.hanging = {one}
    scene.add(one)
    runner = scene.start(forever=True, stall_seconds=1, retry_seconds=0)
    scene.wait(lambda: scene.hosts.hung == {one}, "its play hangs")
    runner.signals.stop.set()
    assert scene.ends(runner).failed_operations == 0
    assert (scene.error(one) or {})["code"] == "play_stalled" and scene.status(one) == "running"
    scene.hosts.hanging.clear()
    assert work(scene.project) == []
    assert scene.status(one) == "succeeded"
