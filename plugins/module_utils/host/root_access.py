"""Every way to become root on this host that its owner has beside the one key that we log in with.

It matters where a host holds a secret that its owner must not read. What cannot be read is listed as a way. The list
cannot be complete: who has the machine's console, its hypervisor or its disk does not stand on the host.
"""

from __future__ import annotations

import base64
import binascii
import grp
import hashlib
import json
import pwd
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .accounts import find_gid, find_group, find_uid
from .errors import INTERVENTION, AdapterError

SUDOERS = Path("/etc/sudoers")
SHADOW = Path("/etc/shadow")
NSSWITCH = Path("/etc/nsswitch.conf")
DOAS = (Path("/etc/doas.conf"), Path("/usr/local/etc/doas.conf"))
# A member of one of these groups starts a privileged container or writes to the disk.
AS_GOOD_AS_ROOT = ("docker", "lxd", "incus", "incus-admin", "disk")
# Options of a line of authorized_keys end at the first blank outside of quotes, as sshd reads them.
OPTIONS = re.compile(r'^(?:"(?:\\"|\\(?!")|[^"\\])*"|\\"|\\(?!")|[^ \t"\\])+[ \t]+')
# The password is in the shadow file.
SHADOWED = "x"
MOST = 40
CHARS = 240


def foreign_root(own_key: str, login_user: str) -> list[str]:
    """The ways, by name. `own_key` is type and body of the key of `login_user`, which are not listed."""
    ways: list[str] = []
    users = {"root", login_user}
    for user in pwd.getpwall():
        if user.pw_uid == 0 and user.pw_name != "root":
            ways.append(f"user {user.pw_name} has uid 0")
            users.add(user.pw_name)
    for name, way in [*_by_sudo(), *_by_group()]:
        if name is None:
            ways.append(way)
        elif name not in ("root", login_user):
            ways.append(way)
            users.add(name)
    ways += [f"{path} exists" for path in DOAS if path.exists()]
    for name in sorted(users):
        ways += _logins(name, own_key)
    shown = [way[:CHARS] for way in dict.fromkeys(ways)]
    return shown[:MOST] + ([f"and {len(shown) - MOST} more"] if len(shown) > MOST else [])


def check_root_access(ways: list[str], contributed: dict[str, Any] | None) -> None:
    """Raise an error for ways to root that the owner of the host is not trusted with."""
    if contributed and ways and not contributed["trusted"]:
        raise AdapterError(
            "foreign_root_access",
            f"Others can become root on the host, and root on any host equals the whole cluster: {'; '.join(ways)}."
            " Remove these ways, or have the tenant's administrator trust its project; then withdraw the host and"
            " contribute it again.",
            INTERVENTION,
        )


def _by_sudo() -> Iterator[tuple[str | None, str]]:
    """Who may run something as another user, each with the way; None where no user is named."""
    if not SUDOERS.exists():
        return
    found = _run("cvtsudoers", "--expand-aliases", "--output-format=json", str(SUDOERS))
    try:
        specs = json.loads(found or "{}")["User_Specs"]
        listed = [entry for spec in specs for entry in spec["User_List"]]
    except (ValueError, KeyError, TypeError):
        yield None, f"{SUDOERS} cannot be read"
        return
    lines = _lines(NSSWITCH)
    sources = [line.split()[1:] for line in lines or () if line.startswith("sudoers:")]
    if lines is None or any(one != ["files"] for one in sources):
        yield None, f"sudo has other sources than files ({NSSWITCH})"
    for entry in listed:
        if entry.get("negated"):
            continue
        kind, value = next(((kind, value) for kind, value in entry.items() if kind != "negated"), ("entry", entry))
        group = find_group(str(value)) if kind == "usergroup" else None
        group = _find(find_gid, value) if kind == "usergid" else group
        user = _find(find_uid, value) if kind == "userid" else None
        if kind in ("usergroup", "usergid"):
            for name in _members(group) if group else ():
                yield name, f"sudo lets user {name} in as a member of group {group.gr_name if group else value}"
        elif kind == "username" and value != "ALL":
            yield str(value), f"sudo lets user {value} in"
        elif user is not None:
            yield user.pw_name, f"sudo lets user {user.pw_name} in"
        else:
            yield None, f"sudo lets {kind} {value} in"


