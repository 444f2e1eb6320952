#!/usr/bin/python3
"""Set the states of partitions on their controller, and check them."""

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
short_description: Set the states of partitions
description:
  - Runs on the controller. In a partition that is DOWN pending jobs wait and running jobs continue.
  - A restart of slurmctld resets the states to those in slurm.conf.
  - Fails, and assumes nothing, if Slurm does not answer or does not change a state.
options:
  states: {type: dict, default: {}, description: "Partition to state, one of UP, DOWN, DRAIN and INACTIVE."}
  every: {type: str, choices: [UP, DOWN], description: The state of all partitions.}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
before: {type: dict, returned: success, description: State of each partition as it was found.}
partitions: {type: dict, returned: success, description: State of each partition as it is now.}
changes: {type: list, returned: success, description: Partitions whose state was changed.}
"""


def read_states() -> dict[str, str]:
    states = parse_partitions(ask("scontrol", "--all", "--oneliner", "show", "partitions"))
    if states is None:
        raise AdapterError(
            "slurm_silent",
            "slurmctld does not answer on the controller, so its partitions are unknown. The adapter retries; if the"
            " error stays, read `journalctl -u slurmctld` there.",
            RETRYABLE,
        )
    return states


def set_states(states: dict[str, str], every: str | None, dry: bool) -> dict[str, Any]:
    before = read_states()
    changes = to_change(dict.fromkeys(before, every) if every else states, before)
    if dry or not changes:
        return {"changes": list(changes), "before": before, "partitions": before}
    errors = [
        run("scontrol", "update", f"PartitionName={name}", f"State={state}")[2] for name, state in changes.items()
    ]
    after = read_states()
    left = to_change(changes, after)
    if left:
        raise AdapterError(
            "partition_unchanged",
            f"Partition {', '.join(left)} did not change: {'; '.join(filter(None, errors)) or 'Slurm gave no reason'}."
            " The adapter retries.",
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
        result = set_states(module.params["states"], module.params["every"], module.check_mode)
    module.exit_json(changed=bool(result["changes"]), **result)


if __name__ == "__main__":
    main()
