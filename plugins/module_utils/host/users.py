"""The declared users of a cluster as Unix users of a host: the same numbers everywhere, a home that jobs can run in.

The list is complete: who stood on it once and does so no more is locked, with the files left in place. A user that was
on the host before us is used as it is, and never locked or removed.
"""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..app import NAME
from .errors import INTERVENTION, REPAIRABLE, AdapterError
from .files import find
from .ledger import Ledger, write_atomically

HOMES = Path("/home")
User = dict[str, Any]
# Days since 1970: an account that expired then lets nobody in, whatever key or password is shown.
LOCKED = "1"


def check_users(users: list[User]) -> None:
    """Raise what keeps the host from having these users; nothing is changed."""
    for user in users:
        _judge_user(user)
        _judge_group(user)


def converge_users(users: list[User] | None, keys: dict[str, list[str]], ledger: Ledger, dry: bool) -> list[str]:
    """Without a list nothing is stated about users, and nothing is done. `keys` are of those whose keys are stated."""
    if users is None:
        return []
    check_users(users)
    changes: list[str] = []
    for user in users:
        changes += _have(user, ledger, dry)
        name = str(user["name"])
        if not dry and name in keys and name in _ours(ledger):
            changes += _give_keys(name, keys[name])
    wanted = {user["name"] for user in users}
    for name in sorted(_ours(ledger) - wanted):
        changes += _lock(name, dry)
    return changes


def _have(user: User, ledger: Ledger, dry: bool) -> list[str]:
    name, home = str(user["name"]), HOMES / user["name"]
    present = _user(name)
    changes: list[str] = []
    ledger.note("user", name, {"present": present is not None, "person": True})
    if present is None:
        if not dry:
            ledger.note("home", str(home), {"kind": find(home).kind})
            ledger.save()
            _create(user, home)
        changes.append(f"user {name}")
    elif name in _ours(ledger):
        if ledger.knows("home", str(home)):
            ledger.note("home", str(home), {})  # another member on this host asks for it too
        changes += _bring_back(user, present, dry)
    return changes


def _create(user: User, home: Path) -> None:
    name, uid, gid = str(user["name"]), str(user["uid"]), str(user["gid"])
    if _group(name) is None:
        _command("groupadd", "--gid", gid, name)
    _command(
        *("useradd", "--uid", uid, "--gid", gid, "--create-home", "--home-dir", str(home)),
        *("--key", "HOME_MODE=0750", "--shell", str(user["shell"]), "--comment", NAME, name),
    )


def _bring_back(user: User, present: pwd.struct_passwd, dry: bool) -> list[str]:
    """One of ours that was locked, or whose shell is another now."""
    name, changes = str(user["name"]), []
    if _is_locked(name):
        changes.append(f"user {name} unlocked")
        if not dry:
            _command("usermod", "--expiredate", "", name)
    if present.pw_shell != user["shell"]:
        changes.append(f"shell of {name}")
        if not dry:
            _command("usermod", "--shell", str(user["shell"]), name)
    return changes


def _lock(name: str, dry: bool) -> list[str]:
    if _user(name) is None or _is_locked(name):
        return []
    if not dry:
        _command("usermod", "--expiredate", LOCKED, name)
    return [f"user {name} locked"]


def _give_keys(name: str, keys: list[str]) -> list[str]:
    """As the user: a link that somebody put in their own home leads no further than the user may go."""
    account = pwd.getpwnam(name)
    text = "".join(f"{key}\n" for key in keys)
    path = Path(account.pw_dir) / ".ssh" / "authorized_keys"
    with _as_user(account):
        try:
            found = find(path)
            if found.kind == "file" and path.read_text() == text:
                return []
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, text.encode(), mode=0o600)
        except OSError as error:
            raise AdapterError(
                "user_keys_failed",
                f"The ssh keys of {name} cannot be written: {error.strerror}. Look at the home on the host.",
                REPAIRABLE,
            ) from None
    return [f"ssh keys of {name}"]


@contextmanager
def _as_user(account: pwd.struct_passwd) -> Iterator[None]:
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(account.pw_gid)
    os.seteuid(account.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def _judge_user(user: User) -> None:
    name, uid, gid = str(user["name"]), int(user["uid"]), int(user["gid"])
    present = _user(name)
    if present and (present.pw_uid, present.pw_gid) != (uid, gid):
        raise AdapterError(
            "uid_mismatch",
            f"User {name} has uid {present.pw_uid} and gid {present.pw_gid} on the host, the cluster's list says {uid}"
            f" and {gid}. Correct the list, or renumber the user there.",
            INTERVENTION,
        )
    holder = _holder(uid)
    if holder and holder != name:
        raise AdapterError(
            "uid_taken",
            f"uid {uid}, which the cluster's list gives to {name}, belongs to {holder} on the host. Choose another"
            " number in the list, or use a clean host.",
            INTERVENTION,
        )
    home = find(HOMES / name)
    if present is None and home.kind != "absent" and home.uid != uid:
        raise AdapterError(
            "home_in_the_way",
            f"{HOMES / name} exists on the host and is not {name}'s. Move it away, then retry.",
            INTERVENTION,
        )


def _judge_group(user: User) -> None:
    name, gid = str(user["name"]), int(user["gid"])
    try:
        holder = grp.getgrgid(gid).gr_name
    except KeyError:
        holder = None
    of_name = _group(name)
    if (holder and holder != name and _user(name) is None) or (of_name is not None and of_name != gid):
        found = f"{holder} has gid {gid}" if holder and holder != name else f"group {name} has gid {of_name}"
        raise AdapterError(
            "gid_taken",
            f"The cluster's list gives {name} the gid {gid}, but {found} on the host. Choose another number in the"
            " list, or use a clean host.",
            INTERVENTION,
        )


def _ours(ledger: Ledger) -> set[str]:
    """Declared users that we made, whichever member of the host asked."""
    return {
        key.partition(":")[2]
        for key, entry in ledger.entries.items()
        if key.startswith("user:") and entry["before"].get("person") and not entry["before"]["present"]
    }


def _is_locked(name: str) -> bool:
    for line in Path("/etc/shadow").read_text().splitlines():
        fields = line.split(":")
        if fields[0] == name and len(fields) > 7:
            return fields[7] == LOCKED
    return False


def _user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _holder(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def _group(name: str) -> int | None:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _command(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise AdapterError(
            "user_change_failed",
            f"`{' '.join(command)}` failed: {said[-1] if said else 'no reason given'}. Put it right on the host, then"
            " retry.",
            REPAIRABLE,
        )
