"""What Slurm says of itself, typed: the snapshot a play brings back, and what may be concluded from it.

Absent, unknown and unreadable are states of their own; none of them ever counts as good.
"""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner import node_rules
from runner.node_rules import Obstacle

# Which slurmd a slurmctld takes, by series; the roles have the same table.
WINDOW: dict[str, tuple[str, ...]] = {
    "22.05": ("22.05",),
    "23.02": ("22.05", "23.02"),
    "23.11": ("22.05", "23.02", "23.11"),
    "24.05": ("23.02", "23.11", "24.05"),
    "24.11": ("23.02", "23.11", "24.05", "24.11"),
    "25.05": ("23.11", "24.05", "24.11", "25.05"),
}


class _Observed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Disk(_Observed):
    path: str
    free_mb: int
    size_mb: int = 0


class ControllerState(_Observed):
    hostname: str | None = None
    munge: str | None = None
    slurmctld: str | None = None
    slurmdbd: str | None = None
    mariadb: str | None = None
    ping: str = "UNKNOWN"
    slurm_version: str | None = None
    slurmdbd_version: str | None = None
    package_version: str | None = None
    config_version: str | None = None
    cluster_name: str | None = None
    started_at: datetime | None = None
    submit_account: str | None = None
    accounting_answers: bool | None = None
    # Whether slurm.conf is as the adapter wrote it, and whether it is what slurmctld has read.
    config_intact: bool | None = None
    config_loaded: bool | None = None
    # How slurmctld has the processes of jobs held, on every worker: cgroup or linuxproc.
    process_control: str | None = None
    # Daemons whose program was replaced on disk since they started.
    outdated: list[str] = Field(default_factory=list)
    disks: list[Disk] = Field(default_factory=list)
    # The controller's clock against the runner's; positive is ahead.
    clock_skew_seconds: float | None = None


class Node(_Observed):
    state: str
    flags: frozenset[str] = frozenset()
    reason: str | None = None
    reason_by: str | None = None
    cpus: int = 0
    memory_mb: int = 0
    gres: str = ""
    address: str | None = None
    slurm_version: str | None = None
    slurmd_started_at: datetime | None = None
    features: list[str] = Field(default_factory=list)
    partitions: list[str] = Field(default_factory=list)
    jobs: list[str] = Field(default_factory=list)  # addresses of the jobs on it

    @property
    def words(self) -> str:
        """As an operator would say it: IDLE+DRAIN."""
        return "+".join([self.state, *sorted(self.flags - {"DYNAMIC_NORM"})])

    @property
    def gpus(self) -> int:
        """GPUs in a Gres text such as gpu:a100:4(S:0-1)."""
        total = 0
        for entry in self.gres.split(","):
            kind, _, rest = entry.split("(")[0].partition(":")
            if kind == "gpu":
                count = rest.rpartition(":")[2] or "1"
                total += int(count) if count.isdigit() else 1
        return total


class Job(_Observed):
    id: int
    # What people and Slurm call this job and no other: 100, 100_7, 100_[5-9], 200+1. See module_utils/slurm_jobs.py.
    address: str
    state: str
    nodes: list[str] = Field(default_factory=list)
    required_nodes: list[str] = Field(default_factory=list)
    end_time: datetime | None = None


class Reservation(_Observed):
    name: str
    nodes: list[str] = Field(default_factory=list)


class Sample(_Observed):
    """A command that a person would type, with what the cluster answered."""

    kind: str
    about: str
    command: str
    output: str | None = None
    steady: bool = False
    about_jobs: bool = False


class Snapshot(_Observed):
    observed_at: datetime
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
