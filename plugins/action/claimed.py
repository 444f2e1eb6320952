"""Adds the member's claim to every call of a module that changes a host.

The module checks the claim on the host (module_utils/host/claim.py). The plugin adds it, so no task can forget it, and
it costs no round trip. The action plugin of each such module is a symbolic link to this file.
"""

from __future__ import annotations

from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action.normal import ActionModule as Normal

DOCUMENTATION = r"""
name: claimed
short_description: Run a module with the claim that the inventory gives its member
description:
  - Not called by name. The action plugin of each module that changes a host is a link to it.
  - Reads O(gpuaas_app_instance_id), O(gpuaas_member_id), O(gpuaas_fence), O(gpuaas_first_play),
    O(gpuaas_host_touched) and O(gpuaas_unfenced). Without them the call has no claim, as in a role test.
author: [gpuaas-slurm]
"""

Variables = dict[str, Any]


VARIABLES = {
    "gpuaas_app_instance_id": "instance",
    "gpuaas_member_id": "member",
    "gpuaas_fence": "number",
    "gpuaas_first_play": "first",
    "gpuaas_host_touched": "touched",
    "gpuaas_unfenced": "unfenced",
}
FLAGS = ("first", "touched", "unfenced")


class ActionModule(Normal):  # type: ignore[misc]
    """The normal action with one more argument."""

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> dict[str, Any]:
        given = {name: self._templar.template(value) for name, value in (task_vars or {}).items() if name in VARIABLES}
        self._task.args = {**self._task.args, "claim": claim_of(given)}
        return dict(super().run(tmp, task_vars))


def claim_of(variables: Variables) -> dict[str, Any]:
    """The module's `claim` argument, from the variables of the inventory and of the command line."""
    claim = {field: variables[name] for name, field in VARIABLES.items() if variables.get(name) is not None}
    return {field: boolean(value, strict=False) if field in FLAGS else value for field, value in claim.items()}
