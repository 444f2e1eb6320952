"""Users and groups that came with us, removed. Whether they are gone is looked at, not taken from an exit code."""

from __future__ import annotations

import grp
import pwd
import subprocess
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def remove_users(names: Iterable[str]) -> list[str]:
    users = sorted(names)
    for name in users:
        if _exists(pwd.getpwnam, name):
            # One who is still logged in, or left something running, would keep the account.
            _command("pkill", "--signal", "KILL", "--uid", name)
    return remove_accounts(users, "userdel", "--force")


def remove_accounts(names: Iterable[str], *userdel: str) -> list[str]:
    changes = []
    for name in sorted(names):
        if _exists(pwd.getpwnam, name):
            _command(*userdel, name)
            changes += [] if _exists(pwd.getpwnam, name) else [f"user {name}"]
        if _exists(grp.getgrnam, name):
            _command("groupdel", name)
            changes += [] if _exists(grp.getgrnam, name) else [f"group {name}"]
    return changes


def users_left(users: Mapping[str, Mapping[str, Any]]) -> list[str]:
    absent = sorted(name for name, before in users.items() if not before["present"])
    left = [f"account {name}" for name in absent if _exists(pwd.getpwnam, name)]
    return left + [f"group {name}" for name in absent if _exists(grp.getgrnam, name)]


def _exists(find: Callable[[str], object], name: str) -> bool:
    try:
        find(name)
    except KeyError:
        return False
    return True


def _command(*command: str) -> None:
    # A failure shows up as residue, by name, which says more than an exit code.
    subprocess.run(command, capture_output=True, check=False)
