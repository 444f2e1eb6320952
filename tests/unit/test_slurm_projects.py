"""slurm_projects: nothing opens before Slurm shows that the rest is closed, and what cannot be read stops it.

Over 300 lines, because every case runs on the same stand-in for the commands.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.slurm import account_lists, projects
from ansible.module_utils.slurm.accounting_state import (
    ACCOUNT_FIELDS,
    ASSOCIATION_FIELDS,
    CLOSED,
    QOS_FIELDS,
    Account,
    Wanted,
    parse_associations,
    parse_held,
    parse_lists,
    parse_qos,
)

from plugins.modules import slurm_projects
from tests.unit.fake_accounting import FakeAccounting
from tests.unit.test_accounting_steps import A, B, account, project_id, wanted


def shown(value: object) -> str:
    return "" if value is None else ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)


class FakeCommands:
    """The stand-in as text, as the commands print it."""

    def __init__(self, fake: FakeAccounting) -> None:
        self.fake = fake
        self.calls: list[str] = []
        self.deaf_to: tuple[str, ...] = ()  # lines that sacctmgr takes and does not carry out
        self.lagging: set[str] = set()  # accounts that slurmctld has open still
        self.lagging_qos: set[str] = set()
        self.answers: dict[str, str] = {}

    def ask(self, *command: str) -> str:
        for part, answer in self.answers.items():
            if part in command:
                return answer
        seen = self.fake.seen()
        if command[0] == "squeue":
            return "".join(f"{a}|{u}|{'PENDING' if n else 'RUNNING'}\n" for (a, u), n in seen.jobs.items())
        if "partitions" in command:
            return "".join(
                f"PartitionName={name} AllowAccounts={'ALL' if one is None else ','.join(sorted(one))} State=UP\n"
                for name, one in seen.partitions.items()
            )
        if "assoc_mgr" in command:
            return self.held()
        kind, rows = command[4], list[tuple[Any, ...]]()
        if kind == "association":
            rows = [
                (one.account, one.user, one.partition, one.parent, one.qos, one.default_qos, one.grp_jobs,
                 one.grp_submit, one.max_jobs, one.max_submit, tres(one.tres), wall(one.wall_minutes))
                for one in seen.associations
            ]  # fmt: skip
        elif kind == "qos":
            rows = [
                (one.name, one.flags, one.grp_jobs, one.grp_submit, one.max_jobs_per_user, one.max_submit_per_user,
                 tres(one.tres), wall(one.wall_minutes), one.description)
                for one in seen.qos.values()
            ]  # fmt: skip
        elif kind == "account":
            rows = [(name, seen.coordinators.get(name), text) for name, text in seen.descriptions.items()]
        else:
            rows = [(one.name, one.default_account, one.admin_level) for one in seen.users.values()]
        return "".join("|".join(shown(value) for value in row) + "\n" for row in rows)

    def held(self) -> str:
        """slurmctld's own view."""
        lines = ["Current Association Manager state"]
        for name, row in self.fake.accounts.items():
            limit = "N" if name in self.lagging or row.grp_submit is None else row.grp_submit
            lines.append(f"ClusterName=gs0 Account={name} UserName= GrpJobs={limit}(0) GrpSubmitJobs={limit}(0)")
        for name, user in self.fake.rows:
            lines.append(f"ClusterName=gs0 Account={name} UserName={user}(2001) GrpJobs=N(0) GrpSubmitJobs=N(0)")
        for name, qos in self.fake.qos.items():
            limit = "N" if name in self.lagging_qos or qos.grp_submit is None else qos.grp_submit
            lines.append(f"QOS={name}(3) GrpJobs={limit}(0) GrpSubmitJobs={limit}(0)")
        return "\n".join(lines)

    def batch(self, program: str, lines: Iterable[str]) -> str:
        for line in lines:
            self.calls.append(line)
            if any(part in line for part in self.deaf_to):
                continue
            if program == "scontrol":
                name, listed = line.removeprefix("update PartitionName=").split(" AllowAccounts=")
                self.fake.allow(name, listed.split(","))
            else:
                self.fake.do(line)
        return ""

    def load(self, lines: Iterable[str]) -> str:
        self.fake.load(lines)
        return ""

    def do(self, *command: str) -> str:
        self.calls.append(" ".join(command))
        options = dict(one.removeprefix("--").split("=") for one in command if "=" in one)
        if "user" in options:
            self.fake.cancel(options["account"], options["user"])
        else:
            self.fake.running = {key for key in self.fake.running if key[0] != options["account"]}
        return ""


