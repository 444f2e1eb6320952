"""A stand-in for slurmdbd and slurmctld of a shared cluster, with rules of its own: who may submit where.

It takes lines of sacctmgr and lists of partitions, refuses what Slurm refuses, and answers a submission as Slurm 24.11
does, which is the more open of the two: a list admits accounts below a listed one, and a list of unknown accounts, or
an empty one, admits every account. It uses nothing of the code under test but the records that it returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ansible.module_utils.slurm.accounting_state import Association, Observed, Qos, User

T = TypeVar("T", Association, Qos)
GROUP = {"grpjobs": "grp_jobs", "grpsubmitjobs": "grp_submit", "maxjobs": "max_jobs", "maxsubmitjobs": "max_submit"}


class Refused(Exception):
    """sacctmgr would refuse the line."""


@dataclass
class FakeAccounting:
    accounts: dict[str, Association] = field(default_factory=lambda: {"root": Association("root")})
    # By account and user.
    rows: dict[tuple[str, str], Association] = field(default_factory=dict)
    qos: dict[str, Qos] = field(default_factory=lambda: {"normal": Qos("normal")})
    defaults: dict[str, str] = field(default_factory=dict)
    levels: dict[str, str] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    coordinators: dict[str, set[str]] = field(default_factory=dict)
    partitions: dict[str, frozenset[str] | None] = field(default_factory=dict)
    running: set[tuple[str, str]] = field(default_factory=set)
    pending: set[tuple[str, str]] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)

    # -- what a look shows -------------------------------------------------------------------------------------------

    def seen(self) -> Observed:
        jobs = {key: int(key in self.pending) for key in self.running | self.pending}
        return Observed(
            associations=(
                *(
                    replace(row, qos=self.qos_of(name), default_qos=self.default_of(name))
                    for name, row in self.accounts.items()
                ),
                *(
                    replace(row, qos=self.qos_of(*key), default_qos=self.default_of(*key))
                    for key, row in self.rows.items()
                ),
            ),
            qos=dict(self.qos),
            users={name: User(name, default, self.levels.get(name, "None")) for name, default in self.defaults.items()},
            descriptions={name: self.descriptions.get(name, "") for name in self.accounts},
            coordinators={name: frozenset(who) for name, who in self.coordinators.items()},
            partitions=dict(self.partitions),
            jobs=jobs,
        )

    def qos_of(self, account: str, user: str = "") -> frozenset[str]:
        """The QoS of the association, or of the next one above that has any."""
        if user and self.rows[account, user].qos:
            return self.rows[account, user].qos
        row = self.accounts[account]
        if row.qos or not row.parent:
            return row.qos or frozenset({"normal"})
        return self.qos_of(row.parent) if row.parent in self.accounts else frozenset({"normal"})

    def default_of(self, account: str, user: str = "") -> str:
        if user and self.rows[account, user].default_qos:
            return self.rows[account, user].default_qos
        row = self.accounts[account]
        return row.default_qos or (self.default_of(row.parent) if row.parent in self.accounts else "")

    # -- what slurmctld decides --------------------------------------------------------------------------------------

    def accepts(self, user: str, account: str, partition: str, qos: str) -> bool:
        """Whether a submission with these options is accepted."""
        row = self.rows.get((account, user))
        if row is None or qos not in self.qos_of(account, user) or qos not in self.qos:
            return False
        if partition not in self.partitions or not self._admits(self.partitions[partition], account):
            return False
        rank = self.qos[qos]
        if rank.grp_submit is not None:
            group_is_zero = rank.grp_submit == 0
        else:
            group_is_zero = any(self.accounts[one].grp_submit == 0 for one in self.lineage(account))
        own = rank.max_submit_per_user if rank.max_submit_per_user is not None else row.max_submit
        return not group_is_zero and own != 0

    def accepted(self) -> set[tuple[str, str, str]]:
        """User, account and partition of every submission that some QoS lets through."""
        return {
            (user, account, partition)
            for account, user in self.rows
            for partition in self.partitions
            if any(self.accepts(user, account, partition, qos) for qos in self.qos)
        }

    def lineage(self, account: str) -> list[str]:
        found: list[str] = []
        while account in self.accounts and account not in found:
            found.append(account)
            account = self.accounts[account].parent
        return found

    def _admits(self, listed: frozenset[str] | None, account: str) -> bool:
        if listed is None or not listed & set(self.accounts):
            return True
        return bool(listed & set(self.lineage(account)))

    # -- what sacctmgr does ------------------------------------------------------------------------------------------

    def run(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.do(line)

    def do(self, line: str) -> None:
        self.lines.append(line)
        words = line.split()
        verb, kind = words[0], words[1]
        given = {key.lower(): value for key, value in (word.split("=", 1) for word in words if "=" in word)}
        if verb == "add":
            names = (given.get("name") or words[2]).split(",")
            {"qos": self._add_qos, "account": self._add_accounts, "user": self._add_users}[kind](names, given)
        elif verb == "modify":
            where, new = line.split(" set ")
            conditions = {
                key.lower(): value for key, value in (one.split("=", 1) for one in where.split() if "=" in one)
            }
            values = {key.lower(): value for key, value in (one.split("=", 1) for one in new.split() if "=" in one)}
            {"qos": self._set_qos, "account": self._set_accounts, "user": self._set_users}[kind](conditions, values)
        elif verb == "delete" and kind == "coordinator":
            self.coordinators[given["account"]] -= set(given["name"].split(","))
        elif verb == "delete" and kind == "user":
            self._delete_users(given)
        else:
            raise Refused(line)

    def load(self, lines: Iterable[str], is_whole: bool = True) -> None:
        """A file of `sacctmgr load`: it adds, changes default accounts, and removes nothing. It may be cut off."""
        parent = ""
        for line in lines:
            self.lines.append(line)
            kind, _, rest = line.partition(" - ")
            name, *options = rest.split(":")
            name = name.strip("'")
            given = {key.lower(): value.strip("'") for key, value in (one.split("=", 1) for one in options)}
            if kind == "Parent":
                if name not in self.accounts:
                    raise Refused(f"no parent {name}")
                parent = name
            elif kind == "Account":
                self._add_accounts([name], {**given, "parent": parent})
            elif kind == "User":
                self._add_users([name], {**given, "account": parent})
                self.defaults[name] = given["defaultaccount"]
        for name, default in self.defaults.items() if is_whole else ():
            if (default, name) not in self.rows:
                raise Refused(f"{name} has no association in its default account {default}")

    def cancel(self, account: str, user: str) -> None:
        self.pending.discard((account, user))

    def allow(self, partition: str, listed: Iterable[str]) -> None:
        self.partitions[partition] = frozenset(listed) or None

    def _add_qos(self, names: list[str], given: dict[str, str]) -> None:
        for name in names:
            if name in self.qos:
                raise Refused(f"QoS {name} exists")
            self.qos[name] = _with_qos(Qos(name, description=name), given)

    def _add_accounts(self, names: list[str], given: dict[str, str]) -> None:
        parent = given.get("parent", "root")
        if parent not in self.accounts:
            raise Refused(f"no parent {parent}")
        for name in names:
            if name in self.accounts:
                raise Refused(f"account {name} exists")
            self.accounts[name] = self._with_association(Association(name, parent=parent), given)
            self.descriptions[name] = given.get("description", name)

    def _add_users(self, names: list[str], given: dict[str, str]) -> None:
        account = given["account"]
        if account not in self.accounts:
            raise Refused(f"no account {account}")
        for name in names:
            if name not in self.defaults:
                if "defaultaccount" not in given:
                    raise Refused(f"user {name} has no default account")
                self.defaults[name] = given["defaultaccount"]
            self.rows[account, name] = self._with_association(Association(account, name), given)

    def _set_qos(self, where: dict[str, str], values: dict[str, str]) -> None:
        for name in where["name"].split(","):
            self.qos[name] = _with_qos(self.qos[name], values)

    def _set_accounts(self, where: dict[str, str], values: dict[str, str]) -> None:
        for name in where["name"].split(","):
            row = self.accounts[name]
            if "parent" in values:
                row = replace(row, parent=values["parent"])
            self.accounts[name] = self._with_association(row, values)
            self.descriptions[name] = values.get("description", self.descriptions.get(name, ""))

    def _set_users(self, where: dict[str, str], values: dict[str, str]) -> None:
        for name in where["name"].split(","):
            if name not in self.defaults:
                raise Refused(f"no user {name}")
            if "adminlevel" in values:
                self.levels[name] = values["adminlevel"].capitalize()
            if "defaultaccount" in values:
                if (values["defaultaccount"], name) not in self.rows:
                    raise Refused(f"{name} has no association in {values['defaultaccount']}")
                self.defaults[name] = values["defaultaccount"]
            if "account" in where:
                key = (where["account"], name)
                self.rows[key] = self._with_association(self.rows[key], values)

    def _delete_users(self, given: dict[str, str]) -> None:
        for name in given["name"].split(","):
            keys = [key for key in self.rows if key[1] == name and given.get("account", key[0]) == key[0]]
            if any(key in self.running | self.pending for key in keys):
                continue  # "Job(s) active, cancel job(s) before remove"
            left = [key for key in self.rows if key[1] == name and key not in keys]
            if left and (self.defaults[name], name) in keys:
                raise Refused(f"{self.defaults[name]} is the default account of {name}")
            if "cluster" in given and not left:
                raise Refused("22.05 refuses to remove the default account on one cluster")
            for key in keys:
                del self.rows[key]
            if not left:
                del self.defaults[name]

    def _with_association(self, row: Association, values: dict[str, str]) -> Association:
        changes: dict[str, object] = {name: _limit(values[key]) for key, name in GROUP.items() if key in values}
        if "qos" in values:
            changes["qos"] = frozenset(values["qos"].split(","))
            if unknown := [one for one in values["qos"].split(",") if one not in self.qos]:
                raise Refused(f"no QoS {unknown[0]}")
        if "defaultqos" in values:
            changes["default_qos"] = values["defaultqos"]
        return _with_terms(row, changes, values)


def _with_qos(qos: Qos, values: dict[str, str]) -> Qos:
    names = {"grpjobs": "grp_jobs", "grpsubmitjobs": "grp_submit"}
    names |= {"maxjobsperuser": "max_jobs_per_user", "maxsubmitjobsperuser": "max_submit_per_user"}
    changes: dict[str, object] = {name: _limit(values[key]) for key, name in names.items() if key in values}
    if "flags" in values:
        changes["flags"] = frozenset(values["flags"].split(","))
    if "description" in values:
        changes["description"] = values["description"]
    return _with_terms(qos, changes, values)


def _with_terms(one: T, changes: dict[str, object], values: dict[str, str]) -> T:
    if "maxwall" in values:
        changes["wall_minutes"] = _limit(values["maxwall"])
    if "grptres" in values:
        tres = dict(one.tres)
        for pair in values["grptres"].split(","):
            name, _, value = pair.rpartition("=")
            tres.pop(name, None)
            if value != "-1":
                tres[name] = int(value)
        changes["tres"] = tres
    return replace(one, **changes)  # type: ignore[arg-type]


def _limit(text: str) -> int | None:
    return None if text == "-1" else int(text)
