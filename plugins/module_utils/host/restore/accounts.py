"""Remove users and groups that the adapter or its packages created. A look-up shows whether they are gone."""

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
            # userdel keeps the account of a user with running processes.
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
    # A failure is reported as residue, by name.
    subprocess.run(command, capture_output=True, check=False)
