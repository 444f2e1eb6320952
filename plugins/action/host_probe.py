"""host_probe: read the facts of a host, and check its answer on the Ansible side before a role uses it.

The module runs on the host, so a compromised host can answer anything. Roles load files and address nodes by these
values: the name of the system comes from a list of ours, and a worker that has joined keeps its node's name.

It has one argument more than the module: `cluster_nodes`, the nodes of the cluster that the host joins, which stay on
the Ansible side.

Hosts of one run are checked in parallel, so the first of two hosts with the same name keeps it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ansible.constants as constants
from ansible.plugins.loader import action_loader

Claimed: Any = action_loader.get("claimed", class_only=True)


class ActionModule(Claimed):  # type: ignore[misc]
    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        from runner.slurm.reports import read_probe

        nodes = self._task.args.pop("cluster_nodes", {})
        answer: dict[str, Any] = super().run(tmp, task_vars)
        if answer.get("failed") or answer.get("unreachable"):
            return answer
        try:
            found = read_probe(answer, self._task.args["supported"])
        except ValueError as error:
            return _refused(
                "probe_invalid",
                f"The host's answer about itself is not valid: {error} does not have the expected form. Check"
                " /usr/bin/python3 on the host, then retry.",
            )
        variables = task_vars or {}
        name, recorded = found["hostname"], variables.get("slurm_node_name")
        if recorded and recorded != name:
            return _refused(
                "hostname_changed",
                f"The host's name is {name}, but its worker joined as {recorded}. Restore the name, or remove the"
                " worker and add it again.",
            )
        holder, member = variables.get("slurm_nodes_on_record", {}).get(name), variables.get("gpuaas_member_id")
        if variables.get("gpuaas_component_key") == "worker" and holder not in (None, member):
            return _refused(
                "hostname_taken",
                f"The host is called {name}, but member {holder} has the node of that name. Rename the host, or remove"
                " that worker first.",
            )
        own = [name, self._templar.template(variables.get("ansible_host")), *found["addresses"]]
        address = other_machine(nodes, name, own)
        if address:
            return _refused(
                "hostname_taken",
                f"The host is called {name}, but the cluster already has a node of that name at {address}. Rename the"
                " host, or remove that worker first.",
            )
        other = first_in_run(name, variables)
        if other:
            return _refused(
                "hostname_taken",
                f"The host is called {name}, like the machine of allocation {other}, which joins the cluster in this"
                " run. Nothing was changed. Rename one of them, then retry.",
            )
        return {"changed": False, **found}


def other_machine(nodes: Mapping[str, Any], name: str, own: Collection[object]) -> str | None:
    """The address of another machine that has the node of this name. An existing node may be the same host's."""
    if name not in nodes:
        return None
    address = nodes[name].get("address")
    return None if address and address in own else str(address or "an unknown address")


def first_in_run(name: str, variables: dict[str, Any], directory: Path | None = None) -> str | None:
    """The allocation of another machine that came first with this name in this run. Creating a link is atomic."""
    machine = variables.get("gpuaas_allocation_id")
    if not machine:
        return None  # a role without a runner
    scope = f"{variables.get('gpuaas_app_instance_id')} {name}"
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
