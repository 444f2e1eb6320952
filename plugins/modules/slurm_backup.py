#!/usr/bin/python3
"""Back up the accounting database and slurmctld's state on the controller, readable by root only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.slurm.backups import COMPLETE, check_room, prune, take_backup
from ansible.module_utils.slurm.kept import Kept

DOCUMENTATION = r"""
module: slurm_backup
short_description: Back up Slurm's accounting database and slurmctld's state
description:
  - Made while both run. The dump is one transaction; slurmctld replaces each state file in one step.
  - One backup for each name, so a run that continues another uses the backup from before its start.
  - Its manifest has the cluster, the time, the change and the versions of Slurm. slurm_restore reads it.
options:
  owner: {type: str, required: true, description: "Owner in the ledger, as component/role."}
  name: {type: str, required: true, description: Name of the change.}
  database: {type: str, required: true, description: The accounting database.}
  target: {type: str, default: "", description: "Target version of the change, for the manifest."}
  state: {type: path, default: /var/lib/slurm/slurmctld, description: StateSaveLocation.}
  keep: {type: int, default: 2, description: How many to keep.}
  timeout: {type: float, default: 600, description: Seconds it may take.}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
path: {type: str, description: Path of the backup., returned: success}
"""


def back_up(params: dict[str, Any]) -> tuple[bool, Path]:
    kept = Kept(params["owner"])
    kept.make_room()
    room = kept.directory / "backups"
    room.mkdir(mode=0o700, exist_ok=True)
    target = room / params["name"]
    if (target / COMPLETE).exists():
        return False, target
    check_room(room, Path(params["state"]), params["database"])
    take_backup(
        target,
        params["database"],
        Path(params["state"]),
        params["timeout"],
        change=params["name"],
        target=params["target"],
    )
    prune(room, params["keep"], {target.name})
    return True, target


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "owner": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "database": {"type": "str", "required": True},
            "target": {"type": "str", "default": ""},
            "state": {"type": "path", "default": "/var/lib/slurm/slurmctld"},
            "keep": {"type": "int", "default": 2},
            "timeout": {"type": "float", "default": 600},
        },
        supports_check_mode=False,
    )
    with host_lock(module, "taking a backup"):
        changed, path = back_up(module.params)
    module.exit_json(changed=changed, path=str(path))


if __name__ == "__main__":
    main()
