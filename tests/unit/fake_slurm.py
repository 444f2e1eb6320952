"""A simulated cluster: does what the plays do, by Slurm's rules, so that whole lifecycles can be tested by property.

Its rules are written out here, in fake_node.py and in fake_packages.py, and taken from no code under test;
test_fake_slurm.py holds them to what was recorded of Slurm. Over 300 lines, because every play changes the state of the
same object.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from runner.model.plan import AdapterError, Play
from runner.model.platform import Member
from runner.model.world import Outcome, World
from runner.slurm.node_names import node_name
from runner.slurm.snapshot import Reservation, Snapshot
from tests.unit.fake_keys import FakeKeys
from tests.unit.fake_node import FakeNode, JobId, acts_on, is_hit, shown_job
from tests.unit.fake_packages import CONTROLLER_HOST, FakePackages, upstream
from tests.unit.worlds import NOW, UNREACHABLE, after, snapshot

__all__ = ["FakeNode", "FakeSlurm"]

BROKEN = AdapterError("host_lock_busy", "another call holds the host's lock", "retryable")
DAEMON_STARTS = timedelta(seconds=2)


@dataclass
class FakeSlurm:
    nodes: dict[str, FakeNode] = field(default_factory=dict)
    answers: bool = True
    pending_on: dict[JobId, str] = field(default_factory=dict)
    reservations: dict[str, str] = field(default_factory=dict)
    hosts_down: set[str] = field(default_factory=set)
    deleted_with_jobs: list[str] = field(default_factory=list)
    breaks_on_host: set[str] = field(default_factory=set)
    residue: dict[str, list[str]] = field(default_factory=dict)  # what cannot be removed from a host
    cleaned: list[str] = field(default_factory=list)
    cleaned_with_jobs: list[str] = field(default_factory=list)
    refused_deletions: list[tuple[str, str]] = field(default_factory=list)  # each with what was in the way
    ignores_resume: bool = False  # Slurm takes the command, and the node stays drained
    ghosts: set[str] = field(default_factory=set)  # Slurm takes their deletion, and shows them still
    # An ended job is COMPLETING until a later tick has begun; with this, until `clear_away`.
    slow_evictions: bool = False
    deaf_jobs: set[JobId] = field(default_factory=set)  # Slurm takes the command, and the job runs on
    evictions: list[tuple[str, str]] = field(default_factory=list)  # each that was asked for: what, and of which job
    distrusts_resumed: bool = False  # as slurmctld does until the node has answered
    waiting: set[JobId] = field(default_factory=set)  # jobs that name no node
    requeued: set[JobId] = field(default_factory=set)  # jobs that wait again once they have been cleared away
    partitions: dict[str, str] = field(default_factory=lambda: {"main": "UP"})
    up: bool = True  # whether slurmctld runs
    started_at: datetime = NOW - timedelta(hours=1)
    restarts: dict[str, int] = field(default_factory=dict)  # by node for slurmd; slurmdbd and slurmctld by name
    daemons_started: dict[str, datetime] = field(default_factory=dict)  # as `restarts`; one not listed is old
    ctl_error: AdapterError | None = None  # what the next play meets on the controller
    keys: FakeKeys = field(default_factory=FakeKeys)
    packages: FakePackages = field(default_factory=FakePackages)
    now: datetime = NOW  # by the controller's clock
    # Called before anything changes anywhere; a test may end the runner there.
    moment: Callable[[], None] = lambda: None
    clock: Callable[[], datetime] | None = None  # by which daemons start; else `now`, and a moment

    def seen(self) -> Snapshot | None:
        if not self.answers:
            return None
        if not self.up:
            return snapshot(None, ping="DOWN", slurmctld="inactive")
        nodes = {
            name: fake.shown(
                self._unresponsive_flags(name), self.daemons_started.get(name), upstream(self.packages.of(name))
            )
            for name, fake in self.nodes.items()
        }
        jobs = [shown_job(job, "RUNNING", nodes=[name]) for name, fake in self.nodes.items() for job in fake.jobs]
        for name, fake in self.nodes.items():
            jobs += [shown_job(job, "COMPLETING", nodes=[name]) for job in fake.ending]
        jobs += [shown_job(job, "PENDING", required_nodes=[name]) for job, name in self.pending_on.items()]
        jobs += [shown_job(job, "PENDING") for job in sorted(self.waiting, key=str)]
        held = [Reservation(name=name, nodes=[node]) for name, node in self.reservations.items()]
        found = {"jobs": jobs, "reservations": held, "partitions": dict(self.partitions)}
        return snapshot(nodes, started_at=self.started_at, **self._versions()).model_copy(update=found)

    def _versions(self) -> dict[str, object]:
        return {
            "slurm_version": upstream(self.packages.of("slurmctld")),
            "slurmdbd_version": upstream(self.packages.of("slurmdbd")),
            "package_version": self.packages.on(CONTROLLER_HOST),
            "outdated": self.packages.outdated,
        }

    def _unresponsive_flags(self, name: str) -> set[str]:
        """A node does not answer while its munged holds another key than the controller's."""
        distrusted = self.distrusts_resumed and not self.nodes[name].reason
        return {"NOT_RESPONDING"} if distrusted or self.keys.disagrees(name) else set()

    def run(self, world: World, play: Play) -> World:
        """Carry the play out and give back the world as it is then observed. The controller's clock is right."""
        self.now = max(NOW, world.now)
        if not self.slow_evictions:
            self.clear_away(before=self.now)
        then = self._run(world, play)
        if then.snapshot is None:
            return then
        return then.later(snapshot=then.snapshot.model_copy(update={"observed_at": self.now}))

    def _run(self, world: World, play: Play) -> World:
        if play.playbook == "decommission":
            return after(world, play, {one.id: self._clean(play, one) for one in play.members}, None)
        if not self.answers:
            return after(world, play, {play.members[0].id: Outcome(error=UNREACHABLE)}, None)
        if self.ctl_error:
            return after(world, play, {play.members[0].id: Outcome(error=self.ctl_error)}, self.seen())
        if play.playbook == "stop":
            return self._stop(world, play)
        if play.playbook in ("deploy", "restart"):
            self._start(play)
        if play.playbook in ("upgrade", "rollback"):
            return after(world, play, self._move(play), self.seen())
        if play.playbook == "rotate":
            rotated = self.keys.rotate(play, self.hosts_down, self.breaks_on_host, self.moment)
            return after(world, play, rotated, self.seen())
        work = play.work
        if not self.up and work:
            no_answer = AdapterError("slurm_silent", "slurmctld does not answer", "retryable")
            return after(world, play, {play.members[0].id: Outcome(error=no_answer)}, None)
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
        self.moment()
        self.evictions.append((how, address))
        for job in [job for job in self.pending_on if str(job) == address and how != "requeue"]:
            self.pending_on.pop(job)
            self.waiting |= {job} if how == "unpin" else set()
        if how == "unpin":
            return
        hit = acts_on(how, address)
        for fake in self.nodes.values():
            ended = {job for job in fake.jobs if is_hit(job, hit)} - self.deaf_jobs
            fake.end(ended, self.now)
            self.requeued |= ended if how == "requeue" else set()

    def clear_away(self, before: datetime | None = None) -> None:
        """Jobs that were ended, before that time if one is given, leave their nodes; requeued ones wait again."""
        for fake in self.nodes.values():
            gone = {job for job, at in fake.ending.items() if before is None or at < before}
            fake.ending = {job: at for job, at in fake.ending.items() if job not in gone}
        busy = {job for fake in self.nodes.values() for job in fake.ending}
        self.waiting |= self.requeued - busy
        self.requeued &= busy

    def _on_host(self, play: Play, member: Member) -> Outcome:
        name = _host(member)
        if name in self.hosts_down:
            return Outcome(error=UNREACHABLE)
        if name in self.breaks_on_host:
            return Outcome("stopping", {}, BROKEN)
        if play.playbook == "restart":
            if self._is_older(name, play):
                self._restart_slurmd(name)
            return Outcome("restarted")
        if play.playbook == "remove_worker":
            refused = self._delete(name)
            return Outcome("stopping", {}, refused) if refused else Outcome("removed", {"residue": []})
        self.moment()
        self.keys.live[name] = self.keys.current
        self.moment()
        self.nodes.setdefault(name, FakeNode()).register()
        return Outcome("serving", {"worker_hostname": name, "cpus": 2, "memory_mb": 1000, "gpus": 0})

    def _stop(self, world: World, play: Play) -> World:
        controller = play.members[0].id
        if self.up and any(fake.all_jobs for fake in self.nodes.values()):
            busy = Outcome("stopping", {}, AdapterError("jobs_running", "jobs are running", "retryable"))
            return after(world, play, {controller: busy}, self.seen())
        self._hold_down()
        gone = Outcome(error=UNREACHABLE)
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
        if play.playbook == "restart":
            self._hold_down()
            fresh = fresh or self.started_at < _since(play)
            if self._is_older("slurmdbd", play):
                self._restarted("slurmdbd")
                self.moment()
        if fresh:
            self._restart_slurmctld()
        self.up = True

    def _hold_down(self) -> None:
        for fake in self.nodes.values():
            fake.hold_down()

    def _restart_slurmctld(self) -> None:
        self.partitions = dict.fromkeys(self.partitions, "UP")
        self._restarted("slurmctld")
        self.started_at = self.daemons_started["slurmctld"]

    def _restart_slurmd(self, name: str) -> None:
        self.moment()
        self._restarted(name)
        if name in self.nodes:
            self.nodes[name].register()

    def _restarted(self, daemon: str) -> None:
        self.daemons_started[daemon] = self.clock() if self.clock else self.now + DAEMON_STARTS
        self.restarts[daemon] = self.restarts.get(daemon, 0) + 1

    def _is_older(self, daemon: str, play: Play) -> bool:
        started = self.daemons_started.get(daemon)
        return started is None or started < _since(play)

    def _move(self, play: Play) -> dict[UUID, Outcome]:
        """Packages and daemons of the controller, then those of the workers, to one version."""
        controller, *workers = play.members
        change = str(play.terms["slurm_change"])
        target = self.packages.target(play.playbook, change, str(play.terms.get("slurm_version") or ""))
        if isinstance(target, AdapterError):
            return {controller.id: Outcome(error=target)}
        self.moment()
        before = self.packages.begin(play.playbook, change, target)
        self._hold_down()
        closed = dict(self.partitions)
        self.packages.move(CONTROLLER_HOST, ["slurmdbd", "slurmctld"], target, self._moved, self.moment)
        self.partitions = closed
        moved = {"from": before, "to": target}
        if play.playbook == "rollback" and self.packages.point:
            self.packages.point.returned_by = change
        verb = "upgraded" if play.playbook == "upgrade" else "returned"
        outcomes = {controller.id: Outcome("serving", {"package_version": target, verb: moved})}
        for member in workers:
            outcomes[member.id] = self._move_worker(member, target)
        return outcomes

    def _move_worker(self, member: Member, target: str) -> Outcome:
        name = _host(member)
        if name in self.hosts_down or name in self.breaks_on_host:
            return Outcome(error=UNREACHABLE if name in self.hosts_down else BROKEN)
        self.packages.move(name, [name], target, self._moved, self.moment)
        return Outcome("serving", {"package_version": target})

    def _moved(self, daemon: str) -> None:
        if daemon == "slurmctld":
            self._restart_slurmctld()
        elif daemon == "slurmdbd":
            self._restarted(daemon)
        else:
            self._restart_slurmd(daemon)

    def _clean(self, play: Play, member: Member) -> Outcome:
        name = "ctl" if member.component_key == "controller" else _host(member)
        if name in self.hosts_down:
            return Outcome(error=AdapterError("host_unreachable", "no route", "retryable", host=name))
        jobs = self.nodes[name].all_jobs if name in self.nodes else set()
        if jobs and play.terms["teardown_jobs"] == "wait":
            return Outcome("stopping", {}, AdapterError("jobs_on_host", "a job runs", "retryable", host=name))
        if jobs:
            self.cleaned_with_jobs.append(name)
        self.moment()
        self.nodes.pop(name, None)
        left = self.residue.get(name, [])
        if left:
            error = AdapterError("residue_left", f"The clean-up left: {', '.join(left)}", "repairable", host=name)
            return Outcome("cleaning", {"host_cleaned": False, "residue": left}, error)
        self.cleaned.append(name)
        return Outcome("removed", {"host_cleaned": True, "residue": []})

    def _delete(self, name: str) -> AdapterError | None:
        if name not in self.nodes:
            return None
        if self.nodes[name].all_jobs:
            self.deleted_with_jobs.append(name)  # the play would refuse; that it was asked to is already wrong
        problem = self._in_the_way(name)
        if problem:
            self.refused_deletions.append((name, problem))
            return AdapterError(problem, f"{name} may not be deleted: {problem}", "retryable")
        self.moment()
        if name not in self.ghosts:
            self.nodes.pop(name, None)
        self.keys.live.pop(name, None)
        return None

    def _in_the_way(self, name: str) -> str | None:
        """As the module on the controller decides, written independently of it."""
        if not self.answers or not self.up:
            return "state_unknown"
        if code := self.nodes[name].not_deletable():
            return code
        if name in self.pending_on.values():
            return "jobs_need_node"
        return "node_reserved" if name in self.reservations.values() else None


def _since(play: Play) -> datetime:
    return datetime.fromisoformat(str(play.terms["restart_since"]))


def _host(member: Member) -> str:
    return node_name(member) or f"w{member.allocation_id.int - 100}"  # type: ignore[union-attr]
