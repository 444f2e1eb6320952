"""Declared users on a host: made with their numbers, locked when no longer declared; other users stay untouched."""

import grp
import itertools
import os
import pwd
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host import users as users_module
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.host.users import check_users, converge_users

ADA = {"name": "ada", "uid": 2001, "gid": 2001, "shell": "/bin/bash"}
KEY = "ssh-ed25519 AAAA"
BEN = {"name": "ben", "uid": 2002, "gid": 2002, "shell": "/bin/bash"}


class FakeHost:
    """A host's users and groups, and the commands that change them."""

    def __init__(self, homes: Path) -> None:
        self.homes = homes
        self.users: dict[str, tuple[int, int, str]] = {"ops": (1000, 1000, "/bin/bash")}
        self.groups: dict[str, int] = {"ops": 1000}
        self.locked: set[str] = set()
        self.commands: list[str] = []

    def getpwnam(self, name: str) -> pwd.struct_passwd:
        uid, gid, shell = self.users[name]
        return pwd.struct_passwd((name, "x", uid, gid, "", str(self.homes / name), shell))

    def getpwuid(self, uid: int) -> pwd.struct_passwd:
        return (
            next((self.getpwnam(name) for name, user in self.users.items() if user[0] == uid), None) or self._absent()
        )

    def getgrnam(self, name: str) -> grp.struct_group:
        return grp.struct_group((name, "x", self.groups[name], []))

    def getgrgid(self, gid: int) -> grp.struct_group:
        return next((self.getgrnam(name) for name, one in self.groups.items() if one == gid), None) or self._absent()

    @staticmethod
    def _absent() -> Any:
        raise KeyError

    def command(self, *arguments: str) -> None:
        self.commands.append(arguments[0])
        name, options = arguments[-1], dict(itertools.pairwise(arguments))
        if arguments[0] == "groupadd":
            self.groups[name] = int(options["--gid"])
        elif arguments[0] == "useradd":
            self.users[name] = (int(options["--uid"]), int(options["--gid"]), options["--shell"])
            (self.homes / name).mkdir(exist_ok=True)
        elif "--expiredate" in options:
            (self.locked.add if options["--expiredate"] == "1" else self.locked.discard)(name)
        elif "--shell" in options:
            uid, gid, _ = self.users[name]
            self.users[name] = (uid, gid, options["--shell"])


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    (tmp_path / "home").mkdir()
    fake = FakeHost(tmp_path / "home")
    for module, names in ((pwd, ("getpwnam", "getpwuid")), (grp, ("getgrnam", "getgrgid"))):
        for name in names:
            monkeypatch.setattr(module, name, getattr(fake, name))
    monkeypatch.setattr(users_module, "HOMES", fake.homes)
    monkeypatch.setattr(users_module, "_command", fake.command)
    monkeypatch.setattr(users_module, "_is_locked", lambda name: name in fake.locked)
    return fake


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger("worker/slurmd", tmp_path / "state")


def refusal(user: dict[str, Any]) -> AdapterError:
    with pytest.raises(AdapterError) as raised:
        check_users([user])
    return raised.value


def test_users_are_made_once_and_noted_as_ours(host: FakeHost, ledger: Ledger) -> None:
    assert converge_users([ADA, BEN], {}, ledger, dry=False) == ["user ada", "user ben"]
    assert host.users["ada"] == (2001, 2001, "/bin/bash")
    assert ledger.entries["user:ada"]["before"]["present"] is False
    assert ledger.entries[f"home:{host.homes / 'ada'}"]["before"] == {"kind": "absent"}
    assert converge_users([ADA, BEN], {}, ledger, dry=False) == []


def test_who_is_declared_no_more_is_locked_and_who_comes_back_is_unlocked(host: FakeHost, ledger: Ledger) -> None:
    converge_users([ADA, BEN], {}, ledger, dry=False)
    assert converge_users([BEN], {}, ledger, dry=False) == ["user ada locked"]
    assert host.locked == {"ada"}
    assert "ada" in host.users
    assert converge_users([BEN], {}, ledger, dry=False) == []
    assert converge_users([ADA, BEN], {}, ledger, dry=False) == ["user ada unlocked"]
    assert host.locked == set()


def test_the_last_one_taken_off_the_list_is_locked_too(host: FakeHost, ledger: Ledger) -> None:
    converge_users([ADA], {}, ledger, dry=False)
    converge_users([], {}, ledger, dry=False)
    assert host.locked == {"ada"}


def test_without_a_list_no_user_is_touched(host: FakeHost, ledger: Ledger) -> None:
    converge_users([ADA], {}, ledger, dry=False)
    assert converge_users(None, {}, ledger, dry=False) == []
    assert host.locked == set()


def test_a_user_that_was_there_before_is_used_as_it_is_and_never_locked(host: FakeHost, ledger: Ledger) -> None:
    host.users["ada"], host.groups["ada"] = (2001, 2001, "/bin/zsh"), 2001
    assert converge_users([ADA], {"ada": ["a key"]}, ledger, dry=False) == []
    assert converge_users([], {}, ledger, dry=False) == []
    assert host.commands == []
    assert ledger.entries["user:ada"]["before"]["present"] is True


def _directory(path: Path) -> None:
    (path / "x").mkdir(parents=True)


def _loop(path: Path) -> None:
    path.parent.symlink_to(path.parent)


def _pipe(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    os.mkfifo(path.with_name(f".{path.name}.{os.getpid()}"))


def _not_text(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"\xff")


def _huge(path: Path) -> None:
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(2**43)


@pytest.mark.parametrize("trick", [_directory, _loop, _pipe, _not_text, _huge])
def test_nothing_in_the_home_of_a_user_keeps_others_from_their_changes(
    host: FakeHost, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, trick: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(users_module, "_as_user", lambda account: nullcontext())
    converge_users([ADA], {}, ledger, dry=False)
    trick(host.homes / "ada" / ".ssh" / "authorized_keys")
    converge_users([ADA, BEN], {"ada": [KEY], "ben": [KEY]}, ledger, dry=False)
    assert (host.homes / "ben" / ".ssh" / "authorized_keys").read_text() == f"{KEY}\n"
    assert converge_users([ADA, BEN], {"ben": [KEY]}, ledger, dry=False) == []


def test_a_dry_run_reports_and_changes_nothing(host: FakeHost, ledger: Ledger) -> None:
    assert converge_users([ADA], {}, ledger, dry=True) == ["user ada"]
    assert host.commands == []


@pytest.mark.parametrize(
    ("user", "code"),
    [
        ({**ADA, "uid": 1000}, "uid_taken"),
        ({**ADA, "gid": 1000}, "gid_taken"),
        ({**ADA, "name": "ops"}, "uid_mismatch"),
    ],
)
def test_a_number_that_another_user_has_is_refused(host: FakeHost, user: dict[str, Any], code: str) -> None:
    assert refusal(user).code == code
    assert host.commands == []


def test_a_group_of_that_name_with_another_number_is_refused(host: FakeHost) -> None:
    host.groups["ada"] = 4000
    assert refusal(ADA).code == "gid_taken"


def test_one_who_cannot_be_had_keeps_all_from_being_made(host: FakeHost, ledger: Ledger) -> None:
    with pytest.raises(AdapterError):
        converge_users([ADA, {**BEN, "uid": 1000}], {}, ledger, dry=False)
    assert host.commands == []


def test_a_home_that_another_user_has_is_refused(host: FakeHost) -> None:
    (host.homes / "ada").mkdir()  # owned by whoever runs this test
    assert refusal(ADA).code == "home_in_the_way"
