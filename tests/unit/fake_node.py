"""A node as slurmctld shows it, and its jobs: by Slurm's documents, without any rule of the code under test."""

from dataclasses import dataclass, field
from datetime import datetime

from runner.slurm.snapshot import Job, Node

JobId = int | str  # the number of a plain job, or an address such as 100_7 or 200+1


@dataclass
class FakeNode:
    jobs: set[JobId] = field(default_factory=set)
    reason: str | None = None  # set: the node is set to drain, and this is why
    state: str | None = None  # a base state of its own, such as DOWN or UNKNOWN; else by its jobs
    flags: set[str] = field(default_factory=set)  # more of them, such as UNDRAIN or COMPLETING
    ending: dict[JobId, datetime] = field(default_factory=dict)  # ended at that time, and not cleared away yet
    reason_by: str | None = None
    down_reason: str | None = None  # why a node is DOWN that is not set to drain

    @property
    def shown_state(self) -> str:
        """slurmctld counts a job that is being cleared away as COMPLETING, and its CPUs as free."""
        return self.state or ("MIXED" if self.jobs else "IDLE")

    @property
    def shown_flags(self) -> frozenset[str]:
        drain = {"DRAIN"} if self.reason else set()
        return frozenset({"DYNAMIC_NORM"} | drain | self.flags | ({"COMPLETING"} if self.ending else set()))

    @property
    def all_jobs(self) -> set[JobId]:
        return self.jobs | set(self.ending)

    def shown(self, more_flags: set[str], started_at: datetime | None, version: str | None) -> Node:
        return Node(
            state=self.shown_state,
            flags=self.shown_flags | more_flags,
            reason=self.reason or self.down_reason,
            reason_by=self.reason_by,
            cpus=2,
            memory_mb=1000,
            slurmd_started_at=started_at,
            slurm_version=version,
            jobs=sorted(map(str, self.all_jobs)),
        )

    def end(self, jobs: set[JobId], at: datetime) -> None:
        """Their processes get a signal to end; a job leaves the node only when it has been cleared away."""
        self.jobs -= jobs
        self.ending |= dict.fromkeys(jobs, at)

    def register(self) -> None:
        """What slurmd does at its start. ReturnToService=2 takes a DOWN node back, a drained one stays drained."""
        if self.state in ("DOWN", "UNKNOWN"):
            self.state = None
        self.down_reason = None
        self.flags -= {"NOT_RESPONDING", "INVALID_REG"}

    def hold_down(self) -> None:
        """What the play does before daemons are restarted: a node that a person set DOWN is drained as well."""
        if self.state == "DOWN" and not self.reason and self.down_reason and self.reason_by not in (None, "slurm"):
            self.reason = self.down_reason

    def not_deletable(self) -> str | None:
        """The code with which the module on the controller keeps the node, as far as the node itself shows it."""
        shown = self.shown_flags
        if "DRAIN" not in shown or "UNDRAIN" in shown or "COMPLETING" in shown or self.jobs:
            return "not_drained"
        if self.shown_state in ("ALLOCATED", "MIXED"):
            return "not_drained"
        return None if self.shown_state in ("IDLE", "DOWN") else "state_unknown"


def acts_on(how: str, address: str) -> set[str]:
    """Which addresses a requeue or a cancel of a running job ends, of those that begin alike.

    Of an array only the element that is named. Requeue of a heterogeneous job, and cancel of its component zero, act on
    the whole: `200+*` stands for all of its components.
    """
    job, plus, component = address.partition("+")
    return {f"{job}+*"} if plus and (how == "requeue" or component == "0") else {address}


def is_hit(job: JobId, addresses: set[str]) -> bool:
    return str(job) in addresses or ("+" in str(job) and f"{str(job).partition('+')[0]}+*" in addresses)


def shown_job(job: JobId, state: str, **more: list[str]) -> Job:
    number, _, task = str(job).replace("+", "_").partition("_")
    return Job(id=int(number) * 1000 + int(task or 0), address=str(job), state=state, **more)  # type: ignore[arg-type]
