"""From attachments to what Slurm accepts, through all of it: decide, the notes, the commands on the controller.

Whatever the attachments ask for, in any order, with notes lost, slurmctld restarted and the run killed between any two
commands: only who is allowed has an association under which a submission is accepted. A name stays with its subject.
The stand-in for Slurm has its rules, and `allowed` here says again what a policy means.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from ansible.module_utils.host.errors import AdapterError as HostError
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.slurm import account_lists, projects
from ansible.module_utils.slurm.accounting_state import CLOSED, Wanted
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.model.attached import AttachedProject
from runner.model.plan import AdapterError, Play
from runner.model.world import Outcome, World
from runner.slurm import desired_config
from runner.slurm.decide.attachments import PLAYBOOK
from runner.slurm.host_vars import variables
from runner.slurm.notes import ControllerNotes
from runner.slurm.snapshot import Snapshot
from runner.slurm.tenant.accounting_state import parse_remembered
from runner.slurm.tenant.identities import digest_of
from tests.unit.fake_accounting import FakeAccounting
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import serving, tick
from tests.unit.test_follow_attachments import account, attachment, shared
from tests.unit.test_slurm_projects import FakeCommands
from tests.unit.worlds import after

A, B, C = (UUID(int=number << 100) for number in (0xA, 0xB, 0xC))
PARTITIONS = ["main", account(B)]
SUBJECTS = ["s", "t", "u"]
# Each policy, and where it lets the project's users submit. `own` is a partition of B alone.
POLICIES: list[tuple[dict[str, Any], list[str]]] = [
    ({"submit": True, "partitions": ["main"]}, ["main"]),
    ({"submit": True, "partitions": ["own"]}, ["own"]),
    ({"submit": True, "partitions": ["main", "own"], "limits": {"jobs": 2, "cpus": 4}}, ["main", "own"]),
    ({}, []),
    ({"submit": False, "partitions": ["main"]}, []),
    ({"submit": True}, []),
    ({"submit": "yes", "partitions": ["main"]}, []),
    ({"submit": True, "partitions": ["main"], "nodes": 1}, []),
]
STATUSES = [*["active"] * 4, "suspended", "detaching", "detached", "unheard-of"]
Submission = tuple[str, str, str]  # subject or user, account, partition


class Killed(Exception):
    """The run on the controller ends here."""


@dataclass
class Stepwise(FakeCommands):
    """The commands one by one, and a look at who could submit after each, also if slurmctld restarted there."""

    fake: FakeAccounting
    controller: "Controller"

    def __post_init__(self) -> None:
        super().__init__(self.fake)

    def batch(self, program: str, lines: Iterable[str]) -> str:
        for line in lines:
            self.controller.moment_before()
            super().batch(program, [line])
            self.controller.check()
        return ""

    def load(self, lines: Iterable[str]) -> str:
        given = tuple(lines)
        left = self.controller.changes_left
        if left is not None and left < len(given):
            self.fake.load(given[:left], is_whole=False)
            self.controller.check()
            raise Killed
        self.fake.load(given)
        if left is not None:
            self.controller.changes_left = left - len(given)
        self.controller.check()
        return ""

    def do(self, *command: str) -> str:
        self.controller.moment_before()
        return super().do(*command)


@dataclass
class Controller(FakeSlurm):
    """A shared cluster whose play is the module's own code, on a stand-in for slurmdbd and slurmctld."""

    lists: Path = Path()
    fake: FakeAccounting = field(
        default_factory=lambda: FakeAccounting(partitions=dict.fromkeys(PARTITIONS, frozenset({CLOSED})))
    )
    unix: set[str] = field(default_factory=set)
    changes_left: int | None = None
    # Whose name it is, since the name had an association for the first time.
    owner: dict[str, str] = field(default_factory=dict)
    noted: dict[str, str] = field(default_factory=dict)
    may: set[Submission] = field(default_factory=set)

    def seen(self) -> Snapshot | None:
        texts = "".join(f"{name}|{one.description}\n" for name, one in self.fake.qos.items())
        found = super().seen()
        return found and found.model_copy(update={"remembered": parse_remembered(texts)})

    def run(self, world: World, play: Play) -> World:
        if play.playbook != PLAYBOOK:
            return super().run(world, play)
        lead = play.members[0]
        hosts = variables(world.instance, play.members, world.members, world.attachments).shared
        self.unix |= {one["name"] for one in hosts.get("slurm_users", ())}
        self.noted = dict(named(world.attachments))
        given = {"cluster": "gs0", **play.terms["slurm_projects"]}
        work = projects.Projects(
            Stepwise(self.fake, self), Wanted.read(given), "controller/projects", 0, lists=self.lists,
            cancelled=play.terms["slurm_projects_cancelled"], resolve=lambda name: name if name in self.unix else None,
            apply_lists=self.apply_lists,
        )  # fmt: skip
        try:
            done = work.converge()
        except Killed:
            return after(world, play, {}, self.seen())
        except HostError as error:
            failed = AdapterError(error.code, error.message, "retryable")
            return after(world, play, {lead.id: Outcome(error=failed)}, self.seen())
        busy = [name for name, one in done["accounts"].items() if one["users_with_jobs"]]
        versions = {"users_version": hosts["slurm_users_version"]}
        detail = {"projects_busy": busy, "projects_closed_by_hand": done["closed_foreign"], **versions}
        workers = {one.id: Outcome("serving", versions) for one in play.members[1:]}
        return after(world, play, {**workers, lead.id: Outcome("serving", detail)}, self.seen())

    # -- what happens on the host ------------------------------------------------------------------------------------

    def moment_before(self) -> None:
        if self.changes_left is not None:
            if self.changes_left == 0:
                raise Killed
            self.changes_left -= 1

    def kept_lists(self) -> Mapping[str, frozenset[str]]:
        """The lists with which slurmctld starts: slurm.conf's, and then the file."""
        found = dict.fromkeys(PARTITIONS, frozenset({CLOSED}))
        for line in self.lists.read_text().splitlines() if self.lists.is_file() else ():
            name, _, listed = line.removeprefix("update PartitionName=").partition(" AllowAccounts=")
            found[name] = frozenset(listed.split(","))
        return found

    def apply_lists(self) -> None:
        for name, listed in self.kept_lists().items():
            self.fake.allow(name, listed)

    def submissions(self) -> set[Submission]:
        """By subject, of those with the present lists and of those after a restart."""
        found = self.fake.accepted()
        live = self.fake.partitions
        self.fake.partitions = dict(self.kept_lists())
        found |= self.fake.accepted()
        self.fake.partitions = live
        return {(self.owner[user], where, partition) for user, where, partition in found}

    def submissions_without(self, what: str) -> set[Submission]:
        other = deepcopy(self)
        if what == "lists":
            other.fake.partitions = dict.fromkeys(PARTITIONS)
        else:
            fake = other.fake
            fake.accounts = {name: replace(one, grp_submit=None) for name, one in fake.accounts.items()}
            fake.qos = {name: replace(one, grp_submit=None) for name, one in fake.qos.items()}
        return other.submissions()

    def check(self) -> None:
        for _account, user in self.fake.rows:
            assert self.owner.setdefault(user, self.noted.get(user, "")) == self.noted.get(user, self.owner[user])
        assert self.submissions() <= self.may


