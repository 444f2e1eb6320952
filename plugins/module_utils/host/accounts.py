"""Look-ups of Unix users and groups that return None instead of raising an error."""

from __future__ import annotations

import grp
import pwd


def find_user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def find_uid(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def find_group(name: str) -> grp.struct_group | None:
    try:
        return grp.getgrnam(name)
    except KeyError:
        return None


def find_gid(gid: int) -> grp.struct_group | None:
    try:
        return grp.getgrgid(gid)
    except KeyError:
        return None


def user_ids(name: str) -> dict[str, int] | None:
    """uid and gid of a user; None if the host does not have the user."""
    found = find_user(name)
    return {"uid": found.pw_uid, "gid": found.pw_gid} if found else None