def _find(find: Any, number: object) -> Any:
    """A user or a group by its number, as cvtsudoers shows it."""
    text = str(number).lstrip("#")
    return find(int(text)) if text.isdigit() else None


def _by_group() -> Iterator[tuple[str, str]]:
    for wanted in AS_GOOD_AS_ROOT:
        group = find_group(wanted)
        for name in _members(group) if group else ():
            yield name, f"user {name} is in group {wanted}"


def _members(group: grp.struct_group) -> list[str]:
    primary = [user.pw_name for user in pwd.getpwall() if user.pw_gid == group.gr_gid]
    return sorted({*group.gr_mem, *primary})


def _logins(name: str, own_key: str) -> Iterator[str]:
    """How another person can log in as this user."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return
    # A password that is locked, or none that could ever match, begins with one of these.
    lines = _lines(SHADOW)
    hashes = [line.split(":")[1] for line in lines or () if line.split(":")[0] == name and ":" in line]
    if lines is None:
        yield f"{SHADOW} cannot be read"
    if user.pw_passwd != SHADOWED:
        hashes.append(user.pw_passwd)
    if any(not one.startswith(("!", "*")) for one in hashes):
        yield f"user {name} has a password"
    settings = _sshd(name)
    if settings is None:
        yield f"what sshd accepts of user {name} cannot be read"
    settings = settings or {}
    for key in ("authorizedkeyscommand", "trustedusercakeys", "authorizedprincipalscommand"):
        if settings.get(key, "none") != "none":
            yield f"sshd accepts of user {name} what {key} says: {settings[key]}"
    files = settings.get("authorizedkeysfile", ".ssh/authorized_keys .ssh/authorized_keys2").split()
    for file in files if files != ["none"] else ():
        path = Path(user.pw_dir) / _expanded(file, user)
        lines = _lines(path)
        if lines is None:
            yield f"{path}, with keys of user {name}, cannot be read"
        for line in lines or ():
            text = line.strip()
            if text and not text.startswith("#") and not _has_key(text, own_key):
                yield f"key {_named(text)} in {path}"


def _expanded(file: str, user: pwd.struct_passwd) -> str:
    values = {"%%": "%", "%h": user.pw_dir, "%u": user.pw_name, "%U": str(user.pw_uid)}
    parts = file.split("%%")
    for token, value in values.items():
        parts = [part.replace(token, value) for part in parts]
    return "%".join(parts)


def _has_key(line: str, own_key: str) -> bool:
    """Whether the line's key is ours. Options before it and the comment behind it may hold any text, also our key."""
    own = own_key.split()[:2]
    return len(own) == 2 and own in (line.split()[:2], OPTIONS.sub("", line, count=1).split()[:2])


def _named(line: str) -> str:
    """Fingerprint and comment of a line of authorized_keys."""
    words = line.split()
    for place, word in enumerate(words[1:], start=1):
        if not word.startswith("AAAA"):
            continue
        try:
            blob = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            continue
        print_ = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
        return " ".join([f"SHA256:{print_}", *words[place + 1 :]])
    return "of an unknown form"


def _sshd(name: str) -> dict[str, str] | None:
    """The settings of sshd for a login of this user."""
    # A configuration may have rules for addresses too; this is the machine that a login from outside reaches.
    shown = _run("/usr/sbin/sshd", "-T", "-C", f"user={name},host=,addr=0.0.0.0")
    if shown is None:
        return None
    pairs = (line.partition(" ") for line in shown.splitlines())
    return {key.lower(): value.strip() for key, _, value in pairs}


def _lines(path: Path) -> list[str] | None:
    """None if it exists and cannot be read: root may not read a home on a network, where sshd reads as its user."""
    try:
        return path.read_text(errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError:
        return None


def _run(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