def named(attachments: Iterable[AttachedProject]) -> Iterator[tuple[str, str]]:
    """Name and subject, as the notes of the attachments have them."""
    for one in attachments:
        for subject, text in (one.adapter_detail.get("people") or {}).items():
            yield text.partition(":")[0], subject


def allowed(attachments: Iterable[AttachedProject]) -> set[Submission]:
    """The specification."""
    return {
        (identity["subject"], account(one.project_id), "main" if where == "main" else account(B))
        for one in attachments
        if one.status in ("requested", "active")
        for policy, places in POLICIES
        if policy == one.app_policy
        for where in places
        if where == "main" or one.project_id == B
        for identity in one.identities
    }


@st.composite
def requests(draw: st.DrawFn) -> dict[UUID, dict[str, Any]]:
    """What is asked for each project that is in the list of attachments."""
    asked = {}
    for project in draw(st.sets(st.sampled_from([A, B, C]), min_size=1)):
        subjects = draw(st.sets(st.sampled_from(SUBJECTS), min_size=1))
        asked[project] = {
            "status": draw(st.sampled_from(STATUSES)),
            # Mostly allowed, or there would be little to close.
            "app_policy": draw(st.sampled_from(POLICIES[:3]) | st.sampled_from(POLICIES))[0],
            "identities": [
                {"subject": one, "username": draw(st.sampled_from([None, None, "ann", "bob"]))} for one in subjects
            ],
        }
    return asked


