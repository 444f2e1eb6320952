"""Accounting of a cluster that several projects share: the wanted state, and the state that Slurm shows. Pure.

Standard library only. The runner imports this same file as `runner.slurm.tenant.accounting_state` (a symbolic link), so
that both sides have one parser and one set of records. An answer that cannot be read raises ValueError: it never counts
as an empty one. Over 300 lines, because the records and the parsers of the five answers they come from are one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

# An account without users, and a QoS of the same name: nothing can be submitted under either. Every partition lists the
# account, because Slurm takes a list of unknown accounts, and an empty one, for "every account".
CLOSED = "gpuaas_closed"
TENANT_NAME = re.compile(r"t_[0-9a-f]{12}")
ACCOUNT_NAME = re.compile(r"p_[0-9a-f]{12}")
USER_NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")
CLUSTER_NAME = re.compile(r"[a-z][a-z0-9]{0,31}")
PARTITION_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
PROJECT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Slurm keeps 65,535 bytes.
MEMORY_CHARS = 60_000
MEMORY = re.compile(rf"[a-z0-9_:=,-]{{0,{MEMORY_CHARS}}}")
# In the text of a project's QoS, for each user of the project, also former ones: a digest of the subject, then name,
# uid and gid unless they are derived from the digest.
MEMORY_FORM = "g1"
REMEMBERED = re.compile(r"([0-9a-f]{12})(?:=([a-z][a-z0-9_-]{0,30}):([0-9]{1,10}):([0-9]{1,10}))?")
MOST = 2**31 - 1

ASSOCIATION_FIELDS = (
    "account,user,partition,parentname,qos,defaultqos,grpjobs,grpsubmitjobs,maxjobs,maxsubmitjobs,grptres,maxwall"
)
QOS_FIELDS = "name,flags,grpjobs,grpsubmitjobs,maxjobsperuser,maxsubmitjobsperuser,grptres,maxwall,description"
ACCOUNT_FIELDS = "account,coordinators,description"
USER_FIELDS = "user,defaultaccount,adminlevel"


@dataclass(frozen=True)
class Limits:
    """Limits of a project, all its users together. None is no limit."""

    gpus: int | None = None
    cpus: int | None = None
    jobs: int | None = None
    wall_minutes: int | None = None


@dataclass(frozen=True)
class Account:
    """The wanted account of a project. `users` have an association; with `open` they may submit, within `limits`."""

    name: str
    project_id: str
    open: bool = False
    users: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    # What Slurm keeps about the project's users, as text of the QoS (runner/slurm/tenant/memory.py).
    memory: str = ""


@dataclass(frozen=True)
class Wanted:
    """Accounts of every project that is attached, and which of them each partition admits.

    An account of a project that is not listed stays as it is, closed.
    """

    cluster: str
    tenant: str
    accounts: tuple[Account, ...]
    partitions: Mapping[str, tuple[str, ...]]

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Wanted:
        """From plain data. ValueError if anything in it could do more than name an account, a user or a limit."""
        accounts = tuple(_account(one) for one in given["accounts"])
        names = [one.name for one in accounts]
        if len(set(names)) != len(names):
            raise ValueError("an account is given twice")
        lists = {
            _matching(PARTITION_NAME, name): tuple(_matching(ACCOUNT_NAME, one) for one in admitted)
            for name, admitted in given["partitions"].items()
        }
        closed = {one.name for one in accounts if not one.open}
        for name, admitted in lists.items():
            if wrong := [one for one in admitted if one in closed or one not in names]:
                raise ValueError(f"partition {name} lists {wrong[0]}, which may not submit")
        cluster, tenant = _matching(CLUSTER_NAME, given["cluster"]), _matching(TENANT_NAME, given["tenant"])
        return cls(cluster, tenant, accounts, lists)

    def plain(self) -> dict[str, Any]:
        """As variables of a play."""
        accounts = [
            {
                "name": one.name,
                "project_id": one.project_id,
                "open": one.open,
                "users": sorted(one.users),
                "limits": {key: value for key, value in vars(one.limits).items() if value is not None},
                "memory": one.memory,
            }
            for one in sorted(self.accounts, key=lambda one: one.name)
        ]
        partitions = {name: sorted(admitted) for name, admitted in sorted(self.partitions.items())}
        return {"cluster": self.cluster, "tenant": self.tenant, "accounts": accounts, "partitions": partitions}


def _account(given: Mapping[str, Any]) -> Account:
    limits = dict(given.get("limits") or {})
    for key, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
            raise ValueError(f"limit {key} is not a number from 0 to {MOST}")
    if not isinstance(given.get("open", False), bool):
        raise ValueError("`open` is neither true nor false")
    try:
        read_limits = Limits(**limits)
    except TypeError:
        raise ValueError(f"there is a limit that is not known in {', '.join(sorted(limits))}") from None
    return Account(
        name=_matching(ACCOUNT_NAME, given["name"]),
        project_id=_matching(PROJECT_ID, given["project_id"]),
        open=given.get("open", False),
        users=tuple(_matching(USER_NAME, one) for one in given.get("users") or ()),
        limits=read_limits,
        memory=_matching(MEMORY, given.get("memory") or ""),
    )


def _matching(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(f"{str(value)[:60]!r} is not of the form {pattern.pattern}")
    return value


# -- what Slurm shows ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Association:
    """A row of `sacctmgr show association`: of an account if `user` is empty."""

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    qos: frozenset[str] = frozenset()
    default_qos: str = ""
    grp_jobs: int | None = None
    grp_submit: int | None = None
    max_jobs: int | None = None
    max_submit: int | None = None
    tres: Mapping[str, int] = field(default_factory=dict)
    wall_minutes: int | None = None


@dataclass(frozen=True)
class Qos:
    name: str
    flags: frozenset[str] = frozenset()
    grp_jobs: int | None = None
    grp_submit: int | None = None
    max_jobs_per_user: int | None = None
    max_submit_per_user: int | None = None
    tres: Mapping[str, int] = field(default_factory=dict)
    wall_minutes: int | None = None
    description: str = ""


@dataclass(frozen=True)
class User:
    name: str
    default_account: str = ""
    admin_level: str = "None"


@dataclass(frozen=True)
class Observed:
    """One look at slurmdbd and slurmctld."""

    associations: tuple[Association, ...] = ()
    qos: Mapping[str, Qos] = field(default_factory=dict)
    users: Mapping[str, User] = field(default_factory=dict)
    descriptions: Mapping[str, str] = field(default_factory=dict)
    coordinators: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # The accounts that a partition lists; None is "all".
    partitions: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    # Account and user of each job, with the number of its pending ones.
    jobs: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def accounts(self) -> dict[str, Association]:
        return {one.account: one for one in self.associations if not one.user}

    def of_users(self) -> dict[tuple[str, str], Association]:
        """By account and user. An association that is limited to a partition counts like one that is not."""
        return {(one.account, one.user): one for one in self.associations if one.user}


def parse_associations(answer: str) -> tuple[Association, ...]:
    return tuple(
        Association(
            account=row[0],
            user=row[1],
            partition=row[2],
            parent=row[3],
            qos=_names(row[4]),
            default_qos=row[5],
            grp_jobs=_number(row[6]),
            grp_submit=_number(row[7]),
            max_jobs=_number(row[8]),
            max_submit=_number(row[9]),
            tres=_tres(row[10]),
            wall_minutes=_minutes(row[11]),
        )
        for row in _rows(answer, ASSOCIATION_FIELDS)
    )


def parse_qos(answer: str) -> dict[str, Qos]:
    found = (
        Qos(
            name=row[0],
            flags=_names(row[1]),
            grp_jobs=_number(row[2]),
            grp_submit=_number(row[3]),
            max_jobs_per_user=_number(row[4]),
            max_submit_per_user=_number(row[5]),
            tres=_tres(row[6]),
            wall_minutes=_minutes(row[7]),
            description=row[8],
        )
        for row in _rows(answer, QOS_FIELDS)
    )
    return {one.name: one for one in found}


def parse_remembered(answer: str) -> dict[str, list[str]]:
    """What the text of each project's QoS says of its users, from `sacctmgr show qos format=name,description`."""
    found = {name: remembered(text) for name, text in _rows(answer, "name,description") if ACCOUNT_NAME.fullmatch(name)}
    return {name: sorted(entries.values()) for name, entries in found.items() if entries}


