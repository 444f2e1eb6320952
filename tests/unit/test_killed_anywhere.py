"""The runner is ended before every single write and at every point inside every play; the end is always the same.

Each scenario runs once undisturbed. Then it runs again for each moment at which something changes somewhere (on the
platform, in Slurm, on a host, in Vault), with a runner that dies right there and never comes back; another one takes
over when the lease has run out.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from runner.model import events
from runner.model.plan import AdapterError, Announce, Finish, Refuse
from runner.model.platform import Member, Operation
from runner.model.world import Policy, World
from runner.slurm.decide import decide
from tests.unit.fake_keys import FakeKeys, Killed
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import ask, ask_whole, cluster, serving, tick
from tests.unit.platform_oracle import check_accepted
from tests.unit.worlds import world

TICKS = 8
# Longer than a lease lasts, so that whoever comes next may take over.
PAUSE = timedelta(seconds=180)
NEVER = 10**9


@dataclass
class ScenarioRun:
    """One run of a scenario: the platform's store, the cluster, and a runner that may die."""

    world: World
    slurm: FakeSlurm
    dies_at: int = NEVER
    moments: int = 0
    ended: dict[UUID, str] = field(default_factory=dict)
    results: dict[UUID, dict[str, Any]] = field(default_factory=dict)
    deaths: int = 0
    # As the platform keeps them: the same type with the same cause is one event.
    events: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def run(self) -> "ScenarioRun":
        self.slurm.moment = self.moment
        for _ in range(TICKS):
            try:
                self._tick()
            except Killed:
                self.deaths += 1
            # Nothing is handed back by one who died; by one who did not, leases have run out by then too.
            self.world = self.world.later(now=self.world.now + PAUSE, played=frozenset(), outcomes={}, snapshot=None)
        return self

    def moment(self) -> None:
        self.moments += 1
        if self.moments == self.dies_at:
            raise Killed

    def _tick(self) -> None:
        for _ in range(60):
            plan = decide(self.world)
            if plan.idle:
                return
            for step in plan.before_play:
                check_accepted(self.world, step)
                self.moment()
                self.world = self.world.after(step)
                if isinstance(step, Announce):
                    self.events.setdefault((step.kind, step.cause), step.data)
                if isinstance(step, Finish):
                    self.ended[step.operation.id] = step.status
                    self.results[step.operation.id] = {key: step.result.get(key) for key in ("from", "to", "workers")}
                if isinstance(step, Refuse):
                    self.ended[step.operation.id] = f"refused {step.code}"
            if plan.play:
                self.moment()
                self.world = self.slurm.run(self.world, plan.play)
        raise AssertionError("does not settle")

    def outcome(self) -> dict[str, Any]:
        """How the scenario ended, without the times and tries by which the runs differ."""
        return {
            "operations": self.ended,
            "results": self.results,
            "events": [kind for kind, _ in self.events],
            "open": [str(one.id) for one in (*self.world.operations, *self.world.instance_operations)],
            "members": sorted(
                (
                    str(one.allocation_id),
                    one.status,
                    str(one.adapter_detail.get("phase")),
                    str((one.adapter_detail.get("last_adapter_error") or {}).get("code")),
                )
                for one in self.world.members
            ),
            "nodes": {name: (fake.reason, sorted(fake.jobs)) for name, fake in self.slurm.nodes.items()},
            "right keys": {name: key == self.slurm.keys.current for name, key in self.slurm.keys.live.items()},
            "old key": self.slurm.keys.current == "key-0",
            "staged": (self.slurm.keys.coming, self.slurm.keys.staged),
            "versions": (self.slurm.packages.installed, self.slurm.packages.running, self.slurm.packages.moving),
            "restarts": self.slurm.restarts,
            "instance": (self.world.instance.status, self.world.instance.health),
        }


OPERATION = UUID(int=0xABC)