def requested(now: World, asked: dict[UUID, dict[str, Any]], lost: set[UUID]) -> World:
    """The platform's records: what the adapter wrote stays on them, unless it is lost."""
    records = {one.project_id: one for one in now.attachments}
    made = [records.get(project, attachment(project)).model_copy(update=changes) for project, changes in asked.items()]
    kept = [one.model_copy(update={"adapter_detail": {}}) if one.project_id in lost else one for one in made]
    return now.later(attachments=tuple(kept), now=now.now + timedelta(hours=1))


def with_live_partitions(now: World) -> World:
    """The cluster serves with a partition for each project that has a worker."""
    live = ControllerNotes(applied_config=desired_config.digest(now.instance, now.members)).changes
    lead = now.members[0]
    return now.with_member(lead.model_copy(update={"adapter_detail": {**lead.adapter_detail, **live}}))


@given(st.lists(requests(), min_size=2, max_size=4), st.data())
@settings(max_examples=30, deadline=None)
def test_only_who_is_allowed_can_submit_whatever_is_asked_lost_or_killed(
    history: list[dict[UUID, dict[str, Any]]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(account_lists, "Ledger", lambda owner: Ledger(owner, Path(place)))
        patch.setattr(projects, "POLL_SECONDS", 0)
        slurm = Controller(nodes={"w2": FakeNode(), "w3": FakeNode()}, lists=Path(place, "lists"))
        fake = slurm.fake
        now = with_live_partitions(shared().with_member(serving(3, source_project_id=B)))
        for asked in history:
            now = requested(now, asked, data.draw(st.sets(st.sampled_from([A, B, C])), label="lost notes"))
            goal = allowed(now.attachments)
            slurm.may = slurm.submissions() | goal
            slurm.changes_left = data.draw(st.none() | st.integers(0, 40), label="killed after")
            now, _, _ = tick(now, slurm)
            slurm.changes_left = None
            if data.draw(st.booleans(), label="slurmctld restarts"):
                slurm.apply_lists()
            for _ in range(3):
                now, _, _ = tick(now.later(now=now.now + timedelta(hours=1)), slurm)
            assert slurm.submissions() <= goal
            # A closed account is closed more than once: lists that admit all, or limits that are gone, open none.
            assert {one[:2] for one in slurm.submissions_without("lists")} <= {one[:2] for one in goal}
            assert slurm.submissions_without("limits") <= goal
            derived = {
                (identity["subject"], account(one.project_id))
                for one in now.attachments
                for identity in one.identities
                if slurm.owner.get(f"u_{digest_of(identity['subject'])}") == identity["subject"]
            }
            assert {one for one in goal if one[:2] in derived} <= slurm.submissions()
            rows = sorted(fake.rows)
            fake.running = data.draw(st.sets(st.sampled_from(rows), max_size=2), label="running") if rows else set()
            fake.pending = set(fake.running)
