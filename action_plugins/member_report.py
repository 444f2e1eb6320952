"""member_report: how a role tells what it is doing, as data.

The runner's translate step reads what this plugin returns and nothing else of a play but its outcomes. It
runs beside Ansible, without a connection, so that a report costs no round trip.
"""

from __future__ import annotations

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
author: [gpuaas-slurm]
"""

ERROR_FIELDS = ("code", "message", "class")
OPTIONAL = ("instance",)


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
            }
        )
        result: dict[str, Any] = {
            "changed": False,
            "member_report": {key: arguments[key] for key in ("phase", "detail", "snapshot")},
        }
        error = arguments["error"] or _reason(arguments["outcome"])
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
    if outcome.get("adapter_error"):
        return dict(outcome["adapter_error"])
    said = outcome.get("msg", "A module ended without a reason")
    return {
        "code": "module_failed",
        "message": f"{said}. Run the play by hand with -vvv to see why.",
        "class": "intervention",
    }