def remembered(text: str) -> dict[str, str]:
    """The entries by digest. An entry that a person changed is skipped, and a text of another form has none."""
    form, *entries = text.split(",")
    return {one[:12]: one for one in entries if form == MEMORY_FORM and REMEMBERED.fullmatch(one)}


def as_memory(entries: Mapping[str, str]) -> str:
    """The text for these entries, by digest."""
    return ",".join([MEMORY_FORM, *(entries[digest] for digest in sorted(entries))]) if entries else ""


def with_former(now: Mapping[str, str], former: Mapping[str, str]) -> str:
    """The text for these entries and for former ones. Without room those former ones go whose user is derived, as each
    subject's user can be derived again."""
    made = {**former, **now}
    left = len(as_memory(made)) - MEMORY_CHARS
    for digest in sorted(set(former) - set(now)) if left > 0 else ():
        if left > 0 and former[digest] == digest:
            del made[digest]
            left -= len(digest) + 1
    return as_memory(made)


def parse_accounts(answer: str) -> tuple[dict[str, str], dict[str, frozenset[str]]]:
    """Descriptions and coordinators, by account."""
    rows = _rows(answer, ACCOUNT_FIELDS)
    return {row[0]: row[2] for row in rows}, {row[0]: _names(row[1]) for row in rows}


def parse_users(answer: str) -> dict[str, User]:
    return {row[0]: User(*row) for row in _rows(answer, USER_FIELDS)}


def parse_jobs(answer: str) -> dict[tuple[str, str], int]:
    """From `squeue --noheader --all --format=%a|%u|%T`."""
    found: dict[tuple[str, str], int] = {}
    for account, user, state in _rows(answer, "account,user,state"):
        found[account, user] = found.get((account, user), 0) + (state == "PENDING")
    return found


