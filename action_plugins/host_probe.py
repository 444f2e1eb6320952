"""host_probe: look at a host, and check on this side what it answers before a role uses it.

The module runs on the host, so a compromised host answers what it likes. Roles load files and address nodes by what is
returned here: the name of the system comes from our own list, and a worker that has joined keeps its node's name.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):  # type: ignore[misc]
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        from runner.reported import read_probe

        super().run(tmp, task_vars)
        answered: dict[str, Any] = self._execute_module(task_vars=task_vars)
        if answered.get("failed") or answered.get("unreachable"):
            return answered
        try:
            found = read_probe(answered, self._task.args["supported"])
        except ValueError as error:
            return _refused(
                "probe_invalid",
                f"The host's answer about itself cannot be used: {error} is not of the expected form. See what"
                " /usr/bin/python3 is on the host, then retry.",
            )
        known = task_vars or {}
        name, recorded = found["hostname"], known.get("slurm_node_name")
        if recorded and recorded != name:
            return _refused(
                "hostname_changed",
                f"The host now calls itself {name}, and its worker joined as {recorded}. Give it its name back; or"
                " remove the worker, then add it again.",
            )
        holder = known.get("slurm_nodes_on_record", {}).get(name)
        if known.get("gpuaas_component_key") == "worker" and holder not in (None, known.get("gpuaas_member_id")):
            return _refused(
                "hostname_taken",
                f"The host is called {name}, and member {holder} has the node of that name. Rename the host, or remove"
                " that worker first.",
            )
        return {"changed": False, **found}


def _refused(code: str, message: str) -> dict[str, Any]:
    error = {"code": code, "message": message, "class": "intervention"}
    return {"failed": True, "msg": message, "adapter_error": error}
