"""From the accounting that Slurm shows to the wanted one: which commands, and in which order. Pure.

Standard library only; the runner imports this same file (a symbolic link), as accounting_state.py. A line is input of
`sacctmgr`, with one process for all lines of a phase; those of `loading` are a file of `sacctmgr load`. The order of
the phases keeps two rules at every moment:

- No user can submit who may not. What closes comes first. An account is created closed, in the same command, and opened
  last, after the module has read back that everything else is in place.
- A partition lists only accounts that exist, CLOSED among them, so that its list never stands for "every account".

Over 300 lines, because each rule reads the same look and the order of the rules is the point of the module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from .accounting_state import (
    ACCOUNT_NAME,
    CLOSED,
    PROJECT_ID,
    Account,
    Association,
    Observed,
    Wanted,
    closed_twice,
    descendants,
    remembered,
    with_former,
)

ZERO = "GrpJobs=0 GrpSubmitJobs=0"
DENY = "Flags=DenyOnLimit"
MARK = "organization=gpuaas"
# Names in one line. sacctmgr has no limit of its own; a line of this size is still readable in an error.
CHUNK = 50
# Accounts that Slurm or the deploy makes. No partition lists them.
DEPLOYED = ("default", "root")
NO_ADMIN = ("None", "Not Set", "")

Lists = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Steps:
    """The phases in order. `found` are sentences about entries that the adapter did not make."""

    foundation: tuple[str, ...] = ()
    narrowed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    closing: tuple[str, ...] = ()
    cancelled: tuple[tuple[str, str], ...] = ()
    loading: tuple[str, ...] = ()
    settling: tuple[str, ...] = ()
    opening: tuple[str, ...] = ()
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Lists of every wanted partition, for the next start of slurmctld: until the end of the run, and after it.
    interim: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    final: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Foreign entries that admitted a user and are closed; other foreign entries, which are left; accounts of another
    # project; wanted partitions that slurmctld does not have.
    closed_foreign: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    missing_partitions: tuple[str, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether Slurm shows all that is wanted."""
        return not (self.before_opening or self.opening or self.lists)

    @property
    def closes(self) -> bool:
        return bool(self.foundation or self.narrowed or self.closing or self.cancelled)

    @property
    def before_opening(self) -> bool:
        return self.closes or bool(self.loading or self.settling)


def plan(wanted: Wanted, seen: Observed, unresolved: Collection[str] = ()) -> Steps:
    """All that has to be done. Users that the controller cannot resolve get no association."""
    return _Plan(wanted, seen, unresolved).steps()


