"""Who may submit where on a shared cluster: for any attachments, any changes by hand, and at every step in between.

Over 300 lines, because every rule is tried on the same accounts.
"""

from dataclasses import replace
from typing import Any

import pytest
from ansible.module_utils.slurm.accounting_state import (
    CLOSED,
    MEMORY_CHARS,
    Account,
    Association,
    Limits,
    Qos,
    Wanted,
    as_memory,
    remembered,
)
from ansible.module_utils.slurm.accounting_steps import Steps, plan
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.fake_accounting import FakeAccounting

TENANT, CLUSTER = "t_000000000000", "gs0"
NAMES = [f"p_{letter * 12}" for letter in "abc"]
A, B, C = NAMES
USERS = ["ann", "bob", "cat", "dan"]
PARTITIONS = ["main", A, B]


def project_id(name: str) -> str:
    return f"{name[2:10]}-{name[2:6]}-4000-8000-000000000000"


def account(name: str, *users: str, opened: bool = True, **limits: int) -> Account:
    return Account(name, project_id(name), opened, tuple(users), Limits(**limits))


def wanted(*accounts: Account, **lists: list[str]) -> Wanted:
    return Wanted(CLUSTER, TENANT, accounts, {name: tuple(lists.get(name, ())) for name in PARTITIONS})


def fresh() -> FakeAccounting:
    """A cluster right after its first deploy: its partitions list the account that admits no one."""
    return FakeAccounting(partitions=dict.fromkeys(PARTITIONS, frozenset({CLOSED})))


def parts(fake: FakeAccounting, steps: Steps) -> Any:
    """Each single change of a run, as something to call; between any two of them users go on submitting."""
    for line in (*steps.foundation,):
        yield lambda line=line: fake.do(line)
    for name, listed in steps.narrowed.items():
        yield lambda name=name, listed=listed: fake.allow(name, listed)
    for line in steps.closing:
        yield lambda line=line: fake.do(line)
    for key in steps.cancelled:
        yield lambda key=key: fake.cancel(*key)
    yield lambda: fake.load(steps.loading)
    for line in (*steps.settling, *steps.opening):
        yield lambda line=line: fake.do(line)
    for name, listed in steps.lists.items():
        yield lambda name=name, listed=listed: fake.allow(name, listed)


def apply(fake: FakeAccounting, goal: Wanted) -> Steps:
    steps = plan(goal, fake.seen())
    for part in parts(fake, steps):
        part()
    return steps


def allowed(goal: Wanted) -> set[tuple[str, str, str]]:
    """The specification: user, account and partition of what is to be accepted."""
    return {
        (user, one.name, partition)
        for one in goal.accounts
        if one.open
        for partition, listed in goal.partitions.items()
        if one.name in listed
        for user in one.users
    }


# -- by example --------------------------------------------------------------------------------------------------------


def test_one_may_submit_to_main_another_to_its_own_workers_a_third_nowhere() -> None:
    fake = fresh()
    goal = wanted(account(A, "ann"), account(B, "bob"), account(C, "cat", opened=False), main=[A], **{B: [B]})
    apply(fake, goal)
    assert fake.accepted() == {("ann", A, "main"), ("bob", B, B)}
    assert plan(goal, fake.seen()).idle


def test_an_account_is_created_closed_and_opened_last() -> None:
    fake = fresh()
    apply(fake, wanted(account(A, "ann"), main=[A]))
    [made] = [line for line in fake.lines if line.startswith(f"Account - '{A}'")]
    assert "GrpJobs=0:GrpSubmitJobs=0" in made
    opened = [place for place, line in enumerate(fake.lines) if "GrpSubmitJobs=-1" in line]
    assert min(opened) > max(place for place, line in enumerate(fake.lines) if line.startswith("User - "))


def test_a_suspension_stands_on_the_account_and_on_its_qos_and_in_no_list() -> None:
    fake, goal = fresh(), wanted(account(A, "ann"), main=[A])
    apply(fake, goal)
    fake.running.add((A, "ann"))
    apply(fake, wanted(account(A, "ann", opened=False)))
    row, qos = fake.accounts[A], fake.qos[A]
    assert (row.grp_jobs, row.grp_submit, qos.grp_jobs, qos.grp_submit) == (0, 0, 0, 0)
    assert fake.partitions["main"] == frozenset({CLOSED})
    assert (A, "ann") in fake.rows and (A, "ann") in fake.running


def test_an_account_that_is_not_listed_is_closed_and_keeps_its_users() -> None:
    fake = fresh()
    apply(fake, wanted(account(A, "ann"), account(B, "bob"), main=[A, B]))
    apply(fake, wanted(account(B, "bob"), main=[B]))
    assert fake.accepted() == {("bob", B, "main")}
    assert (A, "ann") in fake.rows


