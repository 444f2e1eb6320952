"""Events of plays in which hosts report."""

from typing import Any
from uuid import UUID

from runner.intent import host_keys
from runner.slurm.member_reports import MemberReports
from runner.slurm.snapshot import Snapshot
from runner.translate import translate

WORKER, CONTROLLER, OTHER = UUID(int=5), UUID(int=6), UUID(int=8)
MEMBERS = {
    "worker-1": MemberReports(WORKER, "worker", None, {"taken": OTHER}),
    "worker-2": MemberReports(OTHER, "worker", "taken"),
    "controller-1": MemberReports(CONTROLLER, "controller"),
}
SEEN = {"observed_at": "2026-01-02T03:04:05Z", "controller": {"ping": "UP"}, "nodes": {}}
# Everything in a record by which the runner goes, as this and other parts of it write.
STEERING = (
    *("leave", "claimed_by", "lease_expires_at", "fence", "operation_id", "repair", "change", "stopped", "attempt"),
    *("next_attempt_at", "wish_refused", "started_by", "superseded_by", "last_adapter_error", "role", "phase"),
    *(host_keys.PINNED, host_keys.CHANGED, "jobs", "node_state", "last_runtime_observed_at", "cut"),
)


def report(host: str, action: str = "member_report", **fields: Any) -> dict[str, Any]:
    data = {"host": host, "task": "Report", "task_action": action, "res": {"member_report": fields}}
    return {"event": "runner_on_ok", "event_data": data}


def snapshot_of(created: str = "2026-01-02T03:04:06+00:00", **changes: Any) -> Snapshot | None:
    """What is taken of a controller's snapshot, with the time at which Ansible had it."""
    event = report("controller-1", phase="serving", snapshot={**SEEN, **changes}) | {"created": created}
    found: Snapshot | None = translate([event], MEMBERS).snapshot
    return found
