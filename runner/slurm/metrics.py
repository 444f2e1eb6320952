"""Metrics of a cluster from its snapshot, under the names of Slurm 25.11 and of the older exporters. Pure.

docs/usage/telemetry.md has the origin of each name. A value that the snapshot does not have is not shown: unknown is
not zero.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType

from runner.intent.errors import IntentError
from runner.model.platform import AppInstance
from runner.slurm import decide, notes
from runner.slurm.cluster_config import Config, cluster_name, read_config
from runner.slurm.decide.workers import refusals
from runner.slurm.node_rules import BUSY_FLAGS, BUSY_STATES, is_serving
from runner.slurm.snapshot import Job, Node, Snapshot
from runner.slurm.world import World

# Base states and flags of nodes, by the end of the metric's name.
NODE_STATES = {
    "alloc": "ALLOCATED",
    "down": "DOWN",
    "future": "FUTURE",
    "idle": "IDLE",
    "mixed": "MIXED",
    "unknown": "UNKNOWN",
}
NODE_FLAGS = {
    "completing": "COMPLETING",
    "drain": "DRAIN",
    "fail": "FAIL",
    "invalid_reg": "INVALID_REG",
    "maint": "MAINTENANCE",
    "noresp": "NOT_RESPONDING",
    "planned": "PLANNED",
    "reboot_issued": "REBOOT_ISSUED",
    "reboot_req": "REBOOT_REQUESTED",
    "resv": "RESERVED",
}
# States of jobs that have not ended. The snapshot has no others.
JOB_STATES = ("completing", "configuring", "pending", "running", "suspended")
LATE_DRAINS = "gpuaas_drains_past_deadline"
FAMILIES = {
    LATE_DRAINS: "Workers that are still being drained after the deadline of their operation",
    "slurm_nodes": "Total number of nodes",
    **{f"slurm_nodes_{name}": f"Nodes in state {state}" for name, state in NODE_STATES.items()},
    **{f"slurm_nodes_{name}": f"Nodes with the flag {flag}" for name, flag in NODE_FLAGS.items()},
    "slurm_nodes_draining": "Nodes with the flag DRAIN and with jobs",
    "slurm_nodes_drained": "Nodes with the flag DRAIN and without jobs",
    "slurm_jobs": "Jobs that have not ended",
    **{f"slurm_jobs_{state}": f"Jobs in state {state.upper()}" for state in JOB_STATES},
    "slurm_jobs_nodes_alloc": "Nodes allocated to jobs; a node counts once for each of its jobs",
    "slurm_partitions": "Total number of partitions",
    **{f"slurm_queue_{state}": f"Jobs in state {state.upper()}" for state in JOB_STATES},
    "slurm_gpus_total": "GPUs of all nodes",
    "slurm_gpus_alloc": "GPUs allocated to jobs",
    "slurm_gpus_idle": "GPUs on nodes in service that no job has",
    "slurm_gpus_other": "GPUs that are neither allocated nor idle",
    "slurm_gpus_utilization": "Allocated GPUs divided by all GPUs; 0 if there are none",
}
# A test compares them with the folder playbooks/, without those that only a person runs.
PLAYBOOKS = (
    "add_worker",
    "decommission",
    "deploy",
    "drain_worker",
    "follow",
    "follow_attachments",
    "observe",
    "quiesce",
    "remove_worker",
    "restart",
    "rollback",
    "rotate",
    "stop",
    "upgrade",
)


class SlurmMetrics:
    families: Mapping[str, str] = MappingProxyType(FAMILIES)
    verbs = frozenset({*decide.VERBS, *refusals.VERBS})
    playbooks = frozenset(PLAYBOOKS)

    def cluster(self, instance: AppInstance) -> str:
        try:
            return cluster_name(instance, read_config(instance))
        except IntentError:
            return cluster_name(instance, Config(cluster_name=None))

    def members(self, instance: AppInstance) -> Mapping[str, int]:
        return notes.InstanceNotes.read(instance.status_detail or {}).workers or {}

    def samples(self, snapshot: Snapshot) -> Mapping[str, float]:
        found: dict[str, float] = {}
        if snapshot.nodes is not None:
            found |= _nodes(list(snapshot.nodes.values()))
        if snapshot.jobs is not None:
            found |= _jobs(snapshot.jobs)
        if snapshot.partitions is not None:
            found["slurm_partitions"] = len(snapshot.partitions)
        return found

    def record_samples(self, world: World) -> Mapping[str, float]:
        operations = {one.id: one for one in (*world.operations, *world.instance_operations)}
        late = 0
        for member in world.members:
            leave = notes.of(member).leave
            operation = operations.get(leave.operation_id) if leave and leave.is_under_way else None
            seconds = operation.parameters.get("deadline_seconds") if operation else None
            if leave and isinstance(seconds, int) and 0 <= seconds < 10**9:
                late += world.now > leave.started_at + timedelta(seconds=seconds)
        return {LATE_DRAINS: late}


def _nodes(nodes: Sequence[Node]) -> dict[str, float]:
    states = Counter(node.state for node in nodes)
    flags = Counter(flag for node in nodes for flag in node.flags)
    draining = sum("DRAIN" in node.flags and _is_busy(node) for node in nodes)
    total = sum(node.gpus for node in nodes)
    alloc = sum(node.gpus_used for node in nodes)
    idle = sum(max(0, node.gpus - node.gpus_used) for node in nodes if is_serving(node.state, node.flags))
    return {
        "slurm_nodes": len(nodes),
        **{f"slurm_nodes_{name}": states[state] for name, state in NODE_STATES.items()},
        **{f"slurm_nodes_{name}": flags[flag] for name, flag in NODE_FLAGS.items()},
        "slurm_nodes_draining": draining,
        "slurm_nodes_drained": flags["DRAIN"] - draining,
        "slurm_gpus_total": total,
        "slurm_gpus_alloc": alloc,
        "slurm_gpus_idle": idle,
        "slurm_gpus_other": max(0, total - alloc - idle),
        "slurm_gpus_utilization": alloc / total if total else 0,
    }


def _is_busy(node: Node) -> bool:
    return node.state in BUSY_STATES or bool(BUSY_FLAGS & node.flags) or bool(node.jobs)


def _jobs(jobs: Sequence[Job]) -> dict[str, float]:
    states = Counter(job.state.lower() for job in jobs)
    counts = {state: states[state] for state in JOB_STATES}
    return {
        "slurm_jobs": len(jobs),
        "slurm_jobs_nodes_alloc": sum(len(job.nodes) for job in jobs if job.state != "PENDING"),
        **{f"slurm_jobs_{state}": count for state, count in counts.items()},
        **{f"slurm_queue_{state}": count for state, count in counts.items()},
    }