def tres(values: Any) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


def wall(minutes: int | None) -> str | None:
    return None if minutes is None else f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCommands:
    monkeypatch.setattr(account_lists, "Ledger", lambda owner: Ledger(owner, tmp_path))
    monkeypatch.setattr(projects, "POLL_SECONDS", 0)
    return FakeCommands(FakeAccounting(partitions=dict.fromkeys(["main", A, B], frozenset({CLOSED}))))


def run(slurm: FakeCommands, goal: Wanted, tmp_path: Path, dry: bool = False, **more: Any) -> dict[str, Any]:
    made = projects.Projects(
        slurm, goal, "controller/projects", 0, lists=tmp_path / "lists", apply_lists=lambda: None,
        **{"resolve": lambda name: name, **more},
    )  # fmt: skip
    return made.converge(dry)


GOAL = wanted(account(A, "ann", gpus=2, wall_minutes=90), account(B, "bob"), main=[A], **{B: [B]})


def test_a_run_brings_all_about_and_the_next_changes_nothing(slurm: FakeCommands, tmp_path: Path) -> None:
    done = run(slurm, GOAL, tmp_path)
    assert slurm.fake.accepted() == {("ann", A, "main"), ("bob", B, B)}
    assert done["accounts"][A] == {"open": True, "present": True, "users": ["ann"], "users_with_jobs": 0}
    assert done["partitions"] == {"main": [A], A: [], B: [B]}
    assert (tmp_path / "lists").read_text().splitlines() == [
        f"update PartitionName=main AllowAccounts={CLOSED},{A}",
        f"update PartitionName={A} AllowAccounts={CLOSED}",
        f"update PartitionName={B} AllowAccounts={CLOSED},{B}",
    ]
    slurm.calls.clear()
    assert run(slurm, GOAL, tmp_path)["changes"] == [] and slurm.calls == []


class Counted(FakeCommands):
    """With the number of processes that the real commands would start. A batch without lines is none."""

    processes = 0

    def ask(self, *command: str) -> str:
        self.processes += 1
        return super().ask(*command)

    def batch(self, program: str, lines: Iterable[str]) -> str:
        given = list(lines)
        self.processes += bool(given)
        return super().batch(program, given)

    def load(self, lines: Iterable[str]) -> str:
        given = list(lines)
        self.processes += bool(given)
        return super().load(given)

    def do(self, *command: str) -> str:
        self.processes += 1
        return super().do(*command)


def test_500_identities_in_50_projects_take_as_many_commands_as_one_project(
    slurm: FakeCommands, tmp_path: Path
) -> None:
    def of(count: int) -> list[int]:
        """Commands of a run that makes these projects, of the next, and of one that changes a user of each."""
        names = [f"p_{number:012x}" for number in range(count)]
        fake = FakeAccounting(partitions={"main": frozenset({CLOSED})})
        made = []
        for shift in (0, 0, 1):
            accounts = [
                replace(
                    account(name, *(f"{name.replace('_', '')}u{one + shift}" for one in range(10))),
                    project_id=f"{name[2:10]}-{name[10:]}-4000-8000-000000000000",
                    memory=f"g1,{shift:012x}",
                )
                for name in names
            ]
            commands = Counted(fake)
            run(commands, Wanted("gs0", "t_000000000000", tuple(accounts), {"main": tuple(names)}), tmp_path)
            made.append(commands.processes)
            assert len(fake.accepted()) == 10 * count
        return made

    assert of(50) == of(1) == [25, 14, 23]


def test_a_dry_run_says_what_it_would_do_and_does_nothing(slurm: FakeCommands, tmp_path: Path) -> None:
    assert any(f"Account - '{A}'" in line for line in run(slurm, GOAL, tmp_path, dry=True)["changes"])
    assert slurm.calls == [] and not (tmp_path / "lists").exists() and slurm.fake.rows == {}


