"""What Slurm says of itself, typed: the snapshot a play brings back, and what may be concluded from it.

Absent, unknown and unreadable are states of their own; none of them ever counts as good.
"""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from runner import node_rules, reported
from runner.node_rules import Obstacle
from runner.shapes import YEARS

# Which slurmd a slurmctld takes, by series; the roles have the same table.
WINDOW: dict[str, tuple[str, ...]] = {
    "22.05": ("22.05",),
    "23.02": ("22.05", "23.02"),
    "23.11": ("22.05", "23.02", "23.11"),
    "24.05": ("23.02", "23.11", "24.05"),
    "24.11": ("23.02", "23.11", "24.05", "24.11"),
    "25.05": ("23.11", "24.05", "24.11", "25.05"),
}


WORD_BYTES = 256
VERSION_BYTES = 48
REASON_BYTES = 1000


def _cut(most: int) -> BeforeValidator:
    """Text of at most so many bytes. It goes into records, and one that is too large is refused at every tick."""

    def cut(value: Any) -> Any:
        if not isinstance(value, str) or 4 * len(value) <= most:  # a character is at most four bytes
            return value
        return reported.printable(value, most, keep="\n\t")

    return BeforeValidator(cut)


def _in_our_years(value: datetime) -> datetime:
    if value.year not in YEARS:
        raise ValueError("not a year that can be")
    return value.astimezone(UTC)


