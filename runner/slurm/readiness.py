"""Why a controller or a worker is not ready, not drained, or must not be deleted. Pure.

Unknown and unreadable are states of their own; neither ever counts as good.
"""

from collections.abc import Iterator

from runner.slurm import node_rules
from runner.slurm.node_rules import Obstacle
from runner.slurm.notes import WorkerNotes
from runner.slurm.snapshot import ControllerState, Job, Node, Snapshot

# The daemons of a controller, a cause before its effects, and what it means if one of them is down.
_DAEMONS = {
    "munge": "no message in the cluster can be authenticated",
    "mariadb": "jobs run, and are accounted once it is back",
    "slurmdbd": "jobs run, and are accounted once it is back",
    "slurmctld": "running jobs continue, no new ones start",
}


def controller_problem(snapshot: Snapshot | None) -> tuple[str, str] | None:
    """Why the controller is not ready (code, sentence), or None when it is."""
    if snapshot is None:
        return "controller_unknown", "the controller could not be looked at"
    return next(controller_problems(snapshot.controller), None)


def controller_problems(seen: ControllerState) -> Iterator[tuple[str, str]]:
    """All that keeps a controller from being ready, as code and sentence. Health shows each of them."""
    down = [name for name in _DAEMONS if getattr(seen, name) != "active"]
    for name in down:
        state = getattr(seen, name) or "unknown"
        yield (
            f"{name}_not_active",
            f"{name} is {state} on the controller: {_DAEMONS[name]}. See journalctl -u {name} there",
        )
    if not {"munge", "slurmctld"}.intersection(down) and seen.ping != "UP":
        yield (
            "slurmctld_not_answering",
            f"slurmctld runs, but scontrol ping returns {seen.ping}: see its journal on the controller, and restart it",
        )
    if not seen.config_version:
        yield "config_unknown", "the controller has no readable slurm.conf: slurmctld would not start again"
    if {"munge", "mariadb", "slurmdbd"}.intersection(down):
        return  # what accounting would answer is not known
    if seen.accounting_answers is False:
        yield (
            "slurmdbd_not_answering",
            "slurmdbd runs, but sacctmgr gets no answer: jobs run, and are accounted later. See its journal",
        )
    elif not seen.submit_account:
        yield "no_submit_account", "no account has a user, so jobs are refused as InvalidAccount: add one with sacctmgr"


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
        return "controller_unknown", "the controller did not return its nodes"
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


def is_responding(node: Node) -> bool:
    """Whether its slurmd works and responds to the controller, drained or not."""
    return node.state in node_rules.SERVING_STATES and "NOT_RESPONDING" not in node.flags


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
    named_by = [job.address for job in snapshot.jobs_needing(hostname)]
    reserved_by = [one.name for one in snapshot.reservations if hostname in one.nodes]
    return node_rules.delete_obstacle(hostname, node.state, node.flags, node.jobs, named_by, reserved_by)
