"""Rules of playbooks: why a host or a cluster is refused, as an error of member_report; None means no error.

Playbooks collect the results of modules; the rules are here, typed and tested. A result of a worker may have any type:
an unexpected one gives an error about that worker and does not fail the task of another host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Error = dict[str, str]

# Codes with which a worker may refuse to move. With any other code a worker could steer the runner.
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
# Both are written to SQL or to a configuration file, so they must not have characters with a meaning there.
PASSWORD = re.compile(r"[A-Za-z0-9_-]{16,128}")
JWT_KEY = re.compile(r"[A-Za-z0-9+/]{43,}={0,2}")


def join_refusal(look: Mapping[str, Any], host: str, controller: str) -> Error | None:
    """A worker joins only a controller that answers, with known conditions, nodes and version.

    `look` is the result of look_before_join.
    """
    snapshot = look.get("snapshot") or {}
    seen = snapshot.get("controller") or {}
    answers = seen.get("ping") == "UP" and seen.get("slurm_version") is not None and snapshot.get("nodes") is not None
    if answers and "join_terms" in look:
        return None
    message = (
        "The worker's controller is not part of this run or does not answer, so the worker cannot join. Check the"
        f" controller; by hand, run the play with --limit '{host},{controller or 'controller'}'."
    )
    return _error("controller_silent", message, "retryable")


def secret_refusal(password: str, jwt_key: str) -> Error | None:
    """The secrets of accounting. The message names one, and shows none."""
    if PASSWORD.fullmatch(password) and JWT_KEY.fullmatch(jwt_key):
        return None
    name = "JWT key" if PASSWORD.fullmatch(password) else "database password"
    message = (
        f"The {name} of this instance is too short or has invalid characters. Replace it in the vault, then retry."
    )
    return _error("secret_malformed", message, "intervention")


def follow_refusal(snapshot: Mapping[str, Any] | None) -> Error | None:
    """A worker follows only a configuration that its controller reports."""
    if ((snapshot or {}).get("controller") or {}).get("config_version"):
        return None
    message = "The controller did not report its configuration, so nothing was changed. The adapter retries."
    return _error("controller_silent", message, "retryable")


def move_refusal(workers: Iterable[Mapping[str, Any]], instance: str, target: str) -> Error | None:
    """Why no host may move: a worker of the instance refuses, or would move to another version.

    `workers` have their answers in `move_plan`. A worker without one, and one that could not be reached, is left out.
    """
    plans = {
        worker["inventory_hostname"]: worker["move_plan"]
        for worker in workers
        if worker.get("gpuaas_app_instance_id") == instance and worker.get("move_plan") is not None
    }
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


def clean_refusal(looked: Mapping[str, Any], wanted: str) -> Error | None:
    """A host is cleaned of the instance in its mark only; `none` stands for a ledger without an instance."""
    serves = looked["instance"]
    if (serves or "none") == wanted:
        return None
    message = (
        f"The host serves {f'instance {serves}' if serves else 'no instance'}, not {wanted}. Nothing was changed. Read"
        " /etc/gpuaas-slurm/owner.json there and give that instance, if it no longer exists on the platform."
    )
    return _error("host_in_use", message, "intervention")


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
            *(join_refusal, secret_refusal, follow_refusal, move_refusal),
            *(leave_refusal, clean_refusal, stop_refusal),
        )
        return {rule.__name__: rule for rule in rules}
