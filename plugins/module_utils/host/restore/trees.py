"""Directories that daemons filled while the cluster existed. Each belongs to a package.

New content is deleted if the adapter installed the package and the package is removed. If the package was there before,
or stays because others need it, only files of the cluster's own daemons are deleted: the next cluster must not start
from the state of this one. Nothing behind a mount point is deleted.
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


def was_installed_by_us(
    path: str, before: Before, packages: Mapping[str, Before], baseline: Mapping[str, Any] | None
) -> bool:
    """Whether the adapter installed the tree's package; false if that is unknown. `packages` are the ledger's."""
    if "package_installed" in before:
        return not before["package_installed"]
    package = package_of(path, before)
    if package is not None and package in packages:
        return not packages[package]["installed"]
    return package is not None and baseline is not None and package not in baseline["package"]


def tree_paths_to_delete(path: Path, before: Before, *, gone: bool) -> list[Path]:
    """Paths of a tree to delete: all new content if its package is gone, else files of the cluster's daemons."""
    new = new_entries(path, before)
    if gone:
        return new
    patterns = DAEMON_FILES.get(str(path), ())
    if not patterns or path.is_symlink() or not path.is_dir():
        return []
    is_new = before["kind"] == "absent"
    there = sorted(path.iterdir()) if is_new else [one for one in new if one.parent == path]
    chosen = [one for one in there if any(fnmatch(one.name, pattern) for pattern in patterns)]
    return new if is_new and chosen == there else chosen


def packages_of(trees: Mapping[str, Before]) -> set[str]:
    return {package for path, before in trees.items() if (package := package_of(path, before))}


def paths_to_delete(
    trees: Mapping[str, Before],
    packages: Mapping[str, Before],
    baseline: Mapping[str, Any] | None,
    present: Collection[str],
) -> list[Path]:
    """Paths of all trees to delete. `present` are packages that dpkg still lists."""
    found: list[Path] = []
    for path, before in sorted(trees.items(), reverse=True):
        package = package_of(path, before)
        if STATE_DIRECTORY in Path(path).parents:
            found += tree_paths_to_delete(Path(path), before, gone=True)  # the adapter's own state
        elif package:
            gone = was_installed_by_us(path, before, packages, baseline) and package not in present
            found += tree_paths_to_delete(Path(path), before, gone=gone)
    return found


def restore_trees(paths: Iterable[Path], mounts: Iterable[Path] | None = None) -> list[str]:
    """Delete the paths, except those on another file system than their parent directory."""
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
    """Why a path may not be deleted with its content. It must be on the file system of `of`."""
    if any(mount == path or path in mount.parents for mount in mounts):
        return "a file system is mounted there"
    try:
        if path.lstat().st_dev != of.stat().st_dev and path.is_dir():
            return "it is on another file system"
    except FileNotFoundError:
        return None
    return None


def mount_points(table: Path = Path("/proc/self/mountinfo")) -> Iterator[Path]:
    """Every mount point. Device numbers do not show bind mounts."""
    for line in table.read_bytes().splitlines():
        # The kernel writes white space as octal numbers.
        yield Path(os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), line.split()[4])))


def new_entries(path: Path, before: Before) -> list[Path]:
    """New paths at or below `path`; a new directory stands for its content."""
    if not path.exists() and not path.is_symlink():
        return []
    if before["kind"] == "absent":
        return [path]
    if before["kind"] != "directory":
        return []  # a file that was there before belongs to others
    former = set(before["entries"])
    found: list[Path] = []
    for directory, names, files in os.walk(path):
        here = Path(directory)
        new = [name for name in [*names, *files] if str((here / name).relative_to(path)) not in former]
        found += [here / name for name in new]
        names[:] = [name for name in names if name not in new]
    return sorted(found)
