"""A cluster on a real platform with simulated hosts, and two runners: one ticks while the other is in a play."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from runner.loop import run as loop
from runner.loop.dry_run import dry_run
from runner.loop.shared import Shared, Summary
from runner.loop.tick import Tick
from runner.model.plan import Step, Wait
from runner.model.world import World
from runner.observe.world import observe
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm.app import SLURM
from tests.contract.simulated_hosts import Hosts, work
from tests.platform_process import Doc, Project
from tests.runner_process import settings


@dataclass
class Scene:
    """A cluster with two workers, and two runners: `left` begins, and `right` ticks in the middle of its play."""

    project: Project
    hosts: Hosts
    instance: Doc
    seen: list[Step] = field(default_factory=list)  # the steps that right planned meanwhile

    @property
    def path(self) -> str:
        return f"{self.project.path}/app-instances/{self.instance['id']}"

    def members(self) -> dict[str, Doc]:
        found = self.project.shown(self.instance, "/members")
        return {one["adapter_detail"].get("worker_hostname") or one["component_key"]: one for one in found}

    def worker(self) -> str:
        return min(name for name, one in self.members().items() if one["component_key"] == "worker")

    def settings(self, who: str) -> Settings:
        return settings(self.project, **self._changes(who))

    def _changes(self, who: str) -> dict[str, Any]:
        # Nothing but a claim keeps a second try from being due at once.
        return {"runner_id": who, "observe_seconds": 0, "retry_seconds": 0}

    def tick(self, who: str) -> None:
        assert work(self.project, **self._changes(who)) == []

    def read(self, client: Client, own: Settings) -> World:
        return observe(client, client.instance(UUID(self.instance["id"])), own, SLURM, everything=True)

    @contextmanager
    def begun_tick(self, who: str) -> Iterator[Tick]:
        """A tick that has read everything and done nothing; the test does its steps, and its claims are released."""
        own = self.settings(who)
        with Client(own) as client:
            instance = client.instance(UUID(self.instance["id"]))
            begun = Tick(client, Shared(own, SLURM), instance, Summary(), time.monotonic())
            yield begun
            begun._report.claims.release()

    def configure(self, config: Doc) -> None:
        answer = self.project.operator.patch(self.path, {"config": config})
        assert answer.status_code == 200, answer.text

    def ask(self, verb: str, name: str) -> None:
        body = {"operation": verb, "component_key": "worker", "member_ids": [self.members()[name]["id"]]}
        assert self.project.operator.post(f"{self.path}/member-operations", body).status_code == 201

    def right_comes_in_between(self) -> None:
        """During left's first play that changes a host, right ticks to its end."""

        def come() -> None:
            if not self.hosts.changing:
                return  # left is still observing
            self.hosts.meanwhile = lambda: None
            own = self.settings("right")
            with Client(own) as client:
                self.seen = dry_run(self.read(client, own).later(snapshot=self.hosts.snapshot()), SLURM)
            before = list(self.hosts.changing)
            self.tick("right")
            assert self.hosts.changing == before, "right changed a host while left did"

        self.hosts.runs.clear()
        self.hosts.numbers.clear()
        self.hosts.meanwhile = come
        self.tick("left")
        assert self.hosts.meanwhile.__name__ == "<lambda>", "left changed no host, so right never ticked"

    def waits_for_left(self) -> bool:
        return any(isinstance(step, Wait) and "runner left holds it until" in step.why for step in self.seen)

    def is_consistent(self) -> None:
        assert self.hosts.overlaps == []
        assert self.hosts.misnumbered() == []
        members = self.members().values()
        assert not [one for one in members if one["adapter_detail"].get("claimed_by")]
        for one in members:
            used = self.hosts.numbers.get(UUID(one["id"]), [("", 0)])
            assert one["adapter_detail"].get("fence", 0) >= max(fence for _, fence in used)


def race(project: Project, done: Callable[[], bool], **changes: Any) -> list[Summary]:
    """Two runners tick at the same time, started together each time, until `done` is true."""
    runners = [settings(project, runner_id=name, **changes) for name in ("left", "right")]
    together = threading.Barrier(len(runners))
    summaries: list[Summary] = []

    def one(own: Settings) -> Summary:
        with Client(own) as client:
            together.wait(30)
            return loop.run(client, own, SLURM)

    with ThreadPoolExecutor(len(runners)) as pool:
        for _ in range(15):
            summaries += pool.map(one, runners)
            if done():
                return summaries
    raise AssertionError("two runners do not get it done")