def test_a_removed_user_is_closed_while_a_job_runs_and_gone_after_it() -> None:
    fake = fresh()
    apply(fake, wanted(account(A, "ann", "bob"), main=[A]))
    fake.running.add((A, "bob"))
    fake.pending.add((A, "bob"))
    goal = wanted(account(A, "ann"), main=[A])
    steps = apply(fake, goal)
    assert steps.cancelled == ((A, "bob"),) and not fake.pending
    assert fake.rows[A, "bob"].max_submit == 0 and (A, "bob") in fake.running
    fake.running.clear()
    apply(fake, goal)
    assert (A, "bob") not in fake.rows and "bob" not in fake.defaults
    assert plan(goal, fake.seen()).idle


def test_the_default_account_stays_while_it_can_and_moves_before_it_goes() -> None:
    fake = fresh()
    apply(fake, wanted(account(B, "ann"), main=[B]))
    apply(fake, wanted(account(A, "ann"), account(B, "ann"), main=[A, B]))
    assert fake.defaults["ann"] == B
    apply(fake, wanted(account(A, "ann"), account(B), main=[A, B]))
    assert fake.defaults["ann"] == A and (B, "ann") not in fake.rows


def test_a_user_who_leaves_two_projects_with_a_job_in_one_keeps_a_default_account() -> None:
    fake = fresh()
    apply(fake, wanted(account(A, "ann"), account(B, "ann"), main=[A, B]))
    fake.running.add((B, "ann"))
    goal = wanted(account(A), account(B), main=[A, B])
    apply(fake, goal)
    assert set(fake.rows) == {(B, "ann")} and fake.defaults == {"ann": B}
    fake.running.clear()
    apply(fake, goal)
    assert not fake.rows and plan(goal, fake.seen()).idle


def test_limits_stand_on_the_account_and_on_its_qos_and_go_away_again() -> None:
    fake = fresh()
    apply(fake, wanted(account(A, "ann", gpus=2, cpus=8, jobs=3, wall_minutes=90), main=[A]))
    for one in (fake.accounts[A], fake.qos[A]):
        assert (one.grp_jobs, one.wall_minutes, one.tres) == (3, 90, {"cpu": 8, "gres/gpu": 2})
    assert fake.qos[A].flags == {"DenyOnLimit"}
    apply(fake, wanted(account(A, "ann"), main=[A]))
    for one in (fake.accounts[A], fake.qos[A]):
        assert (one.grp_jobs, one.wall_minutes, one.tres) == (None, None, {})


def test_an_account_of_another_project_under_the_same_name_is_refused() -> None:
    fake = fresh()
    apply(fake, wanted(account(A, "ann"), main=[A]))
    other = replace(account(A, "eve"), project_id="99999999-0000-4000-8000-000000000000")
    steps = apply(fake, wanted(other, main=[A]))
    assert steps.refused == (A,)
    assert fake.accepted() == set() and fake.descriptions[A] == project_id(A)
    assert (A, "eve") not in fake.rows


def test_a_user_that_the_controller_does_not_resolve_gets_no_association() -> None:
    fake, goal = fresh(), wanted(account(A, "ann", "bob"), main=[A])
    steps = plan(goal, fake.seen(), unresolved=["bob"])
    for part in parts(fake, steps):
        part()
    assert set(fake.rows) == {(A, "ann")}
    assert plan(goal, fake.seen(), unresolved=["bob"]).idle


def test_a_deleted_account_does_not_open_its_partition_and_comes_back_closed_first() -> None:
    fake, goal = fresh(), wanted(account(A, "ann"), account(B, "bob"), main=[A], **{B: [B]})
    apply(fake, goal)
    del fake.accounts[A], fake.rows[A, "ann"], fake.defaults["ann"]
    assert fake.accepted() == {("bob", B, B)}
    steps = apply(fake, goal)
    assert any(line.startswith(f"Account - '{A}'") for line in steps.loading)
    assert fake.accepted() == {("ann", A, "main"), ("bob", B, B)}


def test_other_entries_of_a_person_are_listed_and_left() -> None:
    fake = fresh()
    fake.do("add account physics cluster=gs0")
    fake.do("add user eve cluster=gs0 account=physics defaultaccount=physics")
    fake.allow("main", [CLOSED])
    steps = apply(fake, wanted(account(A, "ann"), main=[A]))
    assert steps.foreign == ("account physics with 1 user",)
    assert ("physics", "eve") in fake.rows and fake.accounts["physics"].grp_submit is None