def parse_lists(answer: str) -> dict[str, frozenset[str] | None]:
    """AllowAccounts by partition, from `scontrol --oneliner show partitions`."""
    found: dict[str, frozenset[str] | None] = {}
    for line in answer.splitlines():
        if line.strip() in ("", "No partitions in the system"):
            continue
        fields = dict(one.partition("=")[::2] for one in line.split() if "=" in one)
        if "PartitionName" not in fields or "AllowAccounts" not in fields:
            raise ValueError("a partition without a name or without AllowAccounts")
        listed = fields["AllowAccounts"]
        # An empty list admits every account, as ALL does.
        found[fields["PartitionName"]] = None if listed in ("ALL", "", "(null)") else _names(listed)
    return found


@dataclass(frozen=True)
class Held:
    """What slurmctld itself enforces, from `scontrol show assoc_mgr`: accounts, users with their uid, and QoS."""

    closed_accounts: frozenset[str]
    open_accounts: frozenset[str]
    uids: Mapping[tuple[str, str], int]
    closed_users: frozenset[tuple[str, str]]
    closed_qos: frozenset[str]


def parse_held(answer: str) -> Held:
    """From `scontrol --oneliner show assoc_mgr flags=assoc,qos`. slurmdbd sends slurmctld each change; it may lag."""
    accounts: dict[str, bool] = {}
    uids: dict[tuple[str, str], int] = {}
    closed_users, closed_qos, is_shown = set(), set(), False
    for line in answer.splitlines():
        fields = dict(one.partition("=")[::2] for one in line.split() if "=" in one)
        is_shown = is_shown or line.startswith("Current Association Manager state")
        zero = _held_zero(fields.get("GrpJobs")) and _held_zero(fields.get("GrpSubmitJobs"))
        if "Account" in fields and not fields.get("UserName"):
            accounts[fields["Account"]] = zero
        elif "Account" in fields:
            name, _, uid = fields["UserName"].rstrip(")").partition("(")
            key = (fields["Account"], name)
            uids[key] = int(uid) if uid.isdigit() else MOST
            if _held_zero(fields.get("MaxSubmitJobs")) and _held_zero(fields.get("MaxJobs")):
                closed_users.add(key)
        elif "QOS" in fields and zero:
            closed_qos.add(fields["QOS"].partition("(")[0])
    if not is_shown:
        raise ValueError("not an answer of slurmctld's association manager")
    return Held(
        frozenset(name for name, zero in accounts.items() if zero),
        frozenset(name for name, zero in accounts.items() if not zero),
        uids,
        frozenset(closed_users),
        frozenset(closed_qos),
    )


def _held_zero(value: str | None) -> bool:
    """A limit of zero: `0(2)` is the limit and what is in use, `N(2)` is no limit."""
    return (value or "").partition("(")[0] == "0"


def _rows(answer: str, fields: str) -> list[list[str]]:
    """Rows of `--parsable2`. Only the last field may have a `|` in it, which a person wrote."""
    count = len(fields.split(","))
    rows = [line.split("|", count - 1) for line in answer.splitlines() if line]
    if wrong := [row for row in rows if len(row) != count]:
        raise ValueError(f"a row has {len(wrong[0])} fields instead of {count}")
    return rows


def _names(text: str) -> frozenset[str]:
    return frozenset(one for one in text.split(",") if one)


def _number(text: str) -> int | None:
    return int(text) if text else None


def _tres(text: str) -> dict[str, int]:
    pairs = (one.rpartition("=") for one in text.split(",") if one)
    return {name: int(value) if value.isdigit() else MOST for name, _, value in pairs}


def _minutes(text: str) -> int | None:
    """`7-00:00:00`, `01:30:00` or `30:00` in minutes; seconds round up."""
    if not text or text == "UNLIMITED":
        return None
    days, _, clock = text.rpartition("-")
    parts = [int(one) for one in clock.split(":")]
    hours, minutes, seconds = [0, 0, 0, *parts][-3:]
    return (int(days or 0) * 24 + hours) * 60 + minutes + (1 if seconds else 0)


def closed_twice(name: str, accounts: Mapping[str, Association], qos: Mapping[str, Qos]) -> bool:
    """Whether nothing can be submitted or started under the account: the limit stands on it and on its QoS.

    A limit of a QoS has precedence over the same limit of an association.
    """
    account, own = accounts.get(name), qos.get(name)
    return bool(account and own and {account.grp_jobs, account.grp_submit, own.grp_jobs, own.grp_submit} == {0})


def descendants(accounts: Mapping[str, Association], of: Iterable[str]) -> dict[str, str]:
    """Accounts below these, each with the one of them that it is below."""
    tops, found = set(of), {}
    for name in accounts:
        seen, at = {name}, accounts[name].parent
        while at and at not in tops and at not in seen:
            seen.add(at)
            at = accounts[at].parent if at in accounts else ""
        if at in tops and name not in tops:
            found[name] = at
    return found
