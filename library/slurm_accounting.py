#!/usr/bin/python3
"""A cluster, accounts and their users in Slurm's accounting, before anyone submits."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.adapter_error import INTERVENTION, REPAIRABLE, RETRYABLE, AdapterError
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.converge_ledger import Ledger

DOCUMENTATION = r"""
module: slurm_accounting
short_description: Have a cluster, accounts and associations for users in slurmdbd
description:
  - Runs on the controller once slurmdbd is up, and before slurmctld opens a partition, so that the first job of
    each user finds its association. It needs no slurm.conf of the host's own.
options:
  cluster: {type: str, required: true, description: The cluster's name.}
  account: {type: str, required: true, description: The account to submit under.}
  owner: {type: str, required: true, description: "Who asks, for the ledger, as component/role."}
  users: {type: list, elements: str, default: [], description: Unix users that may submit under it.}
  people:
    type: list
    elements: dict
    description: >-
      Declared users, all of them, each with its account. Who was on an earlier list and is not on this one can submit
      no more. Without it nobody is closed.
    suboptions:
      name: {type: str, required: true, description: A Unix user of the controller.}
      account: {type: str, required: true, description: The account it submits under by default.}
  timeout: {type: float, default: 30, description: Seconds that slurmdbd may take to answer.}
author: [gpuaas-slurm]
"""

POLL_SECONDS = 0.1
# maxsubmitjobs of an association that takes no new job. One with jobs cannot be deleted, but it can be closed.
CLOSED = "0"
CONFIG = "ClusterName={cluster}\nSlurmctldHost=localhost\nAccountingStorageType=accounting_storage/slurmdbd\n"
CONFIG += "AccountingStorageHost=127.0.0.1\n"


class Sacctmgr:
    """The only caller of sacctmgr here; asks with a configuration of its own."""

    def __init__(self, config: Path) -> None:
        self._environment = {**os.environ, "SLURM_CONF": str(config), "LC_ALL": "C"}

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (answer := self._run("show", "cluster", "format=cluster")).returncode != 0:
            if time.monotonic() > deadline:
                raise AdapterError(
                    "accounting_unreachable",
                    f"slurmdbd does not answer: {_last(answer.stderr)}."
                    " Read `journalctl -u slurmdbd` on the controller.",
                    RETRYABLE,
                )
            time.sleep(POLL_SECONDS)

    def rows(self, *query: str) -> list[list[str]]:
        return [line.split("|") for line in self._checked("show", *query).splitlines()]

    def change(self, *words: str) -> None:
        self._checked("--immediate", *words)

    def _checked(self, *words: str) -> str:
        answer = self._run(*words)
        if answer.returncode != 0:
            raise AdapterError(
                "accounting_failed",
                f"`sacctmgr {' '.join(words)}` failed: {_last(answer.stderr or answer.stdout)}."
                " Run it by hand on the controller to see why.",
                REPAIRABLE,
            )
        return answer.stdout

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sacctmgr", "--noheader", "--parsable2", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=self._environment,
        )


class Accounts:
    """The associations of one cluster, brought to a wish in the order that Slurm needs: cluster, account, user."""

    def __init__(self, sacctmgr: Sacctmgr, cluster: str, ledger: Ledger, dry: bool) -> None:
        self._sacctmgr = sacctmgr
        self._cluster = cluster
        self._ledger = ledger
        self._dry = dry
        self.changes: list[str] = []
        if [cluster] not in sacctmgr.rows("cluster", "format=cluster"):
            self._change(f"cluster {cluster}", "add", "cluster", cluster)
        rows = sacctmgr.rows("association", f"cluster={cluster}", "format=account,user,maxsubmitjobs")
        self._limits = {(row[0], row[1]): row[2] for row in rows}
        rows = sacctmgr.rows("user", "withassoc", f"cluster={cluster}", "format=user,defaultaccount")
        self._defaults = {row[0]: row[1] for row in rows}

    def have(self, user: str, account: str) -> None:
        """The user may submit under the account, and does so unless told otherwise."""
        _resolves(user)
        self.have_account(account)
        where = (f"account={account}", f"cluster={self._cluster}")
        present = (account, user) in self._limits
        self._ledger.note("association", f"{user}/{account}", {"present": present})
        if not present:
            self._note_first()
            self._change(f"user {user}", "add", "user", user, *where, f"defaultaccount={account}")
        elif self._is_ours(user, account) and self._limits[account, user] == CLOSED:
            self._change(f"user {user} opened", "modify", "user", user, "where", *where, "set", "maxsubmitjobs=-1")
        if present and self._defaults.get(user) != account:
            told = ("where", f"cluster={self._cluster}", "set", f"defaultaccount={account}")
            self._change(f"default account of {user}", "modify", "user", user, *told)

    def have_account(self, account: str) -> None:
        if (account, "") not in self._limits:
            described = (f"description={account}", f"organization={account}")
            self._change(f"account {account}", "add", "account", account, f"cluster={self._cluster}", *described)
            self._limits[account, ""] = ""

    def close_others(self, wanted: set[tuple[str, str]]) -> None:
        """Whom we let in and who is asked for no more: no new job. Running and waiting ones, and history, stay."""
        for key, entry in sorted(self._ledger.entries.items()):
            kind, _, name = key.partition(":")
            user, _, account = name.partition("/")
            ours = kind == "association" and not entry["before"]["present"] and (user, account) not in wanted
            if ours and self._limits.get((account, user), CLOSED) != CLOSED:
                where = (f"account={account}", f"cluster={self._cluster}")
                self._change(f"user {user} closed", "modify", "user", user, "where", *where, "set", "maxsubmitjobs=0")

    def _is_ours(self, user: str, account: str) -> bool:
        return not self._ledger.entries[f"association:{user}/{account}"]["before"]["present"]

    def _note_first(self) -> None:
        if not self._dry:
            self._ledger.save()

    def _change(self, name: str, *words: str) -> None:
        self.changes.append(name)
        if not self._dry:
            self._sacctmgr.change(*words)


def converge(sacctmgr: Sacctmgr, params: dict[str, Any], dry: bool) -> list[str]:
    ledger = Ledger(params["owner"])
    accounts = Accounts(sacctmgr, params["cluster"], ledger, dry)
    accounts.have_account(params["account"])
    wanted = {(user, params["account"]) for user in params["users"]}
    wanted |= {(person["name"], person["account"]) for person in params["people"] or []}
    for user, account in sorted(wanted):
        accounts.have(user, account)
    if params["people"] is not None:
        accounts.close_others(wanted)
    if not dry:
        ledger.save()
    return accounts.changes


def _resolves(user: str) -> None:
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise AdapterError(
            "user_missing",
            f"There is no Unix user {user} on the controller, and Slurm would remember that."
            " Create it there, or take it off the list.",
            INTERVENTION,
        ) from None


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            "account": {"type": "str", "required": True},
            "owner": {"type": "str", "required": True},
            "users": {"type": "list", "elements": "str", "default": []},
            "people": {
                "type": "list",
                "elements": "dict",
                "options": {"name": {"type": "str", "required": True}, "account": {"type": "str", "required": True}},
            },
            "timeout": {"type": "float", "default": 30},
        },
        supports_check_mode=True,
    )
    params = module.params
    with tempfile.TemporaryDirectory(prefix="gpuaas-slurm-accounting.") as scratch:
        config = Path(scratch) / "slurm.conf"
        config.write_text(CONFIG.format(cluster=params["cluster"]))
        sacctmgr = Sacctmgr(config)
        try:
            sacctmgr.wait(params["timeout"])
            changes = converge(sacctmgr, params, module.check_mode)
        except AdapterError as error:
            module.fail_json(msg=error.message, adapter_error=error.as_dict())
    module.exit_json(changed=bool(changes), changes=changes)


if __name__ == "__main__":
    main()
