"""Rules of playbooks: the phase, the error or the nodes of a report, from results of modules.

Playbooks collect the results and select the hosts; the rules are here, typed and tested. A result of a worker may have
any type: an unexpected one gives an error about that worker and does not fail the task of another host.

An error has the form of member_report's option; None means no error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runner.slurm.node_rules import drain_holder
from runner.slurm.reports import NODE_NAME

Error = dict[str, str]

# Codes with which a worker may refuse to move. Any other code could make the runner act on a worker's word.
MOVE_CODES = frozenset(
    {
        "no_way_back",
        "nothing_to_return_to",
        "rollback_across_series",
        "slurm_not_installed",
        "version_invalid",
        "version_is_older",
        "version_not_offered",
        "version_outside_window",
    }
)
# Verdicts of slurm_nodes after which a worker leaves.
MAY_LEAVE = ("deletable", "deleted", "absent")


def controller_phase(snapshot: Mapping[str, Any], otherwise: str = "controller") -> str:
    return "serving" if snapshot["controller"]["ping"] == "UP" else otherwise


def leftover_drains(names: Iterable[str], nodes: Mapping[str, Mapping[str, Any]] | None) -> list[str]:
    """The nodes that an operation drained: an interrupted removal leaves its drain on the node.

    A drain that a person set stays, also one that a person set with our playbook.
    """
    seen = nodes or {}
    return [
        name
        for name in names
        if name in seen and drain_holder(seen[name]["flags"], seen[name]["reason"], seen[name].get("reason_by")) == "us"
    ]


def move_refusal(plans: Mapping[str, Mapping[str, Any]], target: str) -> Error | None:
    """Why no host may move: a worker refuses, or would move to another version.

    `plans` are the answers of the workers, by host. A worker that could not be reached is left out.
    """
    reached = {host: plan for host, plan in plans.items() if "unreachable" not in plan}
    for host, plan in reached.items():
        if plan.get("failed"):
            reported = plan.get("adapter_error")
            error = reported if isinstance(reported, Mapping) else {}
            code = error.get("code")
            allowed = isinstance(code, str) and code in MOVE_CODES
            why = error.get("message", plan.get("msg")) or "it cannot move and gave no reason."
            return _error(str(code) if allowed else "worker_cannot_move", f"{host}: {why}", "intervention")
    for host, plan in reached.items():
        if "target" in plan and plan["target"] != target:
            message = (
                f"{host}: it would move to another version than its controller, which moves to {target}. Give all hosts"
                " the same package sources, then retry."
            )
            return _error("version_not_offered", message, "intervention")
    return None


def drain_report(done: Mapping[str, Any] | None, name: str | None) -> dict[str, Any]:
    """A worker's phase, detail and error from its controller's answer. `done` is None if the controller gave none.

    Only a node that slurm_nodes reports as drained is drained; a node that the controller does not show is not.
    """
    answer: Mapping[str, Any] = done or {}
    seen = (answer.get("drains") or {}).get(name, {})
    node = ((answer.get("snapshot") or {}).get("nodes") or {}).get(name)
    detail = {
        "jobs_remaining": len(node["jobs"]) if node else None,
        "drain_reason": seen.get("reason"),
        "drain_held_by": seen.get("held_by", "none"),
    }
    message = "The controller did not report whether the node is drained. The adapter retries."
    error = None if "nodes" in answer else _error("state_unknown", message, "retryable")
    return {"phase": "drained" if seen.get("is_drained") else "draining", "detail": detail, "error": error}


def leave_refusal(verdicts: Mapping[str, Mapping[str, Any]] | None, name: str | None) -> Error | None:
    """Why a worker is kept; None if its node can be deleted, is deleted or never existed.

    `verdicts` is None if the controller gave none; `name` is None for a worker that never had a node.
    """
    if verdicts is not None and name is None:
        return None
    verdict = (verdicts or {}).get(name or "", {})
    if verdict.get("did") in MAY_LEAVE:
        return None
    unknown = "The controller did not report whether the node is in use. The adapter retries."
    return _error(verdict.get("code") or "state_unknown", verdict.get("reason") or unknown, "retryable")


def stop_refusal(snapshot: Mapping[str, Any]) -> Error | None:
    """Running jobs prevent a stop; so do unknown jobs, unless slurmctld is stopped already."""
    from runner.slurm.readiness import running_jobs
    from runner.slurm.snapshot import read_snapshot

    jobs = running_jobs(read_snapshot(_plain(snapshot)))
    if jobs:
        named = ", ".join(job.address for job in jobs)
        message = f"Jobs are running: {named}. Close the cluster with playbooks/quiesce.yml and wait for them."
        return _error("jobs_running", message, "retryable")
    if jobs is None and snapshot["controller"]["slurmctld"] != "inactive":
        message = (
            "slurmctld runs but does not answer, so its jobs are unknown. Read `journalctl -u slurmctld`, then retry."
        )
        return _error("slurm_silent", message, "retryable")
    return None


def node_of_host(looked: Mapping[str, Any], member: str, on_record: Mapping[str, str]) -> str | None:
    """The name of a host's node by its ledger; None if it never ran slurmd, or if another member has the name.

    With the name of another member, that member's node would be drained and deleted.
    """
    name = looked.get("hostname")
    if "slurmd" not in (looked.get("units_noted") or []) or not isinstance(name, str) or not NODE_NAME.fullmatch(name):
        return None
    return name if on_record.get(name, member) == member else None


def _plain(value: Any) -> Any:
    """Plain containers: pydantic does not read the values of Ansible's own ones."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _error(code: str, message: str, error_class: str) -> Error:
    return {"code": code, "message": message, "class": error_class}


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        rules: tuple[Callable[..., Any], ...] = (
            controller_phase,
            leftover_drains,
            move_refusal,
            drain_report,
            leave_refusal,
            stop_refusal,
            node_of_host,
        )
        return {rule.__name__: rule for rule in rules}