def test_the_text_of_former_users_stays_within_what_slurm_keeps() -> None:
    def of(first: int) -> Wanted:
        memory = as_memory({f"{one:012x}": f"{one:012x}" for one in range(first, first + 2000)})
        return wanted(replace(account(A, "ann"), memory=memory), main=[A])

    fake = fresh()
    for _ in range(2):
        apply(fake, of(0))
    fake.qos[A] = replace(fake.qos[A], description=fake.qos[A].description + ",ffffffffffff=zed:20001:20001")
    for first in (2000, 4000, 6000):
        apply(fake, of(first))
        kept = remembered(fake.qos[A].description)
        assert len(fake.qos[A].description) <= MEMORY_CHARS and set(remembered(of(first).accounts[0].memory)) <= set(
            kept
        )
        assert "ffffffffffff" in kept, "who has a name of its own stays"
        assert plan(of(first), fake.seen()).idle


def test_500_users_in_50_projects_take_a_few_calls() -> None:
    accounts = [account(f"p_{number:012x}", *(f"u{number}n{one}" for one in range(10))) for number in range(50)]
    goal = Wanted(CLUSTER, TENANT, tuple(accounts), {"main": tuple(one.name for one in accounts)})
    fake = FakeAccounting(partitions={"main": frozenset({CLOSED})})
    steps = plan(goal, fake.seen())
    assert len(steps.foundation) + len(steps.closing) + len(steps.settling) + len(steps.opening) <= 8
    assert len(steps.loading) == 1 + 1 + 50 + 50 + 500
    apply(fake, goal)
    assert len(fake.accepted()) == 500 and plan(goal, fake.seen()).idle


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "root"},
        {"cluster": "gs0 where"},
        {"accounts": [{"name": "p_x", "project_id": project_id(A)}]},
        {"accounts": [{"name": A, "project_id": "x\nadd user eve"}]},
        {"accounts": [{"name": A, "project_id": project_id(A), "users": ["eve account=root"]}]},
        {"accounts": [{"name": A, "project_id": project_id(A), "limits": {"cpus": "4"}}]},
        {"accounts": [{"name": A, "project_id": project_id(A), "limits": {"nodes": 4}}]},
        {"accounts": [{"name": A, "project_id": project_id(A), "open": "yes"}]},
        {"accounts": [{"name": A, "project_id": project_id(A), "memory": "x' y"}]},
        {"accounts": [{"name": A, "project_id": project_id(A)}] * 2},
        {"partitions": {"main": [A]}},
        {"partitions": {"main": ["ALL"]}},
        {"partitions": {"main Nodes=ALL": []}},
    ],
)
def test_what_could_do_more_than_name_something_is_refused(change: dict[str, Any]) -> None:
    plain = {"cluster": CLUSTER, "tenant": TENANT, "accounts": [], "partitions": {}}
    assert Wanted.read(plain) == Wanted(CLUSTER, TENANT, (), {})
    with pytest.raises(ValueError):
        Wanted.read({**plain, **change})


def test_what_is_wanted_survives_the_way_to_the_host() -> None:
    goal = wanted(account(A, "ann", gpus=2), account(B, opened=False), main=[A])
    assert Wanted.read(goal.plain()) == replace(goal, partitions={name: goal.partitions[name] for name in PARTITIONS})


# -- by property -------------------------------------------------------------------------------------------------------


@st.composite
def goals(draw: st.DrawFn) -> Wanted:
    accounts = [
        Account(
            name,
            project_id(name),
            draw(st.booleans()),
            tuple(draw(st.sets(st.sampled_from(USERS), max_size=3))),
            Limits(jobs=draw(st.sampled_from([None, 2]))),
        )
        for name in draw(st.sets(st.sampled_from(NAMES)))
    ]
    may = [one.name for one in accounts if one.open]
    subset = st.sets(st.sampled_from(may)) if may else st.just(set[str]())
    return Wanted(CLUSTER, TENANT, tuple(accounts), {name: tuple(sorted(draw(subset))) for name in PARTITIONS})


