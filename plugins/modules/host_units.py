#!/usr/bin/python3
"""Stop a member's services in order, or restart those that started before a given time."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.database import SERVER, foreign_databases
from ansible.module_utils.host.errors import INTERVENTION, AdapterError
from ansible.module_utils.host.facts import short_hostname
from ansible.module_utils.host.ledger import LEDGER, Document, read
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.host.restore.entries import of_kind
from ansible.module_utils.host.unit_actions import found_running, restart_older, stop_in_order
from ansible.module_utils.host.units import UNIT_OPTIONS, show, started_monotonic

DOCUMENTATION = r"""
module: host_units
short_description: Stop units in order, or restart those that started before a given time
description:
  - Does what the present state still needs, so it may be run again at any point.
  - A unit that ran on the host before the cluster, and a MariaDB with databases of others, are not stopped; C(left)
    has them.
options:
  stop:
    type: list
    elements: str
    default: []
    description: Units to stop and disable, each after the one before has stopped.
  restart:
    type: list
    elements: dict
    default: []
    description: Units to restart, in this order.
    suboptions:
      name: {type: str, required: true, description: Without .service.}
      ready_port: {type: int, description: Up when it listens here.}
      ready_path: {type: path, description: Up when this exists.}
      timeout: {type: float, default: 45, description: Seconds to come up.}
  since:
    type: str
    description: A time by this host's clock, in ISO 8601. A unit that started later is not restarted.
  younger_than:
    type: float
    description: A unit that started less than so many seconds ago is not restarted. For hosts with another clock.
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
changes: {type: list, returned: always, description: "What changed, by name."}
hostname: {type: str, returned: always, description: Short name of the host.}
units: {type: dict, returned: always, description: ActiveState of each unit.}
left: {type: dict, returned: always, description: "Units that were not stopped, and why."}
started: {type: dict, returned: always, description: "When each unit's process started, by this host's clock."}
elapsed: {type: float, returned: always, description: "Seconds since O(since) at the end, null without one."}
"""


def others() -> dict[str, str]:
    """Units that belong to others, with the reason."""
    entries = (read(LEDGER) or Document()).entries
    used = foreign_databases(of_kind(entries, "database"))
    found = {SERVER: f"it holds databases of others: {', '.join(used[:5])}"} if used else {}
    return found | found_running(entries)


def read_time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise AdapterError(
            "moment_invalid", f"{text!r} is not a time in ISO 8601. Correct it, then retry.", INTERVENTION
        ) from None


def run(params: dict[str, Any], dry: bool) -> dict[str, Any]:
    since = read_time(params["since"]) if params["since"] else None
    seconds = params["younger_than"] if since is None else time.time() - since
    changes, left = stop_in_order(params["stop"], others(), dry)
    changes += restart_older(params["restart"], seconds, dry)
    states = show([*params["stop"], *(unit["name"] for unit in params["restart"])])
    boot_time = time.time() - time.monotonic()
    return {
        "changes": changes,
        "left": left,
        "hostname": short_hostname(),
        "units": {name: state.get("ActiveState", "unknown") for name, state in states.items()},
        "started": {name: boot_time + at for name, state in states.items() if (at := started_monotonic(state))},
        "elapsed": None if since is None else time.time() - since,
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "stop": {"type": "list", "elements": "str", "default": []},
            "restart": {"type": "list", "elements": "dict", "default": [], "options": UNIT_OPTIONS},
            "since": {"type": "str"},
            "younger_than": {"type": "float"},
        },
        supports_check_mode=True,
    )
    with host_lock(module, "stopping or restarting units", begin=False):
        result = run(module.params, module.check_mode)
    module.exit_json(changed=bool(result["changes"]), **result)


if __name__ == "__main__":
    main()
