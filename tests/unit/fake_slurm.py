"""A cluster in mind: does what the plays do, by Slurm's rules, so that whole lifecycles can be told by property.

Its rules about nodes are written out here and taken from no code under test.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from runner.model.plan import AdapterError, Play
from runner.model.platform import Member
from runner.model.world import Outcome, World
from runner.slurm.node_names import node_name
from runner.slurm.snapshot import Job, Node, Reservation, Snapshot
from tests.unit.fake_keys import FakeKeys
from tests.unit.worlds import NOW, after, snapshot


@dataclass
class FakeNode:
    jobs: set[int | str] = field(default_factory=set)  # ids of plain jobs, or addresses such as 100_7
    reason: str | None = None  # set: it is drained, by whoever wrote the reason
    state: str | None = None  # a base state of its own, such as DOWN or UNKNOWN; else by its jobs
    flags: set[str] = field(default_factory=set)  # more of them, such as UNDRAIN or COMPLETING
    ending: set[int | str] = field(default_factory=set)  # jobs that were ended and are still being cleared away
    reason_by: str | None = None

    @property
    def shown_state(self) -> str:
        return self.state or ("MIXED" if self.jobs else "IDLE")

    @property
    def shown_flags(self) -> frozenset[str]:
        drain = {"DRAIN"} if self.reason and self.state != "DOWN" else set()
        return frozenset({"DYNAMIC_NORM"} | drain | self.flags | ({"COMPLETING"} if self.ending else set()))


@dataclass
class FakeSlurm:
    nodes: dict[str, FakeNode] = field(default_factory=dict)
    answers: bool = True
    pending_on: dict[int | str, str] = field(default_factory=dict)
    reservations: dict[str, str] = field(default_factory=dict)
    hosts_down: set[str] = field(default_factory=set)
    deleted_with_jobs: list[str] = field(default_factory=list)
    breaks_on_host: set[str] = field(default_factory=set)
    residue: dict[str, list[str]] = field(default_factory=dict)  # what cannot be removed from a host
    cleaned: list[str] = field(default_factory=list)
    cleaned_with_jobs: list[str] = field(default_factory=list)
    ignores_resume: bool = False  # Slurm takes the command, and the node stays drained
    ghosts: set[str] = field(default_factory=set)  # Slurm takes their deletion, and shows them still
    slow_evictions: bool = False  # an ended job stays COMPLETING until `clear_away`
    deaf_jobs: set[int | str] = field(default_factory=set)  # Slurm takes the command, and the job runs on
    evictions: list[tuple[str, str]] = field(default_factory=list)  # each that was asked for: what, and of which job
    distrusts_resumed: bool = False  # as slurmctld does until the node has answered
    waiting: set[int | str] = field(default_factory=set)  # jobs that name no node
    partitions: dict[str, str] = field(default_factory=lambda: {"main": "UP"})
    up: bool = True  # whether slurmctld runs
    started_at: datetime = NOW - timedelta(hours=1)
    restarts: dict[str, int] = field(default_factory=dict)  # by node, and of slurmctld
    ctl_error: AdapterError | None = None  # what the next play meets on the controller
    keys: FakeKeys = field(default_factory=FakeKeys)
    # Called before anything changes anywhere; a test may end the runner there.
    moment: Callable[[], None] = lambda: None
    clock: Callable[[], datetime] = lambda: NOW + timedelta(minutes=1)

    def seen(self) -> Snapshot | None:
        if not self.answers:
            return None
        if not self.up:
            return snapshot(None, ping="DOWN", slurmctld="inactive")
        nodes = {}
        for name, fake in self.nodes.items():
            silent = {"NOT_RESPONDING"} if self.distrusts_resumed and not fake.reason else set()
            nodes[name] = Node(
                state=fake.shown_state,
                flags=fake.shown_flags | silent,
                reason=fake.reason,
                reason_by=fake.reason_by,
                cpus=2,
                memory_mb=1000,
                jobs=sorted(str(job) for job in fake.jobs | fake.ending),
            )
        jobs = [_job(job, "RUNNING", nodes=[name]) for name, fake in self.nodes.items() for job in fake.jobs]
        jobs += [_job(job, "COMPLETING", nodes=[name]) for name, fake in self.nodes.items() for job in fake.ending]
        jobs += [_job(job, "PENDING", required_nodes=[name]) for job, name in self.pending_on.items()]
        jobs += [_job(job, "PENDING") for job in sorted(self.waiting, key=str)]
        held = [Reservation(name=name, nodes=[node]) for name, node in self.reservations.items()]
        found = {"jobs": jobs, "reservations": held, "partitions": dict(self.partitions)}
        return snapshot(nodes, started_at=self.started_at).model_copy(update=found)

    def run(self, world: World, play: Play) -> World:
        """Carry the play out and give back the world as it is then observed. The controller's clock is right."""
        then = self._run(world, play)
        if then.snapshot is None:
            return then
        return then.later(snapshot=then.snapshot.model_copy(update={"observed_at": max(NOW, world.now)}))

    def _run(self, world: World, play: Play) -> World:
        if play.playbook == "decommission":
            return after(world, play, {one.id: self._clean(play, one) for one in play.members}, None)
        if not self.answers:
            unreachable = AdapterError("host_unreachable", "no route", "retryable")
            return after(world, play, {play.members[0].id: Outcome(error=unreachable)}, None)
        if self.ctl_error:
            return after(world, play, {play.members[0].id: Outcome(error=self.ctl_error)}, self.seen())
        if play.playbook == "stop":
            return self._stop(world, play)
        if play.playbook in ("deploy", "restart"):
            self._start(play)
        if play.playbook == "rotate":
            rotated = self.keys.rotate(play, self.hosts_down, self.breaks_on_host, self.moment)
            return after(world, play, rotated, self.seen())
        work = play.work
        if not self.up and work:
            silent = AdapterError("slurm_silent", "slurmctld does not answer", "retryable")
            return after(world, play, {play.members[0].id: Outcome(error=silent)}, None)
        self.moment()
        self.partitions |= {
            name: state for name, state in work.get("partitions", {}).items() if name in self.partitions
        }
        for order in work.get("drain", []):
            for name in order["nodes"]:
                if name in self.nodes and self.nodes[name].reason is None:
                    self.moment()
                    self.nodes[name].reason = order["reason"]
        for order in work.get("resume", []):
            for name in order["nodes"]:
                reason, owner = (self.nodes.get(name) or FakeNode()).reason or "", order["owner"]
                by_operation = reason.startswith("gpuaas:") and not reason.startswith("gpuaas:manual:")
                if not self.ignores_resume and by_operation and (owner == "gpuaas:*" or reason.startswith(owner)):
                    self.moment()
                    self.nodes[name].reason = None
        for how in ("requeue", "unpin", "cancel"):
            for address in work.get(how, []):
                self._evict(how, address)
        for name in work.get("delete", []):
            self._delete(name)
        outcomes: dict[UUID, Outcome] = {play.members[0].id: Outcome("serving")}
        for member in play.members[1:]:
            outcomes[member.id] = self._on_host(play, member)
        return after(world, play, outcomes, self.seen())

    def _evict(self, how: str, address: str) -> None:
        """A job is named by its whole address: of an array only that element ends."""
        self.moment()
        self.evictions.append((how, address))
        named = {job for job in self.pending_on if str(job) == address}
        for job in named if how != "requeue" else ():
            self.pending_on.pop(job)
            self.waiting |= {job} if how == "unpin" else set()
        for fake in self.nodes.values() if how != "unpin" else ():
            ended = {job for job in fake.jobs if str(job) == address} - self.deaf_jobs
            fake.jobs -= ended
            fake.ending |= ended if self.slow_evictions else set()
            self.waiting |= ended if how == "requeue" else set()

    def clear_away(self) -> None:
        for fake in self.nodes.values():
            fake.ending.clear()

    def _on_host(self, play: Play, member: Member) -> Outcome:
        name = _host(member)
        if name in self.hosts_down:
            return Outcome(error=AdapterError("host_unreachable", "no route", "retryable"))
        if name in self.breaks_on_host:
            return Outcome("stopping", {}, AdapterError("unit_failed", "it does not stop", "retryable"))
        if play.playbook == "restart":
            self._restarted(name)
            return Outcome("restarted")
        if play.playbook == "remove_worker":
            refused = self._delete(name)
            return Outcome("stopping", {}, refused) if refused else Outcome("removed", {"residue": []})
        self.moment()
        self.keys.live[name] = self.keys.current
        self.moment()
        self.nodes.setdefault(name, FakeNode())
        return Outcome("serving", {"worker_hostname": name, "cpus": 2, "memory_mb": 1000, "gpus": 0})

    def _stop(self, world: World, play: Play) -> World:
        controller = play.members[0].id
        if self.up and any(fake.jobs for fake in self.nodes.values()):
            busy = Outcome("stopping", {}, AdapterError("jobs_running", "jobs are running", "retryable"))
            return after(world, play, {controller: busy}, self.seen())
        gone = Outcome(error=AdapterError("host_unreachable", "no route", "retryable"))
        outcomes = {
            one.id: gone if node_name(one) in self.hosts_down else Outcome("stopped") for one in play.members[1:]
        }
        self.moment()
        self.up = False
        return after(world, play, {**outcomes, controller: Outcome("stopped")}, None)

    def _start(self, play: Play) -> None:
        """slurmctld takes partitions as slurm.conf has them, and knows nodes, drains and jobs as before."""
        self.moment()
        fresh = not self.up
        since = play.terms.get("restart_since")
        if play.playbook == "restart" and self.started_at < datetime.fromisoformat(str(since)):
            fresh = True
        if fresh:
            self.partitions = dict.fromkeys(self.partitions, "UP")
            self.started_at = self.clock()
            self.restarts["slurmctld"] = self.restarts.get("slurmctld", 0) + 1
        self.up = True

    def _restarted(self, name: str) -> None:
        """The play goes by the age of the process; here one restart a node is the one that was asked for."""
        self.moment()
        self.restarts.setdefault(name, 1)

    def _clean(self, play: Play, member: Member) -> Outcome:
        name = "ctl" if member.component_key == "controller" else _host(member)
        if name in self.hosts_down:
            return Outcome(error=AdapterError("host_unreachable", "no route", "retryable", host=name))
        jobs = self.nodes[name].jobs | self.nodes[name].ending if name in self.nodes else set()
        if jobs and play.terms["teardown_jobs"] == "wait":
            return Outcome("stopping", {}, AdapterError("jobs_on_host", "a job runs", "retryable", host=name))
        if jobs:
            self.cleaned_with_jobs.append(name)
        self.moment()
        self.nodes.pop(name, None)
        left = self.residue.get(name, [])
        if left:
            error = AdapterError("residue_left", f"left are: {', '.join(left)}", "repairable", host=name)
            return Outcome("cleaning", {"host_cleaned": False, "residue": left}, error)
        self.cleaned.append(name)
        return Outcome("removed", {"host_cleaned": True, "residue": []})

    def _delete(self, name: str) -> AdapterError | None:
        if name not in self.nodes:
            return None
        if self.nodes[name].jobs | self.nodes[name].ending:
            self.deleted_with_jobs.append(name)  # the play would refuse; that it was asked to is already wrong
        problem = self._in_the_way(name)
        if problem:
            return AdapterError(problem, f"{name} may not be deleted: {problem}", "retryable")
        self.moment()
        if name not in self.ghosts:
            self.nodes.pop(name, None)
        self.keys.live.pop(name, None)
        return None

    def _in_the_way(self, name: str) -> str | None:
        """As the module on the controller judges, in words of its own."""
        fake = self.nodes[name]
        if not self.answers or not self.up:
            return "state_unknown"
        if not fake.reason or "UNDRAIN" in fake.flags or "COMPLETING" in fake.flags or fake.jobs or fake.ending:
            return "not_drained"
        if fake.state not in (None, "IDLE", "DOWN"):
            return "state_unknown"
        if name in self.pending_on.values():
            return "jobs_need_node"
        return "node_reserved" if name in self.reservations.values() else None


def _job(job: int | str, state: str, **more: list[str]) -> Job:
    number, _, task = str(job).replace("+", "_").partition("_")
    return Job(id=int(number) * 1000 + int(task or 0), address=str(job), state=state, **more)  # type: ignore[arg-type]


def _host(member: Member) -> str:
    return node_name(member) or f"w{member.allocation_id.int - 100}"  # type: ignore[union-attr]