def _cluster(*operations: Operation, instance: tuple[Operation, ...] = ()) -> tuple[World, FakeSlurm]:
    names = ("w2", "w3", "w4")
    members = [serving(number).model_copy(update={"id": UUID(int=number << 100)}) for number in (2, 3, 4)]
    slurm = FakeSlurm(
        {name: FakeNode() for name in names}, keys=FakeKeys(live=dict.fromkeys(("controller", *names), "key-0"))
    )
    policy = Policy(assumed_events=events.ASSUMED)
    return cluster(*members, operations=operations).later(instance_operations=instance, policy=policy), slurm


def _member(number: int) -> Any:
    return serving(number).model_copy(update={"id": UUID(int=number << 100)})


def add() -> ScenarioRun:
    return ScenarioRun(*_cluster(ask("add", allocations=(5, 6), id=OPERATION)))


def drain() -> ScenarioRun:
    return ScenarioRun(*_cluster(ask("drain", _member(2), _member(3), id=OPERATION)))


def remove() -> ScenarioRun:
    return ScenarioRun(*_cluster(ask("remove", _member(2), _member(4), id=OPERATION)))


def remove_with_jobs_cancelled() -> ScenarioRun:
    terms = {"deadline_seconds": 0, "on_deadline": "cancel"}
    made = ScenarioRun(*_cluster(ask("remove", _member(2), parameters=terms, id=OPERATION)))
    made.slurm.nodes["w2"].jobs = {7, 8}
    return made


def remove_with_a_waiting_job_unpinned() -> ScenarioRun:
    terms = {"deadline_seconds": 0, "on_deadline": "requeue"}
    made = ScenarioRun(*_cluster(ask("remove", _member(2), parameters=terms, id=OPERATION)))
    made.slurm.pending_on = {11: "w2"}
    return made


def resume() -> ScenarioRun:
    made = ScenarioRun(*_cluster(ask("resume", _member(2), id=OPERATION)))
    made.slurm.nodes["w2"].reason = f"gpuaas:{UUID(int=0xD)}: new disk"
    return made


def replace() -> ScenarioRun:
    return ScenarioRun(*_cluster(ask("replace", _member(3), allocations=(5,), id=OPERATION)))


def drain_given_up() -> ScenarioRun:
    terms = {"deadline_seconds": 0, "on_deadline": "give_up"}
    made = ScenarioRun(*_cluster(ask("drain", _member(2), parameters=terms, id=OPERATION)))
    made.slurm.nodes["w2"].jobs = {7}
    return made


def rotate() -> ScenarioRun:
    return ScenarioRun(*_cluster(instance=(ask_whole("rotate_credentials", id=OPERATION),)))


def rotate_with_a_host_in_the_way() -> ScenarioRun:
    made = rotate()
    made.slurm.breaks_on_host = {"w3"}
    return made


def rotate_with_an_unreachable_host() -> ScenarioRun:
    made = rotate()
    made.slurm.hosts_down = {"w3"}
    return made


def rotate_then_add() -> ScenarioRun:
    rotation = (ask_whole("rotate_credentials", id=OPERATION),)
    return ScenarioRun(*_cluster(ask("add", allocations=(5,), id=UUID(int=0xDEF)), instance=rotation))


def restart() -> ScenarioRun:
    made = ScenarioRun(*_cluster(instance=(ask_whole("restart", id=OPERATION),)))
    made.slurm.nodes["w2"].jobs = {7}
    return made


def upgrade() -> ScenarioRun:
    made = ScenarioRun(*_cluster(instance=(ask_whole("upgrade", id=OPERATION),)))
    made.slurm.nodes["w2"].jobs = {7}
    return made


def rollback() -> ScenarioRun:
    """Of an upgrade that a scenario before this one carried out."""
    earlier = UUID(int=0xDEF)
    made = ScenarioRun(*_cluster(instance=(ask_whole("upgrade", id=earlier),))).run()
    assert made.ended == {earlier: "succeeded"}
    start = made.world.later(instance_operations=(ask_whole("rollback", id=OPERATION, age=3600),))
    made.slurm.moment = lambda: None
    made.slurm.restarts = {}
    return ScenarioRun(start, made.slurm)


