"""host_probe: looks at a host, and refuses a name that another machine of the cluster has.

Hosts of one run are looked at side by side and each goes on by itself, so the first of two that have one name keeps it.
Names are kept in the run's own temporary directory; the runner adds those of members on record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.plugins.loader import action_loader

Claimed: Any = action_loader.get("claimed", class_only=True)


class ActionModule(Claimed):  # type: ignore[misc]
    """The claimed action, and then the name."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        known = task_vars or {}
        name = ((result.get("ansible_facts") or {}).get("probed_host") or {}).get("hostname")
        if result.get("failed") or not isinstance(name, str) or not known.get("gpuaas_allocation_id"):
            return result
        machine, instance = str(known["gpuaas_allocation_id"]), str(known.get("gpuaas_app_instance_id"))
        other = on_record(name, machine, known.get("gpuaas_names_taken") or {}) or in_run(
            name, machine, instance, Path(constants.DEFAULT_LOCAL_TMP)
        )
        return taken(name, other) if other else result


def on_record(name: str, machine: str, names: Mapping[str, list[str]]) -> str | None:
    """Another machine on which a member of that name is, as the runner's records have it."""
    return next((other for other in names.get(name, []) if other != machine), None)


def in_run(name: str, machine: str, instance: str, directory: Path) -> str | None:
    """Another machine that came first with that name in this run. A link is made whole or not at all."""
    link = directory / f"name-{hashlib.sha256(f'{instance} {name}'.encode()).hexdigest()}"
    try:
        link.symlink_to(machine)
    except FileExistsError:
        first = str(link.readlink())
        return first if first != machine else None
    return None


def taken(name: str, other: str) -> dict[str, Any]:
    message = (
        f"The host is called {name}, and so is the machine of allocation {other}, which is in the same cluster. Nothing"
        " was changed. Rename one of them, or remove the other one first."
    )
    error = {"code": "hostname_taken", "message": message, "class": "intervention"}
    return {"failed": True, "changed": False, "msg": message, "adapter_error": error}
