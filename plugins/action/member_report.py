"""member_report: a role reports its progress as data.

Of a play's events the runner reads only the results of this plugin and the outcome of tasks. The plugin runs on the
Ansible side without a connection, so a report costs no round trip.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from ansible.plugins.action import ActionBase

DOCUMENTATION = r"""
name: member_report
short_description: Emit a member's phase, detail, snapshot or error as data
options:
  phase: {type: str, required: true, description: The present phase of the member.}
  detail: {type: dict, description: Facts for the member's adapter_detail.}
  snapshot: {type: dict, description: The snapshot of slurm_snapshot; controllers only.}
  error: {type: dict, description: "code, message and class; makes the task fail."}
  outcome:
    type: dict
    description: >-
      The registered result of a module that failed; this task then fails with its adapter error. A task with secrets
      can so be hidden by no_log and its error still be reported.
  readiness:
    type: dict
    description: >-
      For the last report of a play that sets a member up. The runner checks readiness after the play and ignores this
      option. In a play by hand the same function checks here, and a member that does not serve is an error.
    suboptions:
      node: {type: dict, description: A worker's node as the controller shows it; not given if it shows none.}
      may_be_held: {type: bool, default: false, description: Whether a drained worker counts as ready.}
author: [gpuaas-slurm]
"""

ERROR_FIELDS = ("code", "message", "class")
OPTIONAL = ("instance",)
# Set by the runner for its own plays.
RUN_BY_RUNNER = "GPUAAS_RUN_BY_RUNNER"


class ActionModule(ActionBase):  # type: ignore[misc]
    """Turns its arguments into a result; no host is touched."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        _, arguments = self.validate_argument_spec(
            argument_spec={
                "phase": {"type": "str", "required": True},
                "detail": {"type": "dict"},
                "snapshot": {"type": "dict"},
                "error": {"type": "dict"},
                "outcome": {"type": "dict"},
                "readiness": {
                    "type": "dict",
                    "options": {"node": {"type": "dict"}, "may_be_held": {"type": "bool", "default": False}},
                },
            }
        )
        result: dict[str, Any] = {
            "changed": False,
            "member_report": {key: arguments[key] for key in ("phase", "detail", "snapshot")},
        }
        error = arguments["error"] or _module_error(arguments["outcome"])
        if arguments["readiness"] is not None and RUN_BY_RUNNER not in os.environ:
            error = error or _not_ready(arguments)
        if error:
            result["failed"] = True
            result["adapter_error"] = {field: str(error.get(field, "")) for field in ERROR_FIELDS} | {
                field: str(error[field]) for field in OPTIONAL if error.get(field)
            }
            result["msg"] = result["adapter_error"]["message"]
        return result


def _module_error(outcome: dict[str, Any] | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    if isinstance(outcome.get("adapter_error"), dict):
        return dict(outcome["adapter_error"])
    reason = outcome.get("msg", "A module failed without a reason")
    return {
        "code": "module_failed",
        "message": f"{reason}. Run the play by hand with -vvv for details.",
        "class": "intervention",
    }


def _not_ready(arguments: dict[str, Any]) -> dict[str, Any] | None:
    from runner.slurm.notes import WorkerNotes
    from runner.slurm.readiness import controller_problem, worker_problem
    from runner.slurm.snapshot import read_snapshot

    detail, readiness = arguments["detail"], arguments["readiness"]
    name = detail.get("worker_hostname")
    if name is None:
        problem = controller_problem(read_snapshot(arguments["snapshot"]))
    else:
        nodes = {name: readiness["node"]} if readiness["node"] else {}
        seen = read_snapshot({"observed_at": datetime.now(UTC), "controller": {}, "nodes": nodes})
        problem = worker_problem(seen, WorkerNotes.read(detail), may_be_held=readiness["may_be_held"])
    if problem is None:
        return None
    code, message = problem
    return {"code": code, "message": f"{message}. Correct the cause, then run the play again.", "class": "retryable"}