def retry() -> ScenarioRun:
    slurm = FakeSlurm(ctl_error=AdapterError("credential_unavailable", "the credential was revoked"))
    asked = ask("add", allocations=(2, 3), id=UUID(int=0xADD))
    failed, _, _ = tick(world(operations=(asked,)), slurm)
    failed = failed.later(members=tuple(one.model_copy(update={"id": _by_place(one)}) for one in failed.members))
    assert failed.instance.status == "failed"
    slurm.ctl_error = None
    policy = Policy(assumed_events=events.ASSUMED)
    return ScenarioRun(failed.later(instance_operations=(ask_whole("retry", id=OPERATION),), policy=policy), slurm)


def _by_place(member: Member) -> UUID:
    """The same id in every run."""
    return UUID(int=(member.allocation_id.int if member.allocation_id else 0) << 100)


SCENARIOS = [
    add,
    drain,
    drain_given_up,
    remove,
    remove_with_a_waiting_job_unpinned,
    remove_with_jobs_cancelled,
    replace,
    restart,
    resume,
    retry,
    rollback,
    rotate,
    rotate_then_add,
    rotate_with_a_host_in_the_way,
    rotate_with_an_unreachable_host,
    upgrade,
]
# How each ends, so that no scenario is compared with a run that went wrong itself.
ENDS = {add: "succeeded", drain: "succeeded", remove: "succeeded", replace: "succeeded", rotate: "succeeded"} | {
    remove_with_a_waiting_job_unpinned: "succeeded",
    remove_with_jobs_cancelled: "succeeded",
    restart: "succeeded",
    resume: "succeeded",
    rollback: "succeeded",
    upgrade: "succeeded",
    rotate_then_add: "succeeded",
    retry: "succeeded",
    drain_given_up: "failed",
    rotate_with_a_host_in_the_way: "failed",
    rotate_with_an_unreachable_host: "failed",
}
EVENTS = {upgrade: ["upgraded"], rollback: ["upgraded"], restart: ["running"], retry: ["running"]}
EVENTS |= {one: ["changed"] for one in (rotate, rotate_then_add)}
EVENTS |= {one: ["operation_failed"] for one, end in ENDS.items() if end == "failed"}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_scenario_cut_off_at_any_moment_ends_like_one_that_was_not(scenario: Callable[[], ScenarioRun]) -> None:
    whole = scenario().run()
    assert whole.ended[OPERATION] == ENDS[scenario]
    assert whole.outcome()["open"] == []
    assert [kind.removeprefix(events.PREFIX) for kind, _ in whole.events] == EVENTS.get(scenario, [])
    assert whole.moments > 5
    for moment in range(1, whole.moments + 1):
        cut = scenario()
        cut.dies_at = moment
        cut.run()
        assert cut.deaths == 1
        assert cut.outcome() == whole.outcome(), f"cut off at moment {moment} of {whole.moments}"


def test_a_rotation_cut_off_anywhere_leaves_each_host_with_the_old_or_the_new_key() -> None:
    """At every moment each host has the key that was right before, or the one that is right from then on."""
    whole = rotate().run()
    for moment in range(1, whole.moments + 1):
        cut = rotate()
        cut.dies_at = moment
        cut.slurm.moment = cut.moment
        with contextlib.suppress(Killed):
            cut._tick()
        keys = cut.slurm.keys
        phase = ((cut.world.instance.status_detail or {}).get("lifecycle") or {}).get("phase")
        if phase != "switching":
            assert set(keys.live.values()) == {"key-0"} and keys.current == "key-0"
        else:
            assert set(keys.live.values()) <= {"key-0", "key-1"}
        if "key-1" in keys.live.values():
            assert keys.current == "key-1", "a host changed before the key was the right one"