def mischief(fake: FakeAccounting, kind: str, name: str, user: str) -> None:
    """What a person does on the controller, as far as Slurm takes it."""
    if kind == "partition":
        fake.partitions["extra"] = None
    elif kind == "unlisted":
        fake.partitions["main"] = None
    elif kind == "operator" and user in fake.defaults:
        fake.levels[user] = "Operator"
    if name not in fake.accounts:
        return
    if kind == "association":
        fake.rows.setdefault((name, user), Association(name, user))
        fake.defaults.setdefault(user, name)
    elif kind == "open":
        fake.accounts[name] = replace(fake.accounts[name], grp_jobs=None, grp_submit=None)
        if name in fake.qos:
            fake.qos[name] = replace(fake.qos[name], grp_submit=100, max_submit_per_user=5)
    elif kind == "qos":
        fake.qos["big"] = Qos("big", grp_submit=1000, max_submit_per_user=1000)
        fake.accounts[name] = replace(fake.accounts[name], qos=frozenset({name, "big"}))
        for key, row in fake.rows.items():
            if key == (name, user):
                fake.rows[key] = replace(row, qos=frozenset({"big"}))
    elif kind == "below":
        fake.qos.setdefault("big", Qos("big", grp_submit=1000, max_submit_per_user=1000))
        fake.accounts["sub"] = Association("sub", parent=name, qos=frozenset({"big"}))
        fake.rows["sub", user] = Association("sub", user)
        fake.defaults.setdefault(user, "sub")
    elif kind == "moved" and name != NAMES[0] and NAMES[0] in fake.accounts:
        fake.accounts[name] = replace(fake.accounts[name], parent=NAMES[0])
    elif kind == "deleted":
        gone = [key for key in fake.rows if key[0] == name]
        if not any(key in fake.running | fake.pending for key in gone):
            del fake.accounts[name]
            for key in gone:
                del fake.rows[key]
                if not any(other[1] == key[1] for other in fake.rows):
                    fake.defaults.pop(key[1], None)
                elif fake.defaults[key[1]] == name:
                    fake.defaults[key[1]] = next(other[0] for other in fake.rows if other[1] == key[1])


DEEDS = st.tuples(
    st.sampled_from(["association", "open", "qos", "below", "moved", "deleted", "partition", "unlisted", "operator"]),
    st.sampled_from([*NAMES, CLOSED]),
    st.sampled_from(USERS),
)


def test_no_user_of_a_project_stays_coordinator_above_or_below_its_account() -> None:
    fake, goal = fresh(), wanted(account(A, "ann"), main=[A])
    apply(fake, goal)
    mischief(fake, "below", A, "cat")
    fake.accounts["other"] = Association("other", parent="root")
    fake.coordinators = {"root": {"ann", "ops"}, "sub": {"cat"}, "other": {"zed"}}
    assert any("ann was coordinator of root" in one for one in apply(fake, goal).closed_foreign)
    assert fake.coordinators == {"root": {"ops"}, "sub": set(), "other": {"zed"}}
    assert plan(goal, fake.seen()).idle


def test_an_account_below_a_listed_one_that_a_person_made_admits_none() -> None:
    fake, goal = fresh(), wanted(account(A, "ann"), main=[A])
    apply(fake, goal)
    mischief(fake, "below", A, "cat")
    assert ("cat", "sub", "main") in fake.accepted()
    apply(fake, goal)
    assert fake.accepted() == {("ann", A, "main")}


@given(st.lists(goals(), min_size=1, max_size=4), st.data())
@settings(max_examples=60, deadline=None)
def test_who_is_not_allowed_cannot_submit_at_any_step(history: list[Wanted], data: st.DataObject) -> None:
    """Whatever was wanted before, between two changes of a run only what was allowed before or is now gets through."""
    fake, before = fresh(), set[tuple[str, str, str]]()
    for goal in history:
        now = allowed(goal)
        steps = plan(goal, fake.seen())
        for part in parts(fake, steps):
            part()
            assert fake.accepted() <= before | now
        assert fake.accepted() == now
        assert plan(goal, fake.seen()).idle or any(key in fake.running for key in fake.rows)
        assert all((account, user) in fake.rows for user, account in fake.defaults.items())
        before = now
        fake.running = data.draw(st.sets(st.sampled_from(sorted(fake.rows)), max_size=1)) if fake.rows else set()


@given(goals(), st.lists(DEEDS, max_size=4), goals())
@settings(max_examples=120, deadline=None)
def test_what_a_person_opened_by_hand_is_closed_again(
    first: Wanted, deeds: list[tuple[str, str, str]], goal: Wanted
) -> None:
    fake = fresh()
    apply(fake, first)
    for deed in deeds:
        mischief(fake, *deed)
    open_by_hand, now = fake.accepted(), allowed(goal)
    steps = plan(goal, fake.seen())
    for part in parts(fake, steps):
        part()
        assert fake.accepted() <= open_by_hand | now
    apply(fake, goal)  # what depends on what the first run has changed
    assert fake.accepted() == now
    assert plan(goal, fake.seen()).idle
    users = {user for one in goal.accounts for user in one.users}
    assert all(fake.levels.get(user, "None") == "None" for user in users)


@given(goals(), st.data())
@settings(max_examples=40, deadline=None)
def test_a_run_that_is_killed_anywhere_leaves_nothing_open_and_the_next_finishes(
    goal: Wanted, data: st.DataObject
) -> None:
    fake = fresh()
    steps = list(parts(fake, plan(goal, fake.seen())))
    for part in steps[: data.draw(st.integers(0, len(steps)))]:
        part()
    assert fake.accepted() <= allowed(goal)
    apply(fake, goal)
    assert fake.accepted() == allowed(goal)
