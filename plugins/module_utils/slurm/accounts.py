"""Who may submit under which account, brought to a wish: opened in Slurm's order, closed but not deleted."""

from __future__ import annotations

import pwd
from typing import Any, Protocol

from ..host.errors import INTERVENTION, AdapterError
from ..host.ledger import Ledger

# maxsubmitjobs of an association that takes no new job. One with jobs cannot be deleted, but it can be closed.
CLOSED = "0"


class Sacctmgr(Protocol):
    """What asks and changes slurmdbd."""

    def rows(self, *query: str) -> list[list[str]]: ...

    def change(self, *words: str) -> None: ...


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


def converge(sacctmgr: Sacctmgr, params: dict[str, Any], ledger: Ledger, dry: bool) -> list[str]:
    accounts = Accounts(sacctmgr, params["cluster"], ledger, dry)
    accounts.have_account(params["account"])
    wanted = {(user, params["account"]) for user in params["users"]}
    wanted |= {(one["name"], one["account"]) for one in params["declared_users"] or []}
    for user, account in sorted(wanted):
        accounts.have(user, account)
    if params["declared_users"] is not None:
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
