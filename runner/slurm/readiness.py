"""Why a controller or a worker is not ready, not drained, or must not be deleted. Pure.

Unknown and unreadable are states of their own; neither ever counts as good.
"""

from runner.slurm import node_rules
from runner.slurm.node_rules import Obstacle
from runner.slurm.notes import WorkerNotes
from runner.slurm.snapshot import Job, Node, Snapshot


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
    """Jobs that hold nodes; None if the controller did not return its jobs. A waiting job holds none."""
    if snapshot is None or snapshot.jobs is None:
        return None
    return [job for job in snapshot.jobs if job.state != "PENDING" and job.nodes]


def worker_problem(
    snapshot: Snapshot | None, worker: WorkerNotes, *, may_be_held: bool = False
) -> tuple[str, str] | None:
    """Why a worker is not ready, from the controller's point of view; None when it is.

    `may_be_held`: a drain does not count, for a worker that returns to the state it had.
    """
    if snapshot is None or snapshot.nodes is None:
        return "controller_unknown", "the controller could not be asked about its nodes"
    hostname = worker.worker_hostname
    if not hostname:
        return "hostname_unknown", "the host has not reported its name: the join did not get that far"
    node = snapshot.nodes.get(hostname)
    if node is None:
        return (
            "not_registered",
            f"the controller does not know a node {hostname}: see slurmd's journal on the worker",
        )
    if not (is_serving(node) or (may_be_held and node_rules.is_held(node.state, node.flags))):
        reason = f" ({node.reason})" if node.reason else ""
        return "not_schedulable", f"the controller shows {hostname} as {node.summary}{reason}"
    wrong = wrong_resource(node, worker)
    return ("wrong_resources", f"the controller shows {hostname} with {wrong}") if wrong else None


def wrong_resource(node: Node, host: WorkerNotes) -> str | None:
    """The first resource that the controller shows otherwise than the host has it."""
    compared = (
        ("cpus", node.cpus, host.cpus),
        ("memory_mb", node.memory_mb, host.memory_mb),
        ("gpus", node.gpus, host.gpus),
    )
    for name, shown, real in compared:
        if real is not None and shown != real:
            return f"{name}={shown}, the host has {real}"
    return None


def is_serving(node: Node) -> bool:
    return node_rules.is_serving(node.state, node.flags)


def is_held_by_a_person(node: Node) -> bool:
    return node_rules.is_held_by_person(node.state, node.flags, node.reason, node.reason_by)


def is_drained(node: Node) -> bool:
    return node_rules.is_drained(node.state, node.flags, node.jobs)


def deletion_problem(snapshot: Snapshot, hostname: str) -> Obstacle | None:
    """Why a node must not be deleted now; None when it may. Unknown counts as an obstacle."""
    if snapshot.nodes is None or snapshot.jobs is None or snapshot.reservations is None:
        return Obstacle("state_unknown", "slurmctld did not return nodes, jobs and reservations; nothing is deleted.")
    node = snapshot.nodes.get(hostname)
    if node is None:
        return None
    named_by = [job.address for job in snapshot.jobs_naming(hostname)]
    reserved_by = [one.name for one in snapshot.reservations if hostname in one.nodes]
    return node_rules.delete_obstacle(hostname, node.state, node.flags, node.jobs, named_by, reserved_by)
