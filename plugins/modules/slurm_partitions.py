#!/usr/bin/python3
"""Open and close partitions on their controller, and see that they are."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.errors import RETRYABLE, AdapterError
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.slurm.commands import ask, run
from ansible.module_utils.slurm.partitions import parse_partitions, to_change

DOCUMENTATION = r"""
module: slurm_partitions
short_description: Have partitions in a state
description:
  - Runs on the controller. A partition that is DOWN keeps its waiting jobs waiting and lets the running ones run.
  - Slurm forgets these states when slurmctld restarts, and takes what slurm.conf says.
  - Fails, and assumes nothing, if Slurm does not answer or does not do it.
options:
  states: {type: dict, default: {}, description: "Partition to state, one of UP, DOWN, DRAIN and INACTIVE."}
  every: {type: str, choices: [UP, DOWN], description: The state that all of them shall have.}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
before: {type: dict, returned: success, description: State of each partition as it was found.}
partitions: {type: dict, returned: success, description: State of each partition as it is now.}
"""


def look() -> dict[str, str]:
    states = parse_partitions(ask("scontrol", "--all", "--oneliner", "show", "partitions"))
    if states is None:
        raise AdapterError(
            "slurm_silent",
            "slurmctld does not answer on the controller, so nothing is known about its partitions. Read"
            " `journalctl -u slurmctld` there if it lasts; it is tried again.",
            RETRYABLE,
        )
    return states


def have(states: dict[str, str], every: str | None, dry: bool) -> dict[str, Any]:
    before = look()
    changes = to_change(dict.fromkeys(before, every) if every else states, before)
    if dry or not changes:
        return {"changes": list(changes), "before": before, "partitions": before}
    said = [run("scontrol", "update", f"PartitionName={name}", f"State={state}")[2] for name, state in changes.items()]
    after = look()
    left = to_change(changes, after)
    if left:
        raise AdapterError(
            "partition_unchanged",
            f"Partition {', '.join(left)} is not as asked: {'; '.join(filter(None, said)) or 'Slurm gave no reason'}."
            " It is tried again.",
            RETRYABLE,
        )
    return {"changes": list(changes), "before": before, "partitions": after}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "states": {"type": "dict", "default": {}},
            "every": {"type": "str", "choices": ["UP", "DOWN"]},
        },
        supports_check_mode=True,
    )
    changes = bool(module.params["states"] or module.params["every"])
    with host_lock(module, "opening or closing partitions", changes=changes, begin=False):
        told = have(module.params["states"], module.params["every"], module.check_mode)
    module.exit_json(changed=bool(told["changes"]), **told)


if __name__ == "__main__":
    main()
