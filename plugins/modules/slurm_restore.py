#!/usr/bin/python3
"""List a controller's backups, check one, or restore one: accounting database and slurmctld's state together."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.host.package_source import SOURCE_ARGUMENTS, package_source
from ansible.module_utils.slurm import backups as slurm_backups
from ansible.module_utils.slurm.kept import Kept
from ansible.module_utils.slurm.move import Mover
from ansible.module_utils.slurm.restore import Restore

DOCUMENTATION = r"""
module: slurm_restore
short_description: Restore Slurm's accounting database and slurmctld's state from a backup
description:
  - C(list) and C(check) change nothing. C(check) reads the whole backup, compares its cluster name with the
    controller's, and checks that the version of Slurm it needs can be installed.
  - C(restore) checks, stops slurmctld and slurmdbd, backs up the present database and state, installs the former
    packages if the backup is of another series, loads the database as slurmdbd's own user, replaces the state, starts
    both and watches them. Other databases of the server are not touched.
options:
  owner: {type: str, required: true, description: "Owner in the ledger, as component/role."}
  source: {type: dict, description: "Where Slurm's packages come from, as in converge_host."}
  source_login: {type: str, description: "Login of the source, as user:password."}
  mode: {type: str, required: true, choices: [list, check, restore], description: What to do.}
  backup: {type: str, default: "", description: "Its name, or its path."}
  database: {type: str, required: true, description: The accounting database.}
  state: {type: path, default: /var/lib/slurm/slurmctld, description: StateSaveLocation.}
  accept_unlabelled: {type: bool, default: false, description: Accept a backup without a manifest.}
  live_timeout: {type: float, default: 90, description: Seconds until slurmctld must serve.}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
backups: {type: list, description: "Each with name, time, change, version and cluster.", returned: by list}
packages: {type: str, description: "The version to install first, or empty.", returned: by check}
backup: {type: str, description: Name of the restored backup., returned: by restore}
target: {type: str, description: "The version that was installed, if one was.", returned: by restore}
aside: {type: str, description: The backup of the former database and state., returned: by restore}
"""

UNITS: list[dict[str, Any]] = [
    {"name": "slurmdbd", "enabled": False, "watches": [], "ready_port": 6819, "timeout": 300},
    {"name": "slurmctld", "enabled": False, "watches": [], "ready_port": 6817, "timeout": 90},
]


def run_mode(params: dict[str, Any]) -> dict[str, Any]:
    kept = Kept(params["owner"])
    if params["mode"] == "list":
        return {"backups": slurm_backups.list_backups(kept.directory / "backups")}
    mover = Mover(kept, Ledger(params["owner"]))
    restore = Restore(
        kept, mover, params["backup"], params["database"], Path(params["state"]), params["accept_unlabelled"]
    )
    source = package_source(params["source"], params["source_login"]) if restore.packages else nullcontext()
    with source:
        return restore.check() if params["mode"] == "check" else restore.run(UNITS, params["live_timeout"])


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "owner": {"type": "str", "required": True},
            **SOURCE_ARGUMENTS,
            "mode": {"type": "str", "required": True, "choices": ["list", "check", "restore"]},
            "backup": {"type": "str", "default": ""},
            "database": {"type": "str", "required": True},
            "state": {"type": "path", "default": "/var/lib/slurm/slurmctld"},
            "accept_unlabelled": {"type": "bool", "default": False},
            "live_timeout": {"type": "float", "default": 90},
        },
        supports_check_mode=False,
    )
    changes = module.params["mode"] == "restore"
    with host_lock(module, "restoring a backup", changes=changes):
        result = run_mode(module.params)
    module.exit_json(changed=changes, **result)


if __name__ == "__main__":
    main()
