"""The declared users of a cluster as Unix users of a host: the same uid and gid on every host, and a home for jobs.

The list is complete: a user who is no longer on it is locked, and the files stay. A user that was on the host before
is used as it is, and never locked or removed.
"""

from __future__ import annotations

import errno
import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..app import NAME
from .accounts import find_gid, find_group, find_uid, find_user
from .errors import INTERVENTION, REPAIRABLE, AdapterError, last_line
from .files import find
from .ledger import Ledger, write_atomically

HOMES = Path("/home")
User = dict[str, Any]
# Days since 1970. An expired account refuses every login, whatever key or password is given.
LOCKED = "1"
# What a user can bring about in the own home, as a directory where the keys belong. The keys of this user then stay as
# they are, and nothing else waits: else one user could keep all changes of the cluster from being carried out.
BY_USER = frozenset(
    {errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.ELOOP, errno.EDQUOT}
)


def check_users(users: list[User]) -> None:
    """Raise the reason why the host cannot have these users. Changes nothing."""
    for user in users:
        _check_user(user)
        _check_group(user)


def converge_users(users: list[User] | None, keys: dict[str, list[str]], ledger: Ledger, dry: bool) -> list[str]:
    """Create, unlock and lock users by the list; without a list do nothing. Keys of users not in `keys` stay."""
    if users is None:
        return []
    check_users(users)
    changes: list[str] = []
    for user in users:
        changes += _ensure_user(user, ledger, dry)
        name = str(user["name"])
        if not dry and name in keys and name in _created_by_us(ledger):
            changes += _write_keys(name, keys[name])
    wanted = {user["name"] for user in users}
    for name in sorted(_created_by_us(ledger) - wanted):
        changes += _lock(name, dry)
    return changes


def _ensure_user(user: User, ledger: Ledger, dry: bool) -> list[str]:
    name, home = str(user["name"]), HOMES / user["name"]
    present = find_user(name)
    changes: list[str] = []
    ledger.note("user", name, {"present": present is not None, "person": True})
    if present is None:
        if not dry:
            ledger.note("home", str(home), {"kind": find(home).kind})
            ledger.save()
            _create(user, home)
        changes.append(f"user {name}")
    elif name in _created_by_us(ledger):
        if ledger.has("home", str(home)):
            ledger.note("home", str(home), {})  # adds this member as an owner
        changes += _reactivate(user, present, dry)
    return changes


def _create(user: User, home: Path) -> None:
    name, uid, gid = str(user["name"]), str(user["uid"]), str(user["gid"])
    if find_group(name) is None:
        _command("groupadd", "--gid", gid, name)
    _command(
        *("useradd", "--uid", uid, "--gid", gid, "--create-home", "--home-dir", str(home)),
        *("--key", "HOME_MODE=0750", "--shell", str(user["shell"]), "--comment", NAME, name),
    )


def _reactivate(user: User, present: pwd.struct_passwd, dry: bool) -> list[str]:
    """Unlock a user that the adapter created, and set a changed shell."""
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
    if find_user(name) is None or _is_locked(name):
        return []
    if not dry:
        _command("usermod", "--expiredate", LOCKED, name)
    return [f"user {name} locked"]


def _write_keys(name: str, keys: list[str]) -> list[str]:
    """Write as the user: a symbolic link in the home then reaches only what the user may write."""
    account = pwd.getpwnam(name)
    text = "".join(f"{key}\n" for key in keys)
    path = Path(account.pw_dir) / ".ssh" / "authorized_keys"
    with _as_user(account):
        try:
            if _is_file_of(path, text.encode()):
                return []
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomically(path, text.encode(), mode=0o600)
        except OSError as error:
            if error.errno in BY_USER:
                return []
            raise AdapterError(
                "user_keys_failed",
                f"The ssh keys of {name} cannot be written: {error.strerror}. Check the home on the host, then retry.",
                REPAIRABLE,
            ) from None
    return [f"ssh keys of {name}"]


def _is_file_of(path: Path, content: bytes) -> bool:
    """Its owner may have put anything there: another text, a pipe, or a file of any size."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read(len(content) + 1) == content
    except OSError:
        return False


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


def _check_user(user: User) -> None:
    name, uid, gid = str(user["name"]), int(user["uid"]), int(user["gid"])
    present = find_user(name)
    if present and (present.pw_uid, present.pw_gid) != (uid, gid):
        raise AdapterError(
            "uid_mismatch",
            f"User {name} has uid {present.pw_uid} and gid {present.pw_gid} on the host, but {uid}"
            f" and {gid} in the cluster's list. Correct the list, or change the ids on the host, then retry.",
            INTERVENTION,
        )
    holder = find_uid(uid)
    if holder and holder.pw_name != name:
        raise AdapterError(
            "uid_taken",
            f"uid {uid}, which the cluster's list gives to {name}, belongs to {holder.pw_name} on the host. Choose"
            " another uid in the list, or use a clean host, then retry.",
            INTERVENTION,
        )
    home = find(HOMES / name)
    if present is None and home.kind != "absent" and home.uid != uid:
        raise AdapterError(
            "home_in_the_way",
            f"{HOMES / name} exists on the host and does not belong to {name}. Move it away, then retry.",
            INTERVENTION,
        )


def _check_group(user: User) -> None:
    name, gid = str(user["name"]), int(user["gid"])
    by_gid, by_name = find_gid(gid), find_group(name)
    taken = by_gid is not None and by_gid.gr_name != name
    if (taken and find_user(name) is None) or (by_name is not None and by_name.gr_gid != gid):
        found = (
            f"{by_gid.gr_name} has gid {gid}"
            if by_gid and taken
            else f"group {name} has gid {by_name and by_name.gr_gid}"
        )
        raise AdapterError(
            "gid_taken",
            f"The cluster's list gives {name} the gid {gid}, but {found} on the host. Choose another gid in the list,"
            " or use a clean host, then retry.",
            INTERVENTION,
        )


def _created_by_us(ledger: Ledger) -> set[str]:
    """Declared users that the adapter created, for any member on the host."""
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


def _command(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AdapterError(
            "user_change_failed",
            f"`{' '.join(command)}` failed: {last_line(done.stderr)}. Correct the cause on the host, then retry.",
            REPAIRABLE,
        )
