"""Directories that filled up while we served. Each shares the fate of the package that it belongs to.

What is new in a tree goes only if we brought the tree's package and the package has gone. If the package was there
before us, or stays because something else needs it, the tree is left alone but for the files that our own daemon made
there: those daemons run on a host for one cluster only, and the next cluster must not find the state of this one.
Nothing behind a mount point is ever deleted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ...app import DAEMON_FILES, KNOWN_PACKAGES, STATE_DIRECTORY

Before = Mapping[str, Any]


def package_of(path: str, before: Before) -> str | None:
    return before.get("package") or KNOWN_PACKAGES.get(path)


def was_brought(path: str, before: Before, packages: Mapping[str, Before], baseline: Mapping[str, Any] | None) -> bool:
    """Whether the tree's package came with us. `packages` are the ledger's; what is not known was not brought."""
    if "package_installed" in before:
        return not before["package_installed"]
    package = package_of(path, before)
    if package is not None and package in packages:
        return not packages[package]["installed"]
    return package is not None and baseline is not None and package not in baseline["package"]


def to_delete(path: Path, before: Before, *, gone: bool) -> list[Path]:
    """What of a tree goes: all that is new in it if its package has gone, else the files of our own daemons."""
    new = new_entries(path, before)
    if gone:
        return new
    patterns = DAEMON_FILES.get(str(path), ())
    if not patterns or path.is_symlink() or not path.is_dir():
        return []
    made = before["kind"] == "absent"
    there = sorted(path.iterdir()) if made else [one for one in new if one.parent == path]
    chosen = [one for one in there if any(fnmatch(one.name, pattern) for pattern in patterns)]
    return new if made and chosen == there else chosen


def packages_of(trees: Mapping[str, Before]) -> set[str]:
    return {package for path, before in trees.items() if (package := package_of(path, before))}


def doomed(
    trees: Mapping[str, Before],
    packages: Mapping[str, Before],
    baseline: Mapping[str, Any] | None,
    present: Collection[str],
) -> list[Path]:
    """What of the trees goes, each by the fate of its package. `present` are packages that dpkg still knows."""
    found: list[Path] = []
    for path, before in sorted(trees.items(), reverse=True):
        package = package_of(path, before)
        if STATE_DIRECTORY in Path(path).parents:
            found += to_delete(Path(path), before, gone=True)  # what we keep for ourselves
        elif package:
            gone = was_brought(path, before, packages, baseline) and package not in present
            found += to_delete(Path(path), before, gone=gone)
    return found


def restore_trees(paths: Iterable[Path], mounts: Iterable[Path] | None = None) -> list[str]:
    """Delete what is given, but nothing on another file system than the directory that it is in."""
    mounted = list(mount_points() if mounts is None else mounts)
    changes = []
    for path in paths:
        if obstacle(path, path.parent, mounted):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        changes.append(f"path {path}")
    return changes


def obstacle(path: Path, of: Path, mounts: Iterable[Path]) -> str | None:
    """Why a path may not be deleted with all that is in it. `of` is what it must share a file system with."""
    if any(mount == path or path in mount.parents for mount in mounts):
        return "a file system is mounted there"
    try:
        if path.lstat().st_dev != of.stat().st_dev and path.is_dir():
            return "it is on another file system"
    except FileNotFoundError:
        return None
    return None


def mount_points(table: Path = Path("/proc/self/mountinfo")) -> Iterator[Path]:
    """Every place where something is mounted; a directory that is mounted elsewhere has the same device number."""
    for line in table.read_bytes().splitlines():
        # Spaces and the like are given as octal numbers.
        yield Path(os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), line.split()[4])))


def new_entries(path: Path, before: Before) -> list[Path]:
    """What has come to be at or under the path since: the topmost of it, each once."""
    if not path.exists() and not path.is_symlink():
        return []
    if before["kind"] == "absent":
        return [path]
    if before["kind"] != "directory":
        return []  # a file that was there is not ours
    known = set(before["entries"])
    found: list[Path] = []
    for directory, names, files in os.walk(path):
        here = Path(directory)
        new = [name for name in [*names, *files] if str((here / name).relative_to(path)) not in known]
        found += [here / name for name in new]
        names[:] = [name for name in names if name not in new]
    return sorted(found)
