#!/usr/bin/python3
"""Bring the accounts, users and partition lists of a cluster that several projects share to the wanted state."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.errors import INTERVENTION, AdapterError
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.slurm.accounting_state import Wanted
from ansible.module_utils.slurm.projects import Commands, Projects

DOCUMENTATION = r"""
module: slurm_projects
short_description: Converge who may submit where on a cluster that several projects share
description:
  - Runs on the controller, while slurmctld and slurmdbd serve, after the Unix users were created there. It compares
    what Slurm shows with what is wanted, and changes the difference in a few calls. No daemon is restarted.
  - Order is close, create, prove, open. An account is created closed. Before anything opens, slurmdbd and slurmctld
    itself must show that all others are closed; afterwards they must show what is wanted.
  - An entry made by hand that admits a user who is not allowed is closed and reported. Running jobs go on. Other
    entries are listed and left.
  - Fails, and opens nothing more, if Slurm does not answer, or does not show what was changed.
options:
  owner: {type: str, required: true, description: "Owner in the ledger, as component/role."}
  cluster: {type: str, required: true, description: The cluster's name.}
  tenant: {type: str, required: true, description: The account above those of the projects.}
  accounts:
    type: list
    elements: dict
    required: true
    description: >-
      An account for each project that is attached. An account that is not on the list is closed, and keeps its users.
    suboptions:
      name: {type: str, required: true, description: Its name.}
      project_id: {type: str, required: true, description: The project. An account of another project is refused.}
      open: {type: bool, default: false, description: Whether its users may submit.}
      users: {type: list, elements: str, default: [], description: Complete list of its users.}
      limits: {type: dict, default: {}, description: "Any of gpus, cpus, jobs and wall_minutes, as numbers."}
      memory: {type: str, default: "", description: Its users as text that is added to that of the QoS.}
  partitions: {type: dict, required: true, description: Partition to the accounts that it admits. Others admit none.}
  cancelled: {type: list, elements: str, default: [], description: Closed accounts whose jobs are cancelled.}
  only_close:
    type: bool
    default: false
    description: End once all is closed that has to be, and proven. Nothing is created and nothing opens.
  timeout: {type: float, default: 15, description: Seconds that slurmctld may take to follow its accounting.}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
changes: {type: list, returned: success, description: "Lines that were given to sacctmgr and scontrol."}
accounts: {type: dict, returned: success, description: "By account: open, present, users, users_with_jobs."}
partitions: {type: dict, returned: success, description: Accounts that each partition admits.}
closed_foreign: {type: list, returned: success, description: Entries made by hand that were closed.}
foreign: {type: list, returned: success, description: Other entries made by hand.}
refused: {type: list, returned: success, description: Accounts that belong to another project.}
unresolved: {type: list, returned: success, description: Users that the controller cannot resolve.}
missing_partitions: {type: list, returned: success, description: Partitions that slurmctld does not have.}
"""


def read_wanted(params: dict[str, Any]) -> Wanted:
    try:
        wanted = Wanted.read(params)
        closed = {one.name for one in wanted.accounts if not one.open}
        if wrong := sorted(set(params["cancelled"]) - closed):
            raise ValueError(f"jobs of {wrong[0]} are to be cancelled, which is not a closed account of the list")
    except ValueError as error:
        raise AdapterError(
            "projects_refused",
            f"The list of projects cannot be used: {error}. Nothing was changed. Correct the attachment, then retry.",
            INTERVENTION,
        ) from None
    return wanted


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "owner": {"type": "str", "required": True},
            "cluster": {"type": "str", "required": True},
            "tenant": {"type": "str", "required": True},
            "accounts": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "name": {"type": "str", "required": True},
                    "project_id": {"type": "str", "required": True},
                    "open": {"type": "bool", "default": False},
                    "users": {"type": "list", "elements": "str", "default": []},
                    "limits": {"type": "dict", "default": {}},
                    "memory": {"type": "str", "default": ""},
                },
            },
            "partitions": {"type": "dict", "required": True},
            "cancelled": {"type": "list", "elements": "str", "default": []},
            "only_close": {"type": "bool", "default": False},
            "timeout": {"type": "float", "default": 15},
        },
        supports_check_mode=True,
    )
    params = module.params
    with host_lock(module, "setting up projects"):
        wanted = read_wanted(params)
        more = {name: params[name] for name in ("cancelled", "only_close")}
        run = Projects(Commands(), wanted, params["owner"], params["timeout"], **more)
        result = run.converge(module.check_mode)
    module.exit_json(changed=bool(result["changes"]), **result)


if __name__ == "__main__":
    main()