class _Plan:
    def __init__(self, wanted: Wanted, seen: Observed, unresolved: Collection[str]) -> None:
        self._wanted, self._seen, self._unresolved = wanted, seen, frozenset(unresolved)
        self._rows = seen.accounts()
        collided = {one.name for one in wanted.accounts if _is_of_another(seen.descriptions.get(one.name, ""), one)}
        self._refused = tuple(sorted(collided))
        self._projects = {one.name: one for one in wanted.accounts if one.name not in collided}
        # Ours by name: the account of a project that is not listed any more stays, closed.
        self._ours = {*self._projects, *(name for name in self._rows if ACCOUNT_NAME.fullmatch(name))}
        self._below = descendants(self._rows, self._ours | {CLOSED})
        self._closed_foreign: list[str] = []
        self._unwanted = {(row.account, row.user) for row in seen.associations if row.user and self._is_unwanted(row)}

    def steps(self) -> Steps:
        narrowed, lists = self._lists()
        return Steps(
            foundation=tuple(self._foundation()),
            narrowed=narrowed,
            closing=(*self._closing(), *self._memories()),
            cancelled=tuple(sorted(key for key in self._unwanted if self._seen.jobs.get(key))),
            loading=tuple(self._loading()),
            settling=tuple(self._settling()),
            opening=tuple(self._opening()),
            lists=lists,
            interim={name: self._keep(name) for name in sorted(self._wanted.partitions)},
            final={name: self._final(name) for name in sorted(self._wanted.partitions)},
            closed_foreign=tuple(sorted(set(self._closed_foreign))),
            foreign=tuple(self._foreign()),
            refused=self._refused,
            missing_partitions=tuple(sorted(set(self._wanted.partitions) - set(self._seen.partitions))),
        )

    # -- what has to exist before a list can name it -----------------------------------------------------------------

    def _foundation(self) -> Iterator[str]:
        missing = sorted(({CLOSED} | self._ours) - set(self._seen.qos))
        for names in _chunks(missing):
            yield f"add qos {names} {ZERO} {DENY}"
        if self._wanted.tenant not in self._rows:
            yield f"add account {self._wanted.tenant} {self._cluster} description=tenant {MARK}"
        if CLOSED not in self._rows:
            yield f"add account {CLOSED} {self._cluster} {self._below_tenant} {ZERO} {_qos(CLOSED)} {MARK}"
        elif not self._is_closed(CLOSED):
            yield f"modify qos where name={CLOSED} set {ZERO}"
            yield f"modify account where name={CLOSED} {self._cluster} set {ZERO}"

    # -- lists of partitions -----------------------------------------------------------------------------------------

    def _lists(self) -> tuple[Lists, Lists]:
        """Lists without what may not be on them, and then the wanted ones; of partitions that slurmctld has."""
        narrowed, lists = Lists(), Lists()
        for name, now in sorted(self._seen.partitions.items()):
            final, keep = self._final(name), self._keep(name)
            if now == frozenset(final):
                continue
            if name not in self._wanted.partitions:
                self._closed_foreign.append(f"partition {name} was made by hand; it admits no account now")
            if now is None or not now <= frozenset(final) or CLOSED not in now:
                narrowed[name] = keep
            if keep != final:
                lists[name] = final
        return narrowed, lists

    def _final(self, name: str) -> tuple[str, ...]:
        """Leaf accounts, and always the one that admits no one."""
        admitted = self._wanted.partitions.get(name, ())
        return (CLOSED, *sorted(one for one in admitted if one in self._projects))

    def _keep(self, name: str) -> tuple[str, ...]:
        """Of the final list what exists and is admitted already."""
        now = self._seen.partitions.get(name, frozenset())
        return tuple(
            one for one in self._final(name) if one == CLOSED or (one in self._rows and (now is None or one in now))
        )

    # -- what closes -------------------------------------------------------------------------------------------------

    def _closing(self) -> Iterator[str]:
        closed = [name for name in sorted(self._ours) if not self._may_open(name)]
        yield from self._zero("qos", [one for one in closed if self._qos_differs_from_zero(one)])
        yield from self._zero("account", [one for one in closed if self._account_differs_from_zero(one)])
        for name in sorted(self._ours | {CLOSED}):
            yield from self._own_terms(name)
        for name in sorted(self._below):
            yield from self._close_below(name)
        by_account: dict[str, set[str]] = defaultdict(set)
        for row in self._seen.associations:
            if (row.account, row.user) in self._unwanted and not (row.max_jobs == row.max_submit == 0):
                by_account[row.account].add(row.user)
        for account, users in sorted(by_account.items()):
            yield from self._users(account, users, "MaxJobs=0 MaxSubmitJobs=0")
        yield from self._privileges()

    def _zero(self, kind: str, names: Iterable[str]) -> Iterator[str]:
        where = "" if kind == "qos" else f" {self._cluster}"
        for chunk in _chunks(names):
            yield f"modify {kind} where name={chunk}{where} set {ZERO}"

    def _own_terms(self, name: str) -> Iterator[str]:
        """An account of ours has its own QoS and no other, below the tenant; so have its users."""
        row, qos = self._rows.get(name), self._seen.qos.get(name)
        if qos and qos.flags != {"DenyOnLimit"}:
            yield f"modify qos where name={name} set {DENY}"
        if qos and (qos.max_jobs_per_user, qos.max_submit_per_user) != (None, None):
            yield f"modify qos where name={name} set MaxJobsPerUser=-1 MaxSubmitJobsPerUser=-1"
        if row and row.parent != self._wanted.tenant:
            yield f"modify account where name={name} {self._cluster} set {self._below_tenant}"
        if row and not _has_only(row, name):
            others = ", ".join(sorted(row.qos - {name})) or "none"
            self._closed_foreign.append(f"account {name} could use QoS {others}")
            yield f"modify account where name={name} {self._cluster} set {_qos(name)}"
        # sacctmgr shows the account's QoS at a user that has none of its own.
        own = {one.user for one in self._of_account(name) if not _has_only(one, name) and not _same_qos(one, row)}
        for user in sorted(own):
            self._closed_foreign.append(f"user {user} had a QoS of its own in {name}")
        yield from self._users(name, own, _qos(name))

    def _close_below(self, name: str) -> Iterator[str]:
        """From 23.02 on a list admits the accounts below a listed one too."""
        row = self._rows[name]
        if not (row.grp_jobs == row.grp_submit == 0 and _has_only(row, CLOSED)):
            self._closed_foreign.append(f"account {name} was below {self._below[name]}; it is closed now")
            yield f"modify account where name={name} {self._cluster} set {ZERO} {_qos(CLOSED)}"
        own = {one.user for one in self._of_account(name) if not _has_only(one, CLOSED) and not _same_qos(one, row)}
        yield from self._users(name, own, _qos(CLOSED))

    def _privileges(self) -> Iterator[str]:
        """No user of a project is an operator or a coordinator."""
        ours = {row.user for row in self._seen.associations if row.user and row.account in self._ours}
        ours |= {user for one in self._projects.values() for user in one.users}
        whole = {*self._ours, *self._below, CLOSED, self._wanted.tenant}
        for name, coordinators in sorted(self._seen.coordinators.items()):
            # A coordinator of an account above, as of `root`, is one of ours too. Others may be there.
            for user in sorted(coordinators if name in whole else coordinators & ours):
                self._closed_foreign.append(f"user {user} was coordinator of {name}")
                yield f"delete coordinator account={name} name={user}"
        raised = sorted(
            one for one in ours if one in self._seen.users and self._seen.users[one].admin_level not in NO_ADMIN
        )
        for user in raised:
            self._closed_foreign.append(f"user {user} had the admin level {self._seen.users[user].admin_level}")
        for chunk in _chunks(raised):
            yield f"modify user where name={chunk} set adminlevel=none"

    def _memories(self) -> Iterator[str]:
        """Who has which user, before the user is there. What Slurm remembers beside that stays, as the name and the
        numbers of a user whose note was lost are not given again."""
        for name, one in sorted(self._projects.items()):
            now = self._seen.qos[name].description if name in self._seen.qos else ""
            memory = with_former(remembered(one.memory), remembered(now))
            if memory and memory != now:
                yield f"modify qos where name={name} set description={memory}"

    # -- what is created, and who leaves -----------------------------------------------------------------------------

    def _loading(self) -> Iterator[str]:
        """A file of `sacctmgr load`, which adds and never removes: one call instead of a second for each project.

        Each account comes closed, in its own line. The default account of a user is always given, since load would
        make the last one it reads the default.
        """
        accounts = [one for name, one in sorted(self._projects.items()) if name not in self._rows]
        missing = self._missing_users()
        if not accounts and not missing:
            return
        yield f"Cluster - '{self._wanted.cluster}'"
        if accounts:
            yield f"Parent - '{self._wanted.tenant}'"
        for one in accounts:
            described = f"Description='{one.project_id}':Organization='gpuaas'"
            zero = f"GrpJobs=0:GrpSubmitJobs=0:QOS='{one.name}':DefaultQOS='{one.name}'"
            yield f"Account - '{one.name}':{described}:{zero}"
        for account, users in sorted(_by_account(missing).items()):
            yield f"Parent - '{account}'"
            for user in sorted(users):
                yield f"User - '{user}':DefaultAccount='{self._defaults[user]}'"

    def _missing_users(self) -> set[tuple[str, str]]:
        present = self._seen.of_users()
        wanted = {(name, user) for name, one in self._projects.items() for user in one.users}
        return {key for key in wanted if key not in present and key[1] not in self._unresolved}

    def _settling(self) -> Iterator[str]:
        for name, one in sorted(self._projects.items()):
            if name in self._rows and self._seen.descriptions.get(name) != one.project_id:
                yield f"modify account where name={name} set description={one.project_id} {MARK}"
        for account, users in sorted(_by_value(self._changed_defaults()).items()):
            for chunk in _chunks(users):
                yield f"modify user where name={chunk} {self._cluster} set defaultaccount={account}"
        yield from self._remove_users()

    @cached_property
    def _defaults(self) -> dict[str, str]:
        """The default account of each user: the present one while it stays, since a change bills another project."""
        accounts: dict[str, list[Account]] = defaultdict(list)
        for one in self._projects.values():
            for user in one.users:
                accounts[user].append(one)
        stays = {(row.account, row.user) for row in self._seen.associations if row.user} - self._unwanted
        # Slurm refuses to remove the default account of a user who has another one: a job may run there still.
        busy = {key for key in self._unwanted if key in self._seen.jobs}
        for _account, user in stays | busy:
            accounts.setdefault(user, [])
        chosen: dict[str, str] = {}
        for user, offered in accounts.items():
            now = self._seen.users[user].default_account if user in self._seen.users else ""
            kept = sorted(account for account, who in stays if who == user)
            ordered = [one.name for one in sorted(offered, key=lambda one: (not one.open, one.name))]
            possible = [*ordered, *kept] or sorted(account for account, who in busy if who == user)
            chosen[user] = now if now in possible else possible[0]
        return chosen

    def _changed_defaults(self) -> dict[str, str]:
        """Of users that have an association. Others are loaded with their default."""
        loaded = {user for _, user in self._missing_users()}
        return {
            user: account
            for user, account in self._defaults.items()
            if user in self._seen.users
            and user not in loaded | self._unresolved
            and self._seen.users[user].default_account != account
        }

    def _remove_users(self) -> Iterator[str]:
        """An association that is only closed still shows its user the jobs of the account; once idle it goes."""
        idle = {key for key in self._unwanted if key not in self._seen.jobs}
        stays = {row.user for row in self._seen.associations if row.user and (row.account, row.user) not in idle}
        stays |= {user for one in self._projects.values() for user in one.users}
        for account, users in sorted(_by_account({key for key in idle if key[1] in stays}).items()):
            for chunk in _chunks(users):
                yield f"delete user name={chunk} {self._cluster} account={account}"
        # Without the cluster: 22.05 refuses to remove the last association, which is the default, of one cluster.
        for chunk in _chunks({user for _, user in idle if user not in stays}):
            yield f"delete user name={chunk}"

    # -- what opens --------------------------------------------------------------------------------------------------

    def _opening(self) -> Iterator[str]:
        terms: dict[tuple[str, str], list[str]] = defaultdict(list)
        reopened: dict[str, set[str]] = defaultdict(set)
        for name, one in sorted(self._projects.items()):
            if one.open:
                if set_qos := self._terms("qos", one):
                    terms["qos", set_qos].append(name)
                if set_account := self._terms("account", one):
                    terms["account", set_account].append(name)
            for row in self._of_account(name):
                if row.user in one.users and row.max_jobs == row.max_submit == 0:
                    reopened[name].add(row.user)
        # The QoS first: until the account follows, both are not open.
        for (kind, values), names in sorted(terms.items(), key=lambda item: item[0][0], reverse=True):
            where = "" if kind == "qos" else f" {self._cluster}"
            for chunk in _chunks(names):
                yield f"modify {kind} where name={chunk}{where} set {values}"
        for account, users in sorted(reopened.items()):
            yield from self._users(account, users, "MaxJobs=-1 MaxSubmitJobs=-1")

    def _terms(self, kind: str, one: Account) -> str:
        """The limits of an open project, if Slurm shows others; on the account and on its QoS alike."""
        now = self._seen.qos.get(one.name) if kind == "qos" else self._rows.get(one.name)
        tres = {"cpu": one.limits.cpus, "gres/gpu": one.limits.gpus}
        wanted_tres = {key: value for key, value in tres.items() if value is not None}
        jobs, wall = one.limits.jobs, one.limits.wall_minutes
        if now and (now.grp_jobs, now.grp_submit, now.wall_minutes, dict(now.tres)) == (jobs, None, wall, wanted_tres):
            return ""
        keys = sorted({*tres, *(now.tres if now else ())})
        listed = ",".join(f"{key}={wanted_tres.get(key, -1)}" for key in keys)
        return f"GrpJobs={_or_none(jobs)} GrpSubmitJobs=-1 GrpTRES={listed} MaxWall={_or_none(wall)}"

    # -- helpers -----------------------------------------------------------------------------------------------------

    @property
    def _cluster(self) -> str:
        return f"cluster={self._wanted.cluster}"

    @property
    def _below_tenant(self) -> str:
        return f"parent={self._wanted.tenant}"

    def _of_account(self, name: str) -> list[Association]:
        return [row for row in self._seen.associations if row.user and row.account == name]

    def _users(self, account: str, users: Iterable[str], values: str) -> Iterator[str]:
        for chunk in _chunks(users):
            yield f"modify user where name={chunk} account={account} {self._cluster} set {values}"

    def _may_open(self, name: str) -> bool:
        return name in self._projects and self._projects[name].open

    def _is_unwanted(self, row: Association) -> bool:
        """Of an account of ours. The users of a project that is not listed stay: it may only be suspended."""
        if row.account == CLOSED:
            return True
        one = self._projects.get(row.account)
        return one is not None and row.user not in one.users

    def _is_closed(self, name: str) -> bool:
        return closed_twice(name, self._rows, self._seen.qos)

    def _qos_differs_from_zero(self, name: str) -> bool:
        qos = self._seen.qos.get(name)
        return qos is not None and (qos.grp_jobs, qos.grp_submit) != (0, 0)

    def _account_differs_from_zero(self, name: str) -> bool:
        row = self._rows.get(name)
        return row is not None and (row.grp_jobs, row.grp_submit) != (0, 0)

    def _foreign(self) -> Iterator[str]:
        ours = {*self._ours, *self._below, CLOSED, self._wanted.tenant, *DEPLOYED}
        for name in sorted(set(self._rows) - ours):
            count = len({row.user for row in self._of_account(name)})
            yield f"account {name} with {count} user{'' if count == 1 else 's'}"
        for row in sorted(self._seen.associations, key=lambda row: (row.account, row.user)):
            if (row.account, row.user) in self._unwanted:
                yield f"user {row.user} in {row.account}"


