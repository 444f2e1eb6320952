"""adapter_detail and status_detail: what we say of a member and of an instance, from what was observed. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from runner.model.limits import SAMPLE, fit_reasons
from runner.model.names import CONTROLLER
from runner.model.plan import Detail, stamp
from runner.model.platform import AppInstance, Member, MemberStatus
from runner.model.progress import is_stopped, is_under_way
from runner.slurm import desired_config
from runner.slurm.snapshot import Snapshot

REASON_CHARS = 400
# slurmd_state of a worker that the controller does not reach.
SILENT = "not responding"
# What is said anew in status_detail each time. The rest stands until it is said otherwise, also what we do not know.
SAID_ANEW = ("wish", "reasons", "unsettled", "workers")
_COMMON: Detail = {"phase": "requested", "last_adapter_error": None, "last_runtime_observed_at": None, "attempt": 0}
_CONTROLLER: Detail = dict.fromkeys(
    (
        "controller_hostname",
        "slurmctld_state",
        "config_version",
        "cluster_name",
        "slurm_version",
        "slurmdbd_version",
        "package_version",
        "wish",
        "wish_refused",
        "change",
    )
)
_WORKER: Detail = dict.fromkeys(
    (
        "worker_hostname",
        "slurmd_state",
        "node_state",
        "drain_reason",
        "config_version",
        "slurm_version",
        "package_version",
        "jobs_remaining",
    )
) | {"registered_in_controller": False, "cpus": None, "memory_mb": None, "gpus": None}


def blank(component_key: str, operation_id: UUID | None = None) -> Detail:
    """Every field of the design from the first write on: null says unknown, absent would say nothing."""
    own = _CONTROLLER if component_key == CONTROLLER else _WORKER
    origin = {"operation_id": str(operation_id)} if operation_id else {}
    return {"role": component_key, **_COMMON, **own, **origin}


def filled(member: Member) -> Detail:
    return {**blank(member.component_key), **member.adapter_detail}


def of_controller(snapshot: Snapshot) -> Detail:
    seen = snapshot.controller
    return {
        "controller_hostname": seen.hostname,
        "slurmctld_state": seen.slurmctld,
        "slurmdbd_state": seen.slurmdbd,
        "mariadb_state": seen.mariadb,
        "munge_state": seen.munge,
        "config_version": seen.config_version,
        "cluster_name": seen.cluster_name,
        "slurm_version": seen.slurm_version,
        "slurmdbd_version": seen.slurmdbd_version,
        "package_version": seen.package_version,
        "slurmctld_started_at": stamp(seen.started_at) if seen.started_at else None,
        "last_runtime_observed_at": stamp(snapshot.observed_at),
    }


def of_worker(snapshot: Snapshot, hostname: str | None) -> Detail:
    """The controller's view of one worker. What the controller could not tell is left as it was."""
    if snapshot.nodes is None or not hostname:
        return {}
    node = snapshot.nodes.get(hostname)
    seen: Detail = {
        "registered_in_controller": node is not None,
        "node_state": node.words if node else "ABSENT",
        "drain_reason": (node.reason or "")[:REASON_CHARS] or None if node and "DRAIN" in node.flags else None,
        "jobs_remaining": len(node.jobs) if node else None,
        "last_runtime_observed_at": stamp(snapshot.observed_at),
    }
    if node and node.slurm_version:
        seen["slurm_version"] = node.slurm_version
    if node and "NOT_RESPONDING" in node.flags:
        seen["slurmd_state"] = SILENT
    elif node and node.state != "DOWN":
        seen["slurmd_state"] = "active"
    return seen


def is_unsettled(member: Member) -> bool:
    """Half way somewhere: a later tick has to come back to it, whatever becomes of the operation."""
    if is_stopped(member):
        return False
    leaving = member.adapter_detail.get("leave") or {}
    half_way = (MemberStatus.REQUESTED, MemberStatus.RECONCILING, MemberStatus.DELETING)
    left = bool(leaving) and leaving.get("verdict") is None
    return member.status in half_way or left or was_given_back(member) or bool(desired_config.on_trial(member))


def back_in_service(member: Member) -> Detail:
    """What a worker says that served as long as it was not drained, once it serves again."""
    named = {"jobs_naming_node": None} if member.adapter_detail.get("jobs_naming_node") else {}
    return {"phase": "serving", "jobs": [], "jobs_end_by": None, "drain_held_by": None, **named}


def was_given_back(member: Member) -> bool:
    """Undrained by us, but the controller has not shown it serving yet: somebody has to look again."""
    note = member.adapter_detail.get("leave") or {}
    ended = note.get("verdict") in (("done",) if note.get("verb") == "resume" else ("failed", "cancelled"))
    return member.status == MemberStatus.DRAINING and ended and not member.adapter_detail.get("drain_reason")


def of_instance(
    instance: AppInstance, snapshot: Snapshot | None, members: Sequence[Member], reasons: list[Detail], now: datetime
) -> Detail:
    """status_detail: the cluster in a few lines, the three versions side by side."""
    workers = [member for member in members if member.component_key != CONTROLLER]
    kept = instance.status_detail or {}
    seen: dict[str, Any] = {key: value for key, value in kept.items() if key not in SAID_ANEW}
    if snapshot:
        seen |= {
            "observed_at": stamp(now),
            "config_version": snapshot.controller.config_version,
            "versions": _versions(instance, snapshot),
        }
    return {
        **seen,
        "wish": desired_config.dealt_with(member for member in members if member.component_key == CONTROLLER),
        "reasons": fit_reasons(reasons),
        "unsettled": any(is_unsettled(member) for member in members) or is_under_way(kept.get("lifecycle")),
        "workers": {
            status: count
            for status in MemberStatus
            if (count := sum(worker.status == status for worker in workers)) and status != MemberStatus.DELETED
        },
    }


def unknown(instance: AppInstance) -> Detail:
    """What stands in status_detail and is not ours: a newer version's notes, say. Every write keeps it."""
    ours = (*SAID_ANEW, "observed_at", "config_version", "versions", "lifecycle")
    return {key: value for key, value in (instance.status_detail or {}).items() if key not in ours}


def _versions(instance: AppInstance, snapshot: Snapshot) -> Detail:
    """The app's version, the packages' on the controller, and what each running daemon says of itself."""
    running = {node.slurm_version for node in (snapshot.nodes or {}).values() if node.slurm_version}
    return {
        "app": instance.app_version,
        "package": snapshot.controller.package_version,
        "slurmdbd": snapshot.controller.slurmdbd_version,
        "slurmctld": snapshot.controller.slurm_version,
        "slurmd": sorted(running)[:SAMPLE],
    }
