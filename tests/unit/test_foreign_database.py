"""A database server of others: ours is made beside theirs or refused, and theirs is never adopted or restarted."""

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host import database as host_database
from ansible.module_utils.host import foreign_packages
from ansible.module_utils.host.database import (
    Server,
    check_database,
    converge_databases,
    drop_databases,
    foreign_databases,
)
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.ledger import Ledger


class FakeServer:
    """A MariaDB that answers what it is set to, and keeps every statement it was given."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.server = Server(installed=True, active=True, at_boot=True, state="active and enabled")
        self.databases: set[str] = {"shop"}
        self.users: dict[str, str] = {}
        self.read_only = "0"
        self.privileges = ["CREATE", "CREATE USER", "DROP", "SELECT"]
        self.validation: list[str] = []
        self.broken: str | None = None
        self.other: bool = False
        self.asked: list[str] = []
        self.starts = 0

    def rows(self, statements: str, **names: str) -> dict[str, list[str]]:
        self.asked.append(statements.format(**names))
        if self.broken:
            raise host_database._unusable(self.broken)
        name, user = names["name"], names["user"]
        if "CREATE DATABASE" in statements:
            self.databases.add(name)
            self.users[user] = names["digest"]
            return {}
        if "DROP DATABASE" in statements:
            self.databases.discard(name)
            self.users.pop(user, None)
            return {}
        found = {
            "database": [name] if name in self.databases else [],
            "user": ["localhost"] if user in self.users else [],
            "hash": [self.users[user]] if user in self.users else [],
            "grant": ["DELETE"] if user in self.users else [],
            "read_only": [self.read_only],
            "validation": self.validation,
            "privilege": self.privileges,
        }
        return {kind: rows for kind, rows in found.items() if rows and f"'{kind}'" in statements}

    def start(self) -> None:
        self.starts += 1


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    fake = FakeServer(tmp_path / "mysql")
    monkeypatch.setattr(host_database, "DATA", fake.data)
    monkeypatch.setattr(host_database, "SOCKET", tmp_path / "mysqld.sock")
    monkeypatch.setattr(host_database, "read_server", lambda: fake.server)
    monkeypatch.setattr(host_database, "listening", lambda _: fake.other)
    monkeypatch.setattr(host_database, "_rows", fake.rows)
    monkeypatch.setattr(host_database, "_start", fake.start)
    return fake


IDLE = Server(installed=True, active=False, at_boot=False, state="inactive and disabled")
ABSENT = Server(installed=False, active=False, at_boot=False, state="inactive and unknown")


def refused() -> AdapterError:
    with pytest.raises(AdapterError) as refusal:
        check_database("slurm_acct_db", "slurm")
    return refusal.value


def test_a_server_with_databases_of_others_can_have_ours(server: FakeServer) -> None:
    check_database("slurm_acct_db", "slurm")
    assert not any(
        verb in query for query in server.asked for verb in ("CREATE DATABASE", "DROP ", "ALTER ", "SET GLOBAL")
    )


def test_a_database_or_user_that_is_there_is_not_adopted(server: FakeServer) -> None:
    server.databases.add("slurm_acct_db")
    assert refused().code == "database_exists"
    server.databases.discard("slurm_acct_db")
    server.users["slurm"] = "*OTHER"
    refusal = refused()
    assert refusal.code == "database_exists" and "user slurm@localhost" in refusal.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"read_only": "1"}, "read-only"),
        ({"privileges": ["SELECT"]}, "CREATE USER"),
        ({"validation": ["simple_password_check"]}, "simple_password_check"),
        ({"broken": "Access denied for user 'root'@'localhost'"}, "Access denied"),
        ({"server": Server(True, False, True, "inactive and enabled")}, "inactive and enabled"),
        ({"server": Server(True, False, False, "failed and disabled")}, "failed"),
        ({"server": Server(True, False, False, "masked")}, "masked"),
        ({"server": IDLE, "other": True}, "port 3306"),
        ({"server": ABSENT, "other": True}, "port 3306"),
    ],
)
def test_a_server_that_cannot_have_it_is_refused_with_the_reason(
    server: FakeServer, change: dict[str, Any], message: str
) -> None:
    for name, value in change.items():
        setattr(server, name, value)
    refusal = refused()
    assert refusal.code == "database_unusable" and message in refusal.message, refusal.message


def test_an_idle_server_is_refused_only_for_a_database_of_that_name(server: FakeServer) -> None:
    server.server = IDLE
    (server.data / "shop").mkdir(parents=True)
    check_database("slurm_acct_db", "slurm")
    (server.data / "slurm_acct_db").mkdir()
    assert refused().code == "database_exists"


def test_the_data_of_a_server_that_was_removed_is_not_adopted(server: FakeServer) -> None:
    server.server = ABSENT
    check_database("slurm_acct_db", "slurm")
    server.data.mkdir()
    check_database("slurm_acct_db", "slurm")
    (server.data / "ibdata1").touch()
    assert refused().code == "database_exists"


PASSWORD = "a-password_of-20chars"
WANTED = [{"name": "slurm_acct_db", "user": "slurm", "password": PASSWORD}]


def test_the_database_is_made_once_and_a_new_password_is_set_by_sql(server: FakeServer) -> None:
    assert converge_databases(WANTED, dry=False) == ["database slurm_acct_db"]
    assert converge_databases(WANTED, dry=False) == []
    other = [{**WANTED[0], "password": PASSWORD.upper()}]
    assert converge_databases(other, dry=True) == ["database slurm_acct_db"]
    assert converge_databases(WANTED, dry=False) == []
    assert converge_databases(other, dry=False) == ["database slurm_acct_db"]
    assert PASSWORD not in "".join(server.asked) and PASSWORD.upper() not in "".join(server.asked)
    assert r"GRANT ALL ON `slurm\_acct\_db`.*" in "".join(server.asked), "a plain underscore grants more than one"
    assert server.databases == {"shop", "slurm_acct_db"}


def test_a_user_that_an_idle_server_did_not_show_is_not_adopted_either(server: FakeServer) -> None:
    server.users["slurm"] = "*OTHER"
    with pytest.raises(AdapterError) as refusal:
        converge_databases(WANTED, dry=False)
    assert refusal.value.code == "database_exists" and server.users == {"slurm": "*OTHER"}


def test_the_hash_is_the_servers_own() -> None:
    assert host_database.password_hash("password") == "*2470C0C06DEE42FD1618BB99005ADCA2EC9D1E19"


@pytest.mark.parametrize("password", ["short", "0123456789abcde'", "0123456789abcdef; DROP DATABASE shop"])
def test_a_password_that_could_leave_its_place_is_refused_unseen(server: FakeServer, password: str) -> None:
    with pytest.raises(AdapterError) as refusal:
        converge_databases([{**WANTED[0], "password": password}], dry=False)
    assert refusal.value.code == "secret_malformed" and password not in refusal.value.message and server.asked == []


NOTED = {"slurm_acct_db": {"present": False, "user": "slurm"}}


def test_ours_is_dropped_and_nothing_else(server: FakeServer) -> None:
    converge_databases(WANTED, dry=False)
    assert drop_databases(NOTED, may_start=False) == ["database slurm_acct_db"]
    assert (server.databases, server.users, server.starts) == ({"shop"}, {}, 0)
    assert drop_databases(NOTED, may_start=False) == []


def test_a_database_that_an_older_version_adopted_is_not_dropped(server: FakeServer) -> None:
    server.databases.add("slurm_acct_db")
    assert drop_databases({"slurm_acct_db": {"present": True, "user": "slurm"}}, may_start=True) == []
    assert server.asked == []


def test_a_server_that_was_stopped_by_hand_is_not_started_to_drop_ours(server: FakeServer) -> None:
    server.server = IDLE
    with pytest.raises(AdapterError) as refusal:
        drop_databases(NOTED, may_start=False)
    assert (refusal.value.code, server.starts, server.asked) == ("database_not_dropped", 0, [])


def test_a_server_that_did_not_run_before_us_is_started_only_while_ours_is_in_it(server: FakeServer) -> None:
    server.server = IDLE
    assert drop_databases(NOTED, may_start=True) == [] and server.starts == 0
    (server.data / "slurm_acct_db").mkdir(parents=True)
    drop_databases(NOTED, may_start=True)
    assert server.starts == 1


def test_databases_of_others_are_distinguished_from_the_servers_own_and_ours(server: FakeServer) -> None:
    assert foreign_databases(["slurm_acct_db"]) == []
    for name in ("mysql", "performance_schema", "sys", "slurm_acct_db", "#innodb_temp", "shop", "lost+found"):
        (server.data / name).mkdir(parents=True)
    (server.data / "ibdata1").touch()
    assert foreign_databases(["slurm_acct_db"]) == ["shop"]


def unit(**more: Any) -> dict[str, Any]:
    return {"name": "mariadb", "package": "mariadb-server", "watches": ["package:mariadb-server"], **more}


@pytest.fixture
def converged(monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> list[dict[str, Any]]:
    asked: list[dict[str, Any]] = []

    def converge_units(units: list[dict[str, Any]], _dry: bool) -> list[str]:
        asked.extend(units)
        return []

    monkeypatch.setattr(foreign_packages, "converge_units", converge_units)
    monkeypatch.setattr(foreign_packages, "converge_databases", lambda *_: [])
    return asked


def converge_services(ledger: Ledger, foreign: set[str]) -> None:
    params = {"units": [unit(restart=True)], "databases": WANTED}
    foreign_packages.converge_services(params, foreign, ledger, dry=False)


def test_a_server_that_ran_before_us_is_not_touched_and_must_run(
    tmp_path: Path, converged: list[dict[str, Any]], server: FakeServer
) -> None:
    ledger = Ledger("controller/slurmdbd", tmp_path / "state")
    ledger.note("unit", "mariadb", {"ActiveState": "active"})
    converge_services(ledger, {"mariadb-server"})
    assert converged == []
    server.server = IDLE
    with pytest.raises(AdapterError) as refusal:
        converge_services(ledger, {"mariadb-server"})
    assert refusal.value.code == "database_unusable" and converged == []


def test_a_server_that_was_installed_before_us_is_started_and_never_restarted(
    tmp_path: Path, converged: list[dict[str, Any]]
) -> None:
    ledger = Ledger("controller/slurmdbd", tmp_path / "state")
    ledger.note("unit", "mariadb", {"ActiveState": "inactive"})
    converge_services(ledger, {"mariadb-server"})
    assert [(one["watches"], one["restart"]) for one in converged] == [([], False)]
    converged.clear()
    converge_services(ledger, set())
    assert [(one["watches"], one["restart"]) for one in converged] == [(["package:mariadb-server"], True)]