def closed_accounts(wanted: Wanted, steps: Steps, seen: Observed) -> frozenset[str]:
    """Accounts under which no user may submit, of those that Slurm has: for the proof by slurmctld's own view."""
    open_ones = {one.name for one in wanted.accounts if one.open and one.name not in steps.refused}
    ours = {name for name in seen.accounts() if ACCOUNT_NAME.fullmatch(name)}
    return frozenset((ours | {CLOSED}) - open_ones)


def all_closed(wanted: Wanted) -> Wanted:
    """The same accounts and users, none of them open: what holds until the last phase."""
    accounts = tuple(replace(one, open=False) for one in wanted.accounts)
    return replace(wanted, accounts=accounts, partitions=dict.fromkeys(wanted.partitions, ()))


def _is_of_another(description: str, one: Account) -> bool:
    return PROJECT_ID.fullmatch(description) is not None and description != one.project_id


def _qos(name: str) -> str:
    return f"qos={name} defaultqos={name}"


def _has_only(row: Association, qos: str) -> bool:
    return row.qos == {qos} and row.default_qos == qos


def _same_qos(row: Association, of: Association | None) -> bool:
    return of is not None and (row.qos, row.default_qos) == (of.qos, of.default_qos)


def _or_none(value: int | None) -> int:
    return -1 if value is None else value


def _chunks(names: Iterable[str]) -> Iterator[str]:
    ordered = sorted(names)
    for start in range(0, len(ordered), CHUNK):
        yield ",".join(ordered[start : start + CHUNK])


def _by_account(keys: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for account, user in keys:
        found[account].add(user)
    return found


def _by_value(values: Mapping[str, str]) -> dict[str, set[str]]:
    return _by_account((account, user) for user, account in values.items())
