#!/usr/bin/python3
"""Create a cluster, its accounts and their users in Slurm's accounting."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.claim import CLAIM_ARGUMENT
from ansible.module_utils.host.errors import REPAIRABLE, RETRYABLE, AdapterError, last_line
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.host.lock import host_lock
from ansible.module_utils.slurm.accounts import converge

DOCUMENTATION = r"""
module: slurm_accounting
short_description: Converge a cluster, accounts and associations of users in slurmdbd
description:
  - Runs on the controller once slurmdbd is up, and before slurmctld opens a partition, so that the first job of
    each user finds its association. It does not need the host's slurm.conf.
options:
  cluster: {type: str, required: true, description: The cluster's name.}
  account: {type: str, required: true, description: The account to submit under.}
  owner: {type: str, required: true, description: "Owner in the ledger, as component/role."}
  users: {type: list, elements: str, default: [], description: Unix users that may submit under it.}
  declared_users:
    type: list
    elements: dict
    description: >-
      Complete list of declared users with their accounts. A user of an earlier list that is not on this one can no
      longer submit. Without it no association is closed.
    suboptions:
      name: {type: str, required: true, description: A Unix user of the controller.}
      account: {type: str, required: true, description: Its default account.}
  timeout: {type: float, default: 30, description: Seconds that slurmdbd may take to answer.}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
changes: {type: list, returned: success, description: "What changed in slurmdbd, by name."}
"""

POLL_SECONDS = 0.1
CONFIG = "ClusterName={cluster}\nSlurmctldHost=localhost\nAccountingStorageType=accounting_storage/slurmdbd\n"
CONFIG += "AccountingStorageHost=127.0.0.1\n"


class Sacctmgr:
    """Calls sacctmgr with a configuration of its own."""

    def __init__(self, config: Path) -> None:
        self._environment = {**os.environ, "SLURM_CONF": str(config), "LC_ALL": "C"}

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (answer := self._run("show", "cluster", "format=cluster")).returncode != 0:
            if time.monotonic() > deadline:
                raise AdapterError(
                    "accounting_unreachable",
                    f"slurmdbd does not answer: {last_line(answer.stderr)}."
                    " Read `journalctl -u slurmdbd` on the controller.",
                    RETRYABLE,
                )
            time.sleep(POLL_SECONDS)

    def rows(self, *query: str) -> list[list[str]]:
        return [line.split("|") for line in self._checked("show", *query).splitlines()]

    def change(self, *arguments: str) -> None:
        self._checked("--immediate", *arguments)

    def _checked(self, *arguments: str) -> str:
        answer = self._run(*arguments)
        if answer.returncode != 0:
            raise AdapterError(
                "accounting_failed",
                f"`sacctmgr {' '.join(arguments)}` failed: {last_line(answer.stderr or answer.stdout)}."
                " Run it by hand on the controller to see why.",
                REPAIRABLE,
            )
        return answer.stdout

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sacctmgr", "--noheader", "--parsable2", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=self._environment,
        )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "cluster": {"type": "str", "required": True},
            "account": {"type": "str", "required": True},
            "owner": {"type": "str", "required": True},
            "users": {"type": "list", "elements": "str", "default": []},
            "declared_users": {
                "type": "list",
                "elements": "dict",
                "options": {"name": {"type": "str", "required": True}, "account": {"type": "str", "required": True}},
            },
            "timeout": {"type": "float", "default": 30},
        },
        supports_check_mode=True,
    )
    params = module.params
    with (
        host_lock(module, "setting up accounting"),
        tempfile.TemporaryDirectory(prefix="gpuaas-slurm-accounting.") as scratch,
    ):
        config = Path(scratch) / "slurm.conf"
        config.write_text(CONFIG.format(cluster=params["cluster"]))
        sacctmgr = Sacctmgr(config)
        sacctmgr.wait(params["timeout"])
        changes = converge(sacctmgr, params, Ledger(params["owner"]), module.check_mode)
    module.exit_json(changed=bool(changes), changes=changes)


if __name__ == "__main__":
    main()
