"""host_probe: look at a host, and check on this side what it answers before a role uses it.

The module runs on the host, so a compromised host answers what it likes. Roles load files and address nodes by what is
returned here: the name of the system comes from our own list, and a worker that has joined keeps its node's name.

Hosts of one run are looked at side by side and each goes on by itself, so the first of two that have one name keeps it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ansible.constants as constants
from ansible.plugins.loader import action_loader

Claimed: Any = action_loader.get("claimed", class_only=True)


class ActionModule(Claimed):  # type: ignore[misc]
    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        from runner.slurm.reports import read_probe

        answered: dict[str, Any] = super().run(tmp, task_vars)
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
        other = first_in_run(name, known)
        if other:
            return _refused(
                "hostname_taken",
                f"The host is called {name}, and so is the machine of allocation {other}, which joins the same cluster"
                " in this run. Nothing was changed. Rename one of them, then ask again.",
            )
        return {"changed": False, **found}


def first_in_run(name: str, known: dict[str, Any], directory: Path | None = None) -> str | None:
    """Another machine that came first with that name in this run. A link is made whole or not at all."""
    machine = known.get("gpuaas_allocation_id")
    if not machine:
        return None  # a role by itself
    scope = f"{known.get('gpuaas_app_instance_id')} {name}"
    place = Path(directory or constants.DEFAULT_LOCAL_TMP) / f"name-{hashlib.sha256(scope.encode()).hexdigest()}"
    try:
        place.symlink_to(str(machine))
    except FileExistsError:
        first = str(place.readlink())
        return first if first != machine else None
    return None


def _refused(code: str, message: str) -> dict[str, Any]:
    error = {"code": code, "message": message, "class": "intervention"}
    return {"failed": True, "msg": message, "adapter_error": error}