def test_nothing_opens_while_slurmdbd_shows_an_account_that_should_be_closed(
    slurm: FakeCommands, tmp_path: Path
) -> None:
    run(slurm, wanted(account(A, "ann"), main=[A]), tmp_path)
    slurm.deaf_to = (f"where name={A}",)
    with pytest.raises(AdapterError) as raised:
        run(slurm, wanted(account(A, "ann", opened=False), account(B, "bob"), main=[B]), tmp_path)
    assert raised.value.code == "projects_unproven" and A in raised.value.message
    assert not any(user == "bob" for user, _, _ in slurm.fake.accepted())


def test_nothing_opens_while_slurmctld_itself_has_an_account_open(slurm: FakeCommands, tmp_path: Path) -> None:
    run(slurm, wanted(account(A, "ann"), main=[A]), tmp_path)
    slurm.lagging = {A}
    with pytest.raises(AdapterError) as raised:
        run(slurm, wanted(account(A, "ann", opened=False), account(B, "bob"), main=[B]), tmp_path)
    assert raised.value.code == "projects_not_followed"
    assert slurm.fake.accepted() == set()


def test_nothing_opens_while_slurmctld_itself_has_a_qos_open(slurm: FakeCommands, tmp_path: Path) -> None:
    run(slurm, wanted(account(A, "ann", jobs=5), main=[A]), tmp_path)
    slurm.lagging_qos = {A}
    with pytest.raises(AdapterError) as raised:
        run(slurm, wanted(account(A, "ann", opened=False), account(B, "bob"), main=[B]), tmp_path)
    assert raised.value.code == "projects_not_followed" and f"QoS {A}" in raised.value.message


def test_closing_alone_waits_for_no_user_and_opens_nothing(slurm: FakeCommands, tmp_path: Path) -> None:
    run(slurm, wanted(account(A, "ann"), main=[A]), tmp_path)
    slurm.fake.pending = {(A, "ann")}
    goal = wanted(account(A, opened=False), account(B, "bob"), main=[B])
    done = run(slurm, goal, tmp_path, only_close=True, resolve=lambda name: None)
    assert slurm.fake.accepted() == set() and slurm.fake.pending == set()
    assert B not in slurm.fake.accounts and (A, "ann") in slurm.fake.rows, "nothing is made, and nothing removed"
    assert done["partitions"]["main"] == [] and A not in (tmp_path / "lists").read_text().splitlines()[0]
    slurm.calls.clear()
    assert run(slurm, goal, tmp_path, only_close=True)["changes"] == [] and slurm.calls == []
    run(slurm, goal, tmp_path)
    assert slurm.fake.accepted() == {("bob", B, "main")}


def test_closing_alone_is_proven(slurm: FakeCommands, tmp_path: Path) -> None:
    run(slurm, wanted(account(A, "ann"), main=[A]), tmp_path)
    slurm.deaf_to = (f"where name={A}",)
    with pytest.raises(AdapterError) as raised:
        run(slurm, wanted(account(A, "ann", opened=False)), tmp_path, only_close=True)
    assert raised.value.code == "projects_unproven"


def test_an_opening_that_did_not_happen_is_an_error(slurm: FakeCommands, tmp_path: Path) -> None:
    slurm.deaf_to = ("GrpSubmitJobs=-1",)
    with pytest.raises(AdapterError) as raised:
        run(slurm, GOAL, tmp_path)
    assert raised.value.code == "projects_unproven"


def test_between_the_phases_the_next_start_admits_no_one_new(slurm: FakeCommands, tmp_path: Path) -> None:
    slurm.deaf_to = ("GrpSubmitJobs=-1",)
    slurm.lagging = {CLOSED}
    with pytest.raises(AdapterError):
        run(slurm, GOAL, tmp_path)
    assert all(line.endswith(f"={CLOSED}") for line in (tmp_path / "lists").read_text().splitlines())


def test_jobs_of_a_cancelled_account_end_and_those_of_others_go_on(slurm: FakeCommands, tmp_path: Path) -> None:
    run(slurm, GOAL, tmp_path)
    slurm.fake.running = {(A, "ann"), (B, "bob")}
    goal = wanted(account(A, "ann", opened=False), account(B, "bob"), **{B: [B]})
    run(slurm, goal, tmp_path, cancelled=[A])
    assert slurm.fake.running == {(B, "bob")}


