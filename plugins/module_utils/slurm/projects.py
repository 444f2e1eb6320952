"""Bring the accounting of a shared cluster to the wanted state, and prove what Slurm shows before anything opens.

accounting_steps.py decides what is done and in which order. Here it is done: a few calls of sacctmgr and scontrol, and
after them new looks, since sacctmgr also exits with 1 if nothing had to be changed, and its text is not a proof.

Over 300 lines, because each change stands beside the look that proves it.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ..host.accounts import find_user
from ..host.errors import REPAIRABLE, RETRYABLE, AdapterError, last_line
from . import account_lists
from .accounting_state import (
    ACCOUNT_FIELDS,
    ASSOCIATION_FIELDS,
    CLOSED,
    QOS_FIELDS,
    USER_FIELDS,
    Held,
    Observed,
    Wanted,
    parse_accounts,
    parse_associations,
    parse_held,
    parse_jobs,
    parse_lists,
    parse_qos,
    parse_users,
)
from .accounting_steps import Steps, closed_accounts, plan
from .commands import ENVIRONMENT

POLL_SECONDS = 0.2
HELD = ("scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc,qos")
# sacctmgr takes up to a second a line on a large 22.05.
CALL_SECONDS = 600
# A first run may leave what depends on its own changes, as a job that ended meanwhile.
ROUNDS = 3
Answers = Mapping[str, str]


class Slurm(Protocol):
    """The commands on the controller."""

    def ask(self, *command: str) -> str: ...

    def batch(self, program: str, lines: Iterable[str]) -> str: ...

    def load(self, lines: Iterable[str]) -> str: ...

    def do(self, *command: str) -> str: ...


class Commands:
    """The real ones. A query that fails raises; what a change says is kept for the error of a failed proof."""

    def ask(self, *command: str) -> str:
        done = self._run(command)
        if done.returncode != 0:
            raise AdapterError(
                "accounting_unreachable",
                f"`{' '.join(command[:4])}` failed on the controller: {last_line(done.stderr or done.stdout)}."
                " Nothing is assumed and nothing opened. The adapter retries; if the error stays, read `journalctl -u"
                " slurmdbd -u slurmctld` there.",
                RETRYABLE,
            )
        return done.stdout

    def batch(self, program: str, lines: Iterable[str]) -> str:
        text = "".join(f"{line}\n" for line in lines)
        if not text:
            return ""
        options = ("--immediate", "--quiet") if program == "sacctmgr" else ()
        done = self._run((program, *options), text)
        return done.stdout + done.stderr

    def load(self, lines: Iterable[str]) -> str:
        text = "".join(f"{line}\n" for line in lines)
        if not text:
            return ""
        with tempfile.NamedTemporaryFile("w", prefix="gpuaas-slurm-accounts.") as file:
            file.write(text)
            file.flush()
            done = self._run(("sacctmgr", "--immediate", "--quiet", "load", f"file={file.name}"))
        return done.stdout + done.stderr

    def do(self, *command: str) -> str:
        done = self._run(command)
        return done.stdout + done.stderr

    def _run(self, command: tuple[str, ...], text: str = "") -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                input=text,
                capture_output=True,
                text=True,
                timeout=CALL_SECONDS,
                check=False,
                env=ENVIRONMENT,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return subprocess.CompletedProcess(command, 1, "", str(error))


@dataclass
class Projects:
    """One run on one controller."""

    slurm: Slurm
    wanted: Wanted
    owner: str
    seconds: float = 15
    cancelled: Collection[str] = ()
    lists: Path = account_lists.LISTS
    resolve: Callable[[str], object] = find_user
    apply_lists: Callable[[], None] = account_lists.apply_kept
    # Whether it ends once all is closed that has to be: nothing is created and nothing opens.
    only_close: bool = False
    errors: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)

    def converge(self, dry: bool = False) -> dict[str, Any]:
        seen = self._look()
        steps = first = self._plan(seen)
        if self.only_close and not dry:
            for _ in range(ROUNDS):
                if not steps.closes:
                    break
                self._close(steps)
                seen = self._look()
                steps = self._plan(seen)
            self._prove_closed(steps, seen)
        elif not dry:
            for _ in range(ROUNDS):
                if not steps.before_opening:
                    break
                self._close(steps)
                self._create(steps)
                seen = self._look()
                steps = self._plan(seen)
            self._prove_closed(steps, seen)
            self._open(steps, seen)
            seen = self._look()
            self._prove_all(self._plan(seen), seen)
        return self._report(first, seen, dry)

    # -- changes -----------------------------------------------------------------------------------------------------

    def _close(self, steps: Steps) -> None:
        self._sacctmgr(steps.foundation)
        if account_lists.keep(steps.interim, self.owner, self.lists):
            self.changes.append("lists of partitions for the next start of slurmctld")
        self._allow(steps.narrowed)
        self._sacctmgr(steps.closing)
        for account, user in steps.cancelled:
            self.changes.append(f"pending jobs of {user} in {account} cancelled")
            self._say(self.slurm.do("scancel", "--state=PENDING", f"--account={account}", f"--user={user}"))

    def _create(self, steps: Steps) -> None:
        self.changes += [line.partition(":")[0] for line in steps.loading if line.startswith(("Account", "User"))]
        self._say(self.slurm.load(steps.loading))
        self._sacctmgr(steps.settling)

    def _open(self, steps: Steps, seen: Observed) -> None:
        # The leaving projects' jobs go once nothing new can come.
        for account in sorted(set(self.cancelled) - set(steps.refused)):
            if any(of_account == account for of_account, _ in seen.jobs):
                self.changes.append(f"jobs of {account} cancelled")
                self._say(self.slurm.do("scancel", f"--account={account}"))
        self._sacctmgr(steps.opening)
        changed = account_lists.keep(steps.final, self.owner, self.lists)
        self._allow(steps.lists)
        if changed:
            self.changes.append("lists of partitions for the next start of slurmctld")
            self.apply_lists()

    def _sacctmgr(self, lines: tuple[str, ...]) -> None:
        self.changes += lines
        self._say(self.slurm.batch("sacctmgr", lines))

    def _allow(self, lists: Mapping[str, tuple[str, ...]]) -> None:
        lines = [account_lists.update(name, listed) for name, listed in sorted(lists.items())]
        self.changes += lines
        self._say(self.slurm.batch("scontrol", lines))

    def _say(self, output: str) -> None:
        self.errors += [line.strip() for line in output.splitlines() if "rror" in line or "roblem" in line]

    # -- looks and proofs --------------------------------------------------------------------------------------------

    def _look(self) -> Observed:
        cluster = f"cluster={self.wanted.cluster}"
        show = ("sacctmgr", "--noheader", "--parsable2", "show")
        queries = {
            "associations": (*show, "association", cluster, f"format={ASSOCIATION_FIELDS}"),
            "qos": (*show, "qos", f"format={QOS_FIELDS}"),
            "accounts": (*show, "account", "withcoordinator", f"format={ACCOUNT_FIELDS}"),
            "users": (*show, "user", "withassoc", cluster, f"format={USER_FIELDS}"),
            "jobs": ("squeue", "--noheader", "--all", "--format=%a|%u|%T"),
            "partitions": ("scontrol", "--all", "--oneliner", "show", "partitions"),
        }
        with ThreadPoolExecutor() as pool:
            asked = {name: pool.submit(self.slurm.ask, *query) for name, query in queries.items()}
        return read(asked_results(asked))

    def _plan(self, seen: Observed) -> Steps:
        users = {user for one in self.wanted.accounts for user in one.users}
        self._unresolved = sorted(user for user in users if self.resolve(user) is None)
        return plan(self.wanted, seen, self._unresolved)

    def _prove_closed(self, steps: Steps, seen: Observed) -> None:
        """Before anything opens: nothing is left to close or to create, by slurmdbd and by slurmctld."""
        if steps.closes or (steps.before_opening and not self.only_close):
            left = [*steps.foundation, *steps.closing, *steps.loading, *steps.settling, *steps.narrowed, "a job"]
            raise self._unproven(f"Slurm still shows another state; the first change left is `{left[0]}`")
        must = closed_accounts(self.wanted, steps, seen)
        self._follows(lambda held: _left_open(held, must))

    def _prove_all(self, steps: Steps, seen: Observed) -> None:
        if not steps.idle:
            left = [*steps.opening, *steps.lists, "of something that was open before"]
            raise self._unproven(f"Slurm does not show what was changed; the first change left is `{left[0]}`")
        rows = seen.of_users()
        users = {(one.name, user) for one in self.wanted.accounts for user in one.users if (one.name, user) in rows}
        may = {one.name for one in self.wanted.accounts if one.open} - set(steps.refused)
        self._follows(lambda held: _not_followed(held, may, users))

    def _follows(self, problem: Callable[[Held], str | None]) -> None:
        """Wait until slurmctld itself enforces it: slurmdbd tells slurmctld, which may take a moment or be missed."""
        deadline = time.monotonic() + self.seconds
        while True:
            with _readable():
                held = parse_held(self.slurm.ask(*HELD))
            found = problem(held)
            if found is None:
                return
            if time.monotonic() > deadline:
                raise AdapterError(
                    "projects_not_followed",
                    f"slurmctld does not follow its accounting: {found}. Nothing more was opened. The adapter retries;"
                    " if the error stays, see with `sacctmgr show cluster` whether slurmctld is registered, and restart"
                    " slurmctld.",
                    RETRYABLE,
                )
            time.sleep(POLL_SECONDS)

    def _unproven(self, what: str) -> AdapterError:
        answer = f" sacctmgr said: {self.errors[-1]}." if self.errors else ""
        return AdapterError(
            "projects_unproven",
            f"{what}.{answer} Nothing more was opened. The adapter retries; if the error stays, run the command by hand"
            " on the controller to see why.",
            REPAIRABLE,
        )

    # -- the report --------------------------------------------------------------------------------------------------

    def _report(self, first: Steps, seen: Observed, dry: bool) -> dict[str, Any]:
        rows, accounts = seen.of_users(), seen.accounts()
        jobs: dict[str, int] = {}
        for account, _ in seen.jobs:
            jobs[account] = jobs.get(account, 0) + 1
        return {
            "changes": _planned(first) if dry else self.changes,
            "accounts": {
                one.name: {
                    "open": one.open and one.name not in first.refused,
                    "present": one.name in accounts,
                    "users": sorted(user for account, user in rows if account == one.name),
                    "users_with_jobs": jobs.get(one.name, 0),
                }
                for one in self.wanted.accounts
            },
            "partitions": {
                name: "ALL" if listed is None else sorted(listed - {CLOSED}) for name, listed in seen.partitions.items()
            },
            "closed_foreign": list(first.closed_foreign),
            "foreign": list(first.foreign),
            "refused": list(first.refused),
            "unresolved": self._unresolved,
            "missing_partitions": list(first.missing_partitions),
        }


def asked_results(asked: Mapping[str, Any]) -> dict[str, str]:
    return {name: future.result() for name, future in asked.items()}


def read(answers: Answers) -> Observed:
    """One typed look. What cannot be read is an error, and never an empty answer."""
    with _readable():
        descriptions, coordinators = parse_accounts(answers["accounts"])
        return Observed(
            associations=parse_associations(answers["associations"]),
            qos=parse_qos(answers["qos"]),
            users=parse_users(answers["users"]),
            descriptions=descriptions,
            coordinators=coordinators,
            partitions=parse_lists(answers["partitions"]),
            jobs=parse_jobs(answers["jobs"]),
        )


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise AdapterError(
            "accounting_unreadable",
            f"The answer of sacctmgr or scontrol cannot be read ({error}), so nothing more was changed. Run `sacctmgr"
            " show association` on the controller and correct the entry.",
            REPAIRABLE,
        ) from None


def _left_open(held: Held, must: Collection[str]) -> str | None:
    left = sorted(one for one in must if one in held.open_accounts)
    if left:
        return f"account {left[0]} is open there"
    # A limit of a QoS has precedence, so that a QoS left open would start the jobs that wait.
    if left := sorted(one for one in must if one not in held.closed_qos):
        return f"QoS {left[0]} is open there"
    if CLOSED not in held.closed_accounts:
        return f"it does not know {CLOSED}"
    return None


def _not_followed(held: Held, may: Collection[str], users: Collection[tuple[str, str]]) -> str | None:
    if left := sorted(one for one in may if one in held.closed_accounts or one not in held.open_accounts):
        return f"account {left[0]} is not open there"
    if left := sorted(user for account, user in users if held.uids.get((account, user)) is None):
        return f"user {left[0]} has no association there"
    return None


def _planned(steps: Steps) -> list[str]:
    """For a dry run."""
    lists = [account_lists.update(name, listed) for name, listed in {**steps.narrowed, **steps.lists}.items()]
    return [*steps.foundation, *steps.closing, *steps.loading, *steps.settling, *steps.opening, *lists]
