"""Other ways to become root on a contributed host: each is named, and what cannot be read counts as one."""

import json
import pwd
from pathlib import Path
from typing import Any

import pytest

from plugins.module_utils.host import root_access
from plugins.module_utils.host.errors import AdapterError

OWN = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOwnOwnOwnOwnOwnOwnOwnOwnOwnOwnOwnOwnOwnOwnO"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8y7O0l4YnFQe1oVh1xG8wVd1c7eQyM0z5mQz3xT9aB"
SSHD = (
    "authorizedkeysfile .ssh/authorized_keys .ssh/authorized_keys2\nauthorizedkeyscommand none\ntrustedusercakeys none"
)


class Machine:
    """A host: its users and groups, what sudo and sshd say, and its files below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.users: list[pwd.struct_passwd] = []
        self.groups: dict[str, tuple[int, list[str]]] = {"sudo": (27, [])}
        self.shadow = {"root": "*", "ops": "!"}
        self.sudo: Any = [{"User_List": [{"username": "root"}]}, {"User_List": [{"usergroup": "sudo"}]}]
        self.sshd: str | None = SSHD
        self.add("root", 0)
        self.add("ops", 1000)
        self.sudo.append({"User_List": [{"username": "ops"}]})
        self.keys("ops", OWN)
        (root / "sudoers").touch()

    def add(self, name: str, uid: int, gid: int | None = None) -> None:
        home = self.root / name
        self.users.append(pwd.struct_passwd((name, "x", uid, uid if gid is None else gid, "", str(home), "/bin/sh")))

    def keys(self, name: str, *lines: str, file: str = ".ssh/authorized_keys") -> None:
        path = self.root / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))

    def user(self, name: str) -> pwd.struct_passwd:
        return next(one for one in self.users if one.pw_name == name) if self.has(name) else _raise(KeyError(name))

    def has(self, name: str) -> bool:
        return any(one.pw_name == name for one in self.users)

    def group(self, name: str) -> Any:
        import grp

        found = self.groups.get(name)
        return grp.struct_group((name, "x", found[0], found[1])) if found else None

    def run(self, *command: str) -> str | None:
        if command[0] == "cvtsudoers":
            return None if self.sudo is None else json.dumps({"User_Specs": self.sudo})
        return self.sshd

    def ways(self) -> list[str]:
        (self.root / "shadow").write_text("".join(f"{name}:{text}:1::::::\n" for name, text in self.shadow.items()))
        return root_access.foreign_root(OWN, "ops")


def _raise(error: Exception) -> Any:
    raise error


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(pwd, "getpwall", lambda: made.users)
    monkeypatch.setattr(pwd, "getpwnam", made.user)
    monkeypatch.setattr(root_access, "find_group", made.group)
    monkeypatch.setattr(root_access, "_run", made.run)
    monkeypatch.setattr(root_access, "SUDOERS", tmp_path / "sudoers")
    monkeypatch.setattr(root_access, "SHADOW", tmp_path / "shadow")
    return made


def test_a_plain_machine_with_our_key_alone_has_no_other_way(machine: Machine) -> None:
    assert machine.ways() == []


def test_the_own_key_is_recognized_with_options_and_comment(machine: Machine) -> None:
    machine.keys("ops", f'from="10.0.0.0/8",no-pty {OWN} the platform', "# a comment", "")
    machine.keys("root", f'command="echo log in as ops" {OWN}')
    assert machine.ways() == []


@pytest.mark.parametrize("name", ["root", "ops"])
@pytest.mark.parametrize("file", [".ssh/authorized_keys", ".ssh/authorized_keys2"])
def test_another_key_is_named_by_fingerprint_and_comment(machine: Machine, name: str, file: str) -> None:
    machine.keys(name, f"{OTHER} somebody@else", file=file)
    (way,) = machine.ways()
    assert way.startswith("key SHA256:") and "somebody@else" in way and f"{name}/{file}" in way


@pytest.mark.parametrize(
    "line",
    [
        f"{OTHER} {OWN.split()[1]}",
        f"{OTHER} {OWN}",
        f'command="{OWN}" {OTHER}',
        f'environment="A=\\" {OWN}",no-pty {OTHER}',
        f"no-pty {OTHER} {OWN}",
        f'command="a\\\\" {OWN} " {OTHER}',
    ],
)
def test_another_key_does_not_pass_for_ours_by_its_comment_or_options(machine: Machine, line: str) -> None:
    machine.keys("root", line)
    assert [way.partition(" in ")[0].split()[0] for way in machine.ways()] == ["key"]


@pytest.mark.parametrize("text", ["", "$y$j9T$salt$hash"])
def test_a_password_beside_the_shadow_file_is_a_way(machine: Machine, text: str) -> None:
    machine.users = [one for one in machine.users if one.pw_name != "root"]
    machine.users.append(pwd.struct_passwd(("root", text, 0, 0, "", str(machine.root / "root"), "/bin/sh")))
    assert machine.ways() == ["user root has a password"]


def test_a_line_that_cannot_be_read_is_named_too(machine: Machine) -> None:
    machine.keys("root", "cert-authority what-is-this")
    assert "of an unknown form" in machine.ways()[0]


@pytest.mark.parametrize("name", ["root", "ops"])
def test_a_file_of_keys_that_cannot_be_read_is_named_too(machine: Machine, name: str) -> None:
    path = machine.root / name / ".ssh" / "authorized_keys2"
    path.mkdir(parents=True)
    assert machine.ways() == [f"{path}, with keys of user {name}, cannot be read"]


@pytest.mark.parametrize("file", ["SHADOW", "NSSWITCH"])
def test_a_file_about_logins_that_cannot_be_read_is_named_too(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str
) -> None:
    monkeypatch.setattr(root_access, file, tmp_path)
    (way,) = machine.ways()
    assert str(tmp_path) in way


def test_keys_where_sshd_looks_for_them_count(machine: Machine) -> None:
    machine.sshd = SSHD.replace(".ssh/authorized_keys .ssh/authorized_keys2", f"{machine.root}/keys/%u %h/k")
    machine.keys("keys", OTHER, file="root")
    machine.keys("ops", OTHER, file="k")
    assert [way.rpartition(" in ")[2] for way in machine.ways()] == [
        f"{machine.root}/ops/k",
        f"{machine.root}/keys/root",
    ]


@pytest.mark.parametrize(
    ("setting", "value"), [("authorizedkeyscommand", "/usr/bin/keys"), ("trustedusercakeys", "/etc/ssh/ca.pub")]
)
def test_other_sources_of_logins_are_named(machine: Machine, setting: str, value: str) -> None:
    machine.sshd = (
        "\n".join(line for line in SSHD.splitlines() if not line.startswith(setting)) + f"\n{setting} {value}"
    )
    assert any(setting in way and value in way for way in machine.ways())


def test_another_user_with_uid_0_is_named_with_its_keys(machine: Machine) -> None:
    machine.add("toor", 0)
    machine.keys("toor", OTHER)
    assert [way.split(" ")[0] for way in machine.ways()] == ["user", "key"]


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        ({"username": "eve"}, "user eve"),
        ({"username": "ALL"}, "username ALL"),
        ({"userid": 1001}, "userid 1001"),
        ({"netgroup": "admins"}, "netgroup admins"),
        ({"nonunixgroup": "x"}, "nonunixgroup x"),
    ],
    ids=str,
)
def test_who_sudo_lets_in_is_named(machine: Machine, entry: dict[str, Any], shown: str) -> None:
    machine.sudo.append({"User_List": [entry]})
    assert [way for way in machine.ways() if "sudo" in way] == [f"sudo lets {shown} in"]


def test_members_of_a_group_that_sudo_lets_in_are_named_with_their_keys(machine: Machine) -> None:
    machine.add("eve", 1001)
    machine.add("tom", 1002, gid=27)
    machine.groups["sudo"] = (27, ["eve", "ops"])
    machine.keys("eve", OTHER)
    ways = machine.ways()
    assert [way for way in ways if "sudo" in way] == [
        f"sudo lets user {name} in as a member of group sudo" for name in ("eve", "tom")
    ]
    assert any(f"{machine.root}/eve" in way for way in ways)


def test_a_group_that_is_as_good_as_root_is_named(machine: Machine) -> None:
    machine.add("eve", 1001)
    machine.groups["docker"] = (99, ["eve"])
    assert machine.ways() == ["user eve is in group docker"]


@pytest.mark.parametrize(("text", "is_way"), [("$6$x", True), ("", True), ("!$6$x", False), ("*", False)])
def test_a_usable_password_is_a_way(machine: Machine, text: str, is_way: bool) -> None:
    machine.shadow["root"] = text
    assert machine.ways() == (["user root has a password"] if is_way else [])


def test_what_cannot_be_read_is_named_and_not_taken_for_nothing(machine: Machine) -> None:
    machine.sudo = machine.sshd = None
    assert len(machine.ways()) == 3, "sudo, and sshd for each of the two users"


def test_without_sudo_its_file_is_no_way(machine: Machine) -> None:
    machine.sudo = None
    (machine.root / "sudoers").unlink()
    assert machine.ways() == []


def test_the_list_is_bounded(machine: Machine) -> None:
    machine.keys("root", *(f"{OTHER} {'x' * 500} {number}" for number in range(200)))
    ways = machine.ways()
    assert len(ways) == root_access.MOST + 1 or len(ways) == 1
    assert all(len(way) <= root_access.CHARS for way in ways)


# -- what becomes of it -----------------------------------------------------------------------------------------------


def test_a_host_with_other_ways_is_refused_unless_its_project_is_trusted() -> None:
    root_access.check_root_access([], {"trusted": False})
    root_access.check_root_access(["user toor has uid 0"], {"trusted": True})
    root_access.check_root_access(["user toor has uid 0"], None)
    with pytest.raises(AdapterError, match="toor") as error:
        root_access.check_root_access(["user toor has uid 0"], {"trusted": False})
    assert error.value.code == "foreign_root_access"