def test_jobs_of_another_project_are_not_cancelled_for_the_name_of_its_account(
    slurm: FakeCommands, tmp_path: Path
) -> None:
    run(slurm, GOAL, tmp_path)
    slurm.fake.running = {(A, "ann")}
    slurm.fake.descriptions[A] = project_id(B)
    run(slurm, wanted(account(A, "ann", opened=False)), tmp_path, cancelled=[A])
    assert slurm.fake.running == {(A, "ann")}


def test_a_user_that_does_not_resolve_is_reported_and_gets_nothing(slurm: FakeCommands, tmp_path: Path) -> None:
    done = run(slurm, GOAL, tmp_path, resolve=lambda name: None if name == "bob" else name)
    assert done["unresolved"] == ["bob"]
    assert slurm.fake.accepted() == {("ann", A, "main")}


@pytest.mark.parametrize(
    ("part", "answer"),
    [
        ("association", "root|\n"),
        ("qos", "normal|x|y\n"),
        ("account", "root\n"),
        ("partitions", "PartitionName=main\n"),
        ("assoc_mgr", "slurm_load_assoc_mgr_info error: Unable to contact slurm controller\n"),
        ("association", "a|b|c|d|e|f|many|||||\n"),
    ],
)
def test_an_answer_that_cannot_be_read_is_never_an_empty_one(
    slurm: FakeCommands, tmp_path: Path, part: str, answer: str
) -> None:
    slurm.answers = {part: answer}
    with pytest.raises(AdapterError) as raised:
        run(slurm, GOAL, tmp_path)
    assert raised.value.code == "accounting_unreadable"
    assert slurm.fake.accepted() == set()


def params(**changes: Any) -> dict[str, Any]:
    plain = {"cluster": "gs0", "tenant": "t_000000000000", "accounts": [], "partitions": {}, "cancelled": []}
    return {**plain, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"accounts": [{"name": "root", "project_id": project_id(A)}]},
        {"cancelled": [A]},
        {"accounts": [{"name": A, "project_id": project_id(A), "open": True}], "cancelled": [A]},
    ],
)
def test_a_list_that_cannot_be_used_is_refused_before_slurm_is_asked(changes: dict[str, Any]) -> None:
    with pytest.raises(AdapterError) as raised:
        slurm_projects.read_wanted(params(**changes))
    assert raised.value.code == "projects_refused"


def test_an_account_of_a_plain_list_is_read(slurm: FakeCommands) -> None:
    read = slurm_projects.read_wanted(params(accounts=[{"name": A, "project_id": project_id(A), "users": ["ann"]}]))
    assert read.accounts == (Account(A, project_id(A), False, ("ann",)),)


# -- what both versions print ------------------------------------------------------------------------------------------

FIXTURES = Path(__file__).parent / "fixtures" / "accounting"


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_recorded_answers_of_both_versions_are_read_alike(suite: str) -> None:
    def recorded(name: str) -> str:
        return (FIXTURES / suite / name).read_text()

    rows = {(one.account, one.user): one for one in parse_associations(recorded("association.txt"))}
    main, own, closed = "p_aaaaaaaa0000", "p_bbbbbbbb0000", rows[CLOSED, ""]
    assert (rows[main, ""].parent, rows[main, ""].qos, rows[main, ""].default_qos) == (
        "t_0a0000000000",
        frozenset({main}),
        main,
    )
    assert (rows[main, ""].grp_submit, closed.grp_submit, closed.grp_jobs) == (None, 0, 0)
    assert (rows[main, "ann"].qos, rows[main, "ann"].max_submit) == (frozenset({main}), None)
    qos = parse_qos(recorded("qos.txt"))
    assert qos[main].flags == frozenset({"DenyOnLimit"}) and qos[CLOSED].grp_submit == 0
    assert parse_lists(recorded("partitions.txt")) == {"main": frozenset({CLOSED, main}), own: frozenset({CLOSED, own})}
    held = parse_held(recorded("held.txt"))
    assert {CLOSED, "p_cccccccc0000"} <= held.closed_accounts and {main, own} <= held.open_accounts
    assert CLOSED in held.closed_qos and main not in held.closed_qos
    assert 1000 <= held.uids[main, "ann"] < 2**31


def test_the_fields_that_are_asked_for_are_those_that_are_read() -> None:
    assert len(ASSOCIATION_FIELDS.split(",")) == 12
    assert QOS_FIELDS.endswith(",description") and ACCOUNT_FIELDS.endswith(",description")
