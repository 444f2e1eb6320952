"""member_report: how a role tells what it is doing, as data.

The runner's translate step reads what this plugin returns and nothing else of a play but its outcomes. It
runs beside Ansible, without a connection, so that a report costs no round trip.
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
  phase: {type: str, required: true, description: What the member is doing now.}
  detail: {type: dict, description: Facts for the member's adapter_detail.}
  snapshot: {type: dict, description: What slurm_snapshot saw, from the controller only.}
  error: {type: dict, description: "code, message and class; makes the task fail."}
  outcome:
    type: dict
    description: >-
      The registered result of a module that did not succeed; this task then fails with its adapter error. It lets
      a task that handles secrets be hidden by no_log and its reason be told all the same.
  readiness:
    type: dict
    description: >-
      Given in the last report of a play that brings a member up. The runner judges readiness when the play is over, and
      this changes nothing for it. By hand nobody would, so here the same function judges, and a member that does not
      serve is an error.
    suboptions:
      node: {type: dict, description: A worker's node as the controller shows it; not given if it shows none.}
      may_be_held: {type: bool, default: false, description: Whether a drained worker counts as one that serves.}
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
        error = arguments["error"] or _reason(arguments["outcome"])
        if arguments["readiness"] is not None and RUN_BY_RUNNER not in os.environ:
            error = error or _not_ready(arguments)
        if error:
            result["failed"] = True
            result["adapter_error"] = {field: str(error.get(field, "")) for field in ERROR_FIELDS} | {
                field: str(error[field]) for field in OPTIONAL if error.get(field)
            }
            result["msg"] = result["adapter_error"]["message"]
        return result


def _reason(outcome: dict[str, Any] | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    if isinstance(outcome.get("adapter_error"), dict):
        return dict(outcome["adapter_error"])
    said = outcome.get("msg", "A module ended without a reason")
    return {
        "code": "module_failed",
        "message": f"{said}. Run the play by hand with -vvv to see why.",
        "class": "intervention",
    }


def _not_ready(arguments: dict[str, Any]) -> dict[str, Any] | None:
    from runner.slurm.readiness import controller_problem, worker_problem
    from runner.slurm.snapshot import read_snapshot

    detail, readiness = arguments["detail"], arguments["readiness"]
    name = detail.get("worker_hostname")
    if name is None:
        problem = controller_problem(read_snapshot(arguments["snapshot"]))
    else:
        nodes = {name: readiness["node"]} if readiness["node"] else {}
        seen = read_snapshot({"observed_at": datetime.now(UTC), "controller": {}, "nodes": nodes})
        problem = worker_problem(seen, name, detail, may_be_held=readiness["may_be_held"])
    if problem is None:
        return None
    code, message = problem
    return {"code": code, "message": f"{message}. Put that right, then run the play again.", "class": "retryable"}
