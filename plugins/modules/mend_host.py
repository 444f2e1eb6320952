#!/usr/bin/python3
"""Finish an interrupted package run on a host, and start units that should run."""

from __future__ import annotations

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.errors import REPAIRABLE, AdapterError
from ansible.module_utils.host.facts import short_hostname
from ansible.module_utils.host.ledger import LEDGER, Document, read
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.host.packages import finish_interrupted_install, install_interrupted, restore_policy
from ansible.module_utils.host.restore.entries import of_kind
from ansible.module_utils.host.units import journal, request, show, state_of

DOCUMENTATION = r"""
module: mend_host
short_description: Repair a member's host without changing its configuration
description:
  - Finishes an interrupted package run and starts the member's units that are enabled but do not run.
  - Does not restart running units, so it is safe on a healthy member.
options:
  owner: {type: str, required: true, description: The member's component, the first part of its owners.}
  timeout: {type: float, default: 30, description: Seconds a unit may take to start.}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
changes: {type: list, returned: always, description: "What was done, by name."}
hostname: {type: str, returned: always, description: Short name of the host.}
found: {type: list, returned: always, description: "What was found, in sentences."}
units: {type: dict, returned: always, description: ActiveState of each of the member's units.}
"""

POLL_SECONDS = 0.1


def units_of(component: str) -> list[str]:
    entries = (read(LEDGER) or Document()).entries
    mine = {k: e for k, e in entries.items() if any(o.startswith(f"{component}/") for o in e["owners"])}
    # slurmd needs munge.
    return sorted(of_kind(mine, "unit"), key=lambda name: (name != "munge", name))


def mend(component: str, seconds: float, dry: bool) -> dict[str, Any]:
    found: list[str] = []
    changes: list[str] = []
    if install_interrupted():
        found.append("A package run was interrupted.")
        changes.append("interrupted package run finished")
        if not dry:
            restore_policy()
            finish_interrupted_install()
    names = units_of(component)
    if not names:
        found.append("The host has nothing of this member.")
    for name, state in sorted(show(names).items(), key=lambda item: names.index(item[0])):
        if state.get("ActiveState") == "active":
            continue
        if state.get("UnitFileState") not in ("enabled", "enabled-runtime"):
            found.append(
                f"{name} is disabled: a removal of the worker was under way. Remove the worker, or add it again."
            )
            continue
        found.append(f"{name} was {state.get('ActiveState')}.")
        changes.append(f"unit {name} started")
        if not dry:
            _start(name, seconds)
    return {
        "hostname": short_hostname(),
        "found": found,
        "changes": changes,
        "units": {name: state.get("ActiveState", "unknown") for name, state in show(names).items()},
    }


def _start(name: str, seconds: float) -> None:
    since = time.time()
    request("start", name)
    deadline = time.monotonic() + seconds
    while state_of(name).get("ActiveState") != "active":
        if time.monotonic() > deadline:
            raise AdapterError(
                "unit_failed",
                f"{name}.service does not start. Its last log lines: {' | '.join(journal(name, since))}. Correct the"
                " cause, then run the play again.",
                REPAIRABLE,
            )
        time.sleep(POLL_SECONDS)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "owner": {"type": "str", "required": True},
            "timeout": {"type": "float", "default": 30},
        },
        supports_check_mode=True,
    )
    with host_lock(module, "repairing the host", begin=False):
        result = mend(module.params["owner"], module.params["timeout"], module.check_mode)
    module.exit_json(changed=bool(result["changes"]), **result)


if __name__ == "__main__":
    main()
