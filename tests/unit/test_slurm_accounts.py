"""Accounts and associations in the order that Slurm needs; users who left are closed, and others' changes stay."""

import pwd
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.slurm.accounts import converge

OPS = {"users": ["ops"], "account": "default", "cluster": "gs0"}
ADA, BEN = {"name": "ada", "account": "physics"}, {"name": "ben", "account": "default"}


class FakeDatabase:
    """slurmdbd as sacctmgr shows it, and the changes it got."""

    def __init__(self, ledger: Path) -> None:
        self.ledger = ledger
        self.clusters: set[str] = set()
        self.limits: dict[tuple[str, str], str] = {}
        self.defaults: dict[str, str] = {}
        self.changes: list[str] = []

    def rows(self, *query: str) -> list[list[str]]:
        if query[0] == "cluster":
            return [[name] for name in sorted(self.clusters)]
        if query[0] == "association":
            return [[account, user, limit] for (account, user), limit in sorted(self.limits.items())]
        return [[user, account] for user, account in sorted(self.defaults.items())]

    def change(self, *arguments: str) -> None:
        self.changes.append(" ".join(arguments))
        given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
        if arguments[:2] == ("add", "cluster"):
            self.clusters.add(arguments[2])
        elif arguments[:2] == ("add", "account"):
            assert self.clusters, "an account needs its cluster"
            self.limits[arguments[2], ""] = ""
        elif arguments[:2] == ("add", "user"):
            assert (given["account"], "") in self.limits, "an association needs its account"
            self.limits[given["account"], arguments[2]] = ""
            self.defaults[arguments[2]] = given["defaultaccount"]
        elif "maxsubmitjobs" in given:
            self.limits[given["account"], arguments[2]] = given["maxsubmitjobs"].replace("-1", "")
        elif "defaultaccount" in given:
            self.defaults[arguments[2]] = given["defaultaccount"]

    def may_submit(self, user: str, account: str) -> bool:
        return self.limits.get((account, user)) == ""


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDatabase:
    unix_users = {"ops", "ada", "ben"}

    def getpwnam(name: str) -> pwd.struct_passwd:
        if name not in unix_users:
            raise KeyError(name)
        return pwd.struct_passwd((name, "x", 1, 1, "", "/", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)
    return FakeDatabase(tmp_path)


def have(database: FakeDatabase, users: list[dict[str, Any]] | None, dry: bool = False) -> list[str]:
    return converge(database, {**OPS, "declared_users": users}, Ledger("controller/slurmdbd", database.ledger), dry)


def test_cluster_account_and_association_are_made_in_that_order_and_once(database: FakeDatabase) -> None:
    have(database, [ADA, BEN])
    assert database.may_submit("ada", "physics")
    assert database.may_submit("ben", "default")
    assert database.defaults == {"ops": "default", "ada": "physics", "ben": "default"}
    database.changes.clear()
    assert have(database, [ADA, BEN]) == []
    assert database.changes == []


def test_who_is_declared_no_more_can_submit_no_more_and_opens_again_when_back(database: FakeDatabase) -> None:
    have(database, [ADA, BEN])
    assert have(database, [BEN]) == ["user ada closed"]
    assert not database.may_submit("ada", "physics")
    assert ("physics", "ada") in database.limits  # closed, not deleted: jobs that run use it
    assert have(database, [BEN]) == []
    assert have(database, [ADA, BEN]) == ["user ada opened"]
    assert database.may_submit("ada", "physics")


def test_another_account_opens_before_the_old_one_closes(database: FakeDatabase) -> None:
    have(database, [ADA])
    have(database, [{"name": "ada", "account": "biology"}])
    assert database.defaults["ada"] == "biology"
    assert database.may_submit("ada", "biology")
    assert not database.may_submit("ada", "physics")


def test_without_a_list_no_user_is_closed(database: FakeDatabase) -> None:
    have(database, [ADA])
    assert have(database, None) == []
    assert database.may_submit("ada", "physics")


def test_what_a_person_made_is_never_closed(database: FakeDatabase) -> None:
    have(database, [])
    database.limits |= {("default", "ben"): "", ("default", "eve"): ""}
    have(database, [BEN])
    have(database, [])
    assert database.may_submit("ben", "default")
    assert database.may_submit("eve", "default")


def test_a_user_that_does_not_resolve_is_refused_since_slurm_caches_that(database: FakeDatabase) -> None:
    with pytest.raises(AdapterError) as raised:
        have(database, [{"name": "not-here", "account": "default"}])
    assert raised.value.code == "user_missing"


def test_a_dry_run_changes_nothing(database: FakeDatabase) -> None:
    assert have(database, [ADA], dry=True)
    assert database.changes == []