def _or_none(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """What cannot be read is not known. A worker tells some of these times, and must not spoil the whole snapshot."""
    try:
        return read(value)
    except ValidationError:
        return None


Word = Annotated[str, _cut(WORD_BYTES)]
Version = Annotated[str, _cut(VERSION_BYTES)]
Reason = Annotated[str, _cut(REASON_BYTES)]
Number = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Moment = Annotated[AwareDatetime, AfterValidator(_in_our_years)]
MaybeMoment = Annotated[Moment | None, WrapValidator(_or_none)]


class _Observed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Disk(_Observed):
    path: Word
    free_mb: Number
    size_mb: Number = 0


class ControllerState(_Observed):
    hostname: Word | None = None
    munge: Word | None = None
    slurmctld: Word | None = None
    slurmdbd: Word | None = None
    mariadb: Word | None = None
    ping: Word = "UNKNOWN"
    slurm_version: Version | None = None
    slurmdbd_version: Version | None = None
    package_version: Version | None = None
    config_version: Word | None = None
    cluster_name: Word | None = None
    started_at: MaybeMoment = None
    submit_account: Word | None = None
    accounting_answers: bool | None = None
    # Whether slurm.conf is as the adapter wrote it, and whether it is what slurmctld has read.
    config_intact: bool | None = None
    config_loaded: bool | None = None
    # How slurmctld has the processes of jobs held, on every worker: cgroup or linuxproc.
    process_control: Word | None = None
    # Daemons whose program was replaced on disk since they started.
    outdated: list[Word] = Field(default_factory=list)
    disks: list[Disk] = Field(default_factory=list)
    # The controller's clock against the runner's; positive is ahead.
    clock_skew_seconds: float | None = None


class Node(_Observed):
    state: Word
    flags: frozenset[str] = frozenset()
    reason: Reason | None = None
    reason_by: Word | None = None
    cpus: Number = 0
    memory_mb: Number = 0
    gres: str = ""
    address: Word | None = None
    slurm_version: Version | None = None
    slurmd_started_at: MaybeMoment = None
    features: list[str] = Field(default_factory=list)
    partitions: list[Word] = Field(default_factory=list)
    jobs: list[str] = Field(default_factory=list)  # addresses of the jobs on it

    @property
    def words(self) -> str:
        """As an operator would say it: IDLE+DRAIN."""
        return reported.printable("+".join([self.state, *sorted(self.flags - {"DYNAMIC_NORM"})]), WORD_BYTES)

    @property
    def gpus(self) -> int:
        """GPUs in a Gres text such as gpu:a100:4(S:0-1)."""
        total = 0
        for entry in self.gres.split(","):
            kind, _, rest = entry.split("(")[0].partition(":")
            if kind == "gpu":
                count = rest.rpartition(":")[2] or "1"
                total += int(count) if count.isascii() and count.isdigit() and len(count) < 7 else 1
        return total


class Job(_Observed):
    id: Number
    # What people and Slurm call this job and no other: 100, 100_7, 100_[5-9], 200+1. See module_utils/slurm_jobs.py.
    address: str
    state: Word
    nodes: list[str] = Field(default_factory=list)
    required_nodes: list[str] = Field(default_factory=list)
    end_time: MaybeMoment = None


class Reservation(_Observed):
    name: Word
    nodes: list[str] = Field(default_factory=list)


class Sample(_Observed):
    """A command that a person would type, with what the cluster answered."""

    kind: Word
    about: Word
    command: Reason
    output: str | None = None
    steady: bool = False
    about_jobs: bool = False


class Snapshot(_Observed):
    observed_at: Moment
    controller: ControllerState
    nodes: dict[str, Node] | None = None
    jobs: list[Job] | None = None
    reservations: list[Reservation] | None = None
    samples: list[Sample] | None = None
    partitions: dict[str, str] | None = None  # by name: UP, DOWN, DRAIN or INACTIVE

    def jobs_of(self, hostname: str) -> list[Job]:
        return [job for job in self.jobs or [] if hostname in job.nodes]

    def jobs_naming(self, hostname: str) -> list[Job]:
        """Jobs that hold this node or ask for it by name."""
        return [job for job in self.jobs or [] if hostname in job.required_nodes or hostname in job.nodes]

    def timed(self, here: datetime) -> "Snapshot":
        """With the skew of the controller's clock, if this is the time by ours at which the snapshot came."""
        skew = round((self.observed_at - here).total_seconds(), 1)
        return self.model_copy(
            update={"controller": self.controller.model_copy(update={"clock_skew_seconds": skew})},
        )


def read_snapshot(data: Any) -> Snapshot | None:
    """A play's snapshot, or None when it cannot be read: then nothing is known."""
    try:
        return Snapshot.model_validate(data)
    except ValidationError:
        return None


def controller_problem(snapshot: Snapshot | None) -> tuple[str, str] | None:
    """Why the controller is not ready (code, sentence), or None when it is."""
    if snapshot is None:
        return "controller_unknown", "the controller could not be looked at"
    seen = snapshot.controller
    for daemon in ("munge", "slurmdbd", "slurmctld"):
        state = getattr(seen, daemon)
        if state != "active":
            return (
                f"{daemon}_not_active",
                f"{daemon} is {state or 'unknown'} on the controller: see its journal there",
            )
    if seen.ping != "UP":
        return (
            "slurmctld_not_answering",
            f"scontrol ping says {seen.ping}: see slurmctld's journal on the controller",
        )
    if not seen.config_version:
        return "config_unknown", "the controller has no readable slurm.conf"
    if not seen.submit_account:
        return (
            "no_submit_account",
            "no account with an association exists yet: jobs would be refused as InvalidAccount",
        )
    return None


def running_jobs(snapshot: Snapshot | None) -> list[Job] | None:
    """Jobs that hold nodes; None if that cannot be known. A waiting job holds none."""
    if snapshot is None or snapshot.jobs is None:
        return None
    return [job for job in snapshot.jobs if job.state != "PENDING" and job.nodes]


def worker_problem(
    snapshot: Snapshot | None, hostname: str | None, host: dict[str, Any], *, may_be_held: bool = False
) -> tuple[str, str] | None:
    """Why a worker is not ready, from the controller's point of view; None when it is.

    `may_be_held`: a drain is no problem, for one that only comes back as it was.
    """
    if snapshot is None or snapshot.nodes is None:
        return "controller_unknown", "the controller could not be asked about its nodes"
    if not hostname:
        return "hostname_unknown", "the host never told its name: the join did not get far enough"
    node = snapshot.nodes.get(hostname)
    if node is None:
        return (
            "not_registered",
            f"the controller does not know a node {hostname}: see slurmd's journal on the worker",
        )
    if not (is_serving(node) or (may_be_held and node_rules.is_held(node.state, node.flags))):
        because = f" ({node.reason})" if node.reason else ""
        return "not_schedulable", f"the controller shows {hostname} as {node.words}{because}"
    wrong = wrong_resource(node, host)
    return ("wrong_resources", f"the controller shows {hostname} with {wrong}") if wrong else None


def wrong_resource(node: Node, host: dict[str, Any]) -> str | None:
    """What the controller believes a node to have, where the host has something else."""
    for what, theirs in (("cpus", node.cpus), ("memory_mb", node.memory_mb), ("gpus", node.gpus)):
        ours = host.get(what)
        if isinstance(ours, int) and theirs != ours:
            return f"{what}={theirs}, the host has {ours}"
    return None


def is_serving(node: Node) -> bool:
    return node_rules.is_serving(node.state, node.flags)


def is_held_by_a_person(node: Node) -> bool:
    return node_rules.is_held_by_person(node.state, node.flags, node.reason, node.reason_by)


def series(version: str) -> str:
    """The part of a version that decides what works together: 22.05 of 22.05.8-4+deb12u3."""
    return ".".join(version.split(".")[:2])


def fits_window(worker: str, controller: str) -> bool:
    return series(worker) in WINDOW.get(series(controller), (series(controller),))


def upstream_version(package: str | None) -> str | None:
    """22.05.8 of 22.05.8-4+deb12u3, as the daemon itself says it."""
    return package.rpartition(":")[2].partition("-")[0] if package else None


def is_drained(node: Node) -> bool:
    return node_rules.is_drained(node.state, node.flags, node.jobs)


def deletion_problem(snapshot: Snapshot, hostname: str) -> Obstacle | None:
    """Why a node must not be deleted now; None when it may. What cannot be known stands in the way."""
    if snapshot.nodes is None or snapshot.jobs is None or snapshot.reservations is None:
        return Obstacle("state_unknown", "slurmctld did not return nodes, jobs and reservations; nothing is deleted.")
    node = snapshot.nodes.get(hostname)
    if node is None:
        return None
    named_by = [job.address for job in snapshot.jobs_naming(hostname)]
    reserved_by = [one.name for one in snapshot.reservations if hostname in one.nodes]
    return node_rules.delete_obstacle(hostname, node.state, node.flags, node.jobs, named_by, reserved_by)
