"""Converge the associations of a cluster: which user may submit under which account. None is deleted."""

from __future__ import annotations

from typing import Any, Protocol

from ..host.accounts import find_user
from ..host.errors import INTERVENTION, AdapterError
from ..host.ledger import Ledger

# maxsubmitjobs of an association that accepts no new job. An association with jobs cannot be deleted.
CLOSED = "0"


class Sacctmgr(Protocol):
    """Queries and changes in slurmdbd."""

    def rows(self, *query: str) -> list[list[str]]: ...

    def change(self, *arguments: str) -> None: ...


class Accounts:
    """The associations of one cluster, created in the order that Slurm needs: cluster, account, user."""

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

    def ensure_user(self, user: str, account: str) -> None:
        """The user may submit under the account, which is also the default account."""
        _require_unix_user(user)
        self.ensure_account(account)
        where = (f"account={account}", f"cluster={self._cluster}")
        present = (account, user) in self._limits
        self._ledger.note("association", f"{user}/{account}", {"present": present})
        if not present:
            self._note_first()
            self._change(f"user {user}", "add", "user", user, *where, f"defaultaccount={account}")
        elif self._is_ours(user, account) and self._limits[account, user] == CLOSED:
            self._change(f"user {user} opened", "modify", "user", user, "where", *where, "set", "maxsubmitjobs=-1")
        if present and self._defaults.get(user) != account:
            default = ("where", f"cluster={self._cluster}", "set", f"defaultaccount={account}")
            self._change(f"default account of {user}", "modify", "user", user, *default)

    def ensure_account(self, account: str) -> None:
        if (account, "") not in self._limits:
            described = (f"description={account}", f"organization={account}")
            self._change(f"account {account}", "add", "account", account, f"cluster={self._cluster}", *described)
            self._limits[account, ""] = ""

    def close_others(self, wanted: set[tuple[str, str]]) -> None:
        """Close associations that the adapter created and that are no longer wanted. Their jobs and history stay."""
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

    def _change(self, name: str, *arguments: str) -> None:
        self.changes.append(name)
        if not self._dry:
            self._sacctmgr.change(*arguments)


def converge(sacctmgr: Sacctmgr, params: dict[str, Any], ledger: Ledger, dry: bool) -> list[str]:
    accounts = Accounts(sacctmgr, params["cluster"], ledger, dry)
    accounts.ensure_account(params["account"])
    wanted = {(user, params["account"]) for user in params["users"]}
    wanted |= {(one["name"], one["account"]) for one in params["declared_users"] or []}
    for user, account in sorted(wanted):
        accounts.ensure_user(user, account)
    if params["declared_users"] is not None:
        accounts.close_others(wanted)
    if not dry:
        ledger.save()
    return accounts.changes


def _require_unix_user(user: str) -> None:
    if find_user(user) is None:
        raise AdapterError(
            "user_missing",
            f"The controller has no Unix user {user}, and Slurm would keep an association without a uid. Create the"
            " user there, or remove it from the list, then retry.",
            INTERVENTION,
        )
