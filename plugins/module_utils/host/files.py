"""Converge directories, files and symbolic links."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .accounts import find_group, find_user
from .errors import INTERVENTION, AdapterError
from .ledger import Ledger, write_atomically


@dataclass(frozen=True)
class Found:
    """The current state of a path."""

    kind: str  # absent, file, directory, link, other
    mode: int = 0
    uid: int = 0
    gid: int = 0
    digest: str = ""
    target: str = ""

    def as_before(self) -> dict[str, Any]:
        if self.kind == "absent":
            return {"kind": "absent"}
        described: dict[str, Any] = {"kind": self.kind, "mode": f"{self.mode:04o}", "uid": self.uid, "gid": self.gid}
        if self.kind == "file":
            described["sha256"] = self.digest
        if self.kind == "link":
            described["target"] = self.target
        return described


def find(path: Path) -> Found:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return Found("absent")
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return Found("link", mode, status.st_uid, status.st_gid, target=str(path.readlink()))
    if stat.S_ISDIR(status.st_mode):
        return Found("directory", mode, status.st_uid, status.st_gid)
    if stat.S_ISREG(status.st_mode):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return Found("file", mode, status.st_uid, status.st_gid, digest=digest)
    return Found("other", mode, status.st_uid, status.st_gid)


def content_of(wanted: dict[str, Any]) -> bytes:
    """The content is text, or base64 in `secret`, which Ansible hides in its output."""
    if wanted.get("secret") is None:
        return str(wanted["content"]).encode()
    try:
        return base64.b64decode(wanted["secret"], validate=True)
    except (binascii.Error, ValueError):
        raise AdapterError(
            "secret_malformed",
            f"The secret for {wanted['path']} is not base64. Correct the instance's secret in the vault, then retry.",
            INTERVENTION,
        ) from None


def user_id(name: str) -> int:
    if (found := find_user(name)) is None:
        raise _unknown("user", name)
    return found.pw_uid


def group_id(name: str) -> int:
    if (found := find_group(name)) is None:
        raise _unknown("group", name)
    return found.gr_gid


def note_paths(ledger: Ledger, params: dict[str, Any]) -> None:
    """Note every path before packages are installed, which may create some of them."""
    for wanted in params["directories"] + params["files"] + params["links"]:
        path = Path(wanted["path"])
        # A directory that is created for a file is removed with it.
        for parent in path.parents:
            if not parent.exists() or ledger.has("path", str(parent)):
                ledger.note("path", str(parent), {"kind": "absent"})
        if ledger.has("path", str(path)):
            ledger.note("path", str(path), {})
            continue
        found = find(path)
        if found.kind == "file":
            ledger.keep(path.read_bytes())
        ledger.note("path", str(path), found.as_before())


def note_trees(ledger: Ledger, trees: list[dict[str, Any]], installed: Collection[str]) -> None:
    """Note the content of directories that services fill while they run: state, logs, caches.

    Each belongs to a package. The tree of a package that was `installed` before stays, so only its top level is noted.
    """
    for tree in trees:
        path, package = Path(tree["path"]), tree["package"]
        found = {} if ledger.has("tree", str(path)) else find(path).as_before()
        there = package in installed and not ledger.installed_by_us(package)
        if found.get("kind") == "directory":
            entries = path.iterdir() if there else path.rglob("*")
            found["entries"] = sorted(str(entry.relative_to(path)) for entry in entries)
        ledger.note("tree", str(path), {**found, "package": package, "package_installed": there})


def converge_directories(wanted: list[dict[str, Any]], dry: bool) -> list[str]:
    changes = []
    for entry in wanted:
        path, mode = Path(entry["path"]), int(entry["mode"], 8)
        found = find(path)
        if dry:
            # A package that a dry run does not install may create the owner.
            if found.kind != "directory" or found.mode != mode:
                changes.append(f"directory {path}")
            continue
        uid, gid = user_id(entry["owner"]), group_id(entry["group"])
        if found.kind == "directory" and (found.mode, found.uid, found.gid) == (mode, uid, gid):
            continue
        if found.kind not in ("absent", "directory"):
            raise _in_the_way(path, found.kind)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chown(path, uid, gid)
        path.chmod(mode)
        changes.append(f"directory {path}")
    return changes


def converge_files(wanted: list[dict[str, Any]], dry: bool) -> list[str]:
    changes = []
    for entry in wanted:
        path, mode, content = Path(entry["path"]), int(entry["mode"], 8), content_of(entry)
        found = find(path)
        same = found.kind == "file" and found.digest == hashlib.sha256(content).hexdigest()
        if dry:
            if not same or found.mode != mode:
                changes.append(f"file {path}")
            continue
        uid, gid = user_id(entry["owner"]), group_id(entry["group"])
        if same and (found.mode, found.uid, found.gid) == (mode, uid, gid):
            continue
        if found.kind in ("directory", "other"):
            raise _in_the_way(path, found.kind)
        if same:
            # The content is right: keep its time, which shows whether a unit started after the last change.
            os.chown(path, uid, gid)
            path.chmod(mode)
        else:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomically(path, content, mode, uid, gid)
        changes.append(f"file {path}")
    return changes


def converge_links(wanted: list[dict[str, Any]], dry: bool) -> list[str]:
    changes = []
    for entry in wanted:
        path, target = Path(entry["path"]), entry["target"]
        found = find(path)
        if found.kind == "link" and found.target == target:
            continue
        if found.kind in ("directory", "other", "file"):
            raise _in_the_way(path, found.kind)
        if not dry:
            scratch = path.with_name(f".{path.name}.{os.getpid()}")
            scratch.unlink(missing_ok=True)
            scratch.symlink_to(target)
            scratch.replace(path)
        changes.append(f"link {path}")
    return changes


def _in_the_way(path: Path, kind: str) -> AdapterError:
    return AdapterError(
        "path_in_the_way",
        f"{path} on the host is a {kind} that the adapter did not create. Move it away, then retry.",
        INTERVENTION,
    )


def _unknown(kind: str, name: str) -> AdapterError:
    return AdapterError(
        f"{kind}_missing",
        f"The host has no {kind} {name}, though the packages that create it are installed. Reinstall them, then retry.",
        INTERVENTION,
    )
