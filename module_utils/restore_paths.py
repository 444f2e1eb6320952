"""Paths as they were before the first change, and what still differs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .converge_files import find
from .converge_ledger import write_atomically

Before = Mapping[str, Any]


def restore_paths(noted: Mapping[str, Before], kept: Path) -> list[str]:
    """Files, links and directories that were set as a whole. `kept` holds what our files replaced."""
    changes = []
    # Children first, so that a directory we made is empty when its turn comes.
    for name in sorted(noted, reverse=True):
        path, before = Path(name), noted[name]
        if matches(path, before):
            continue
        if before["kind"] == "absent":
            _remove(path)
        elif before["kind"] == "file":
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            content = (kept / before["sha256"]).read_bytes()
            write_atomically(path, content, int(before["mode"], 8), before["uid"], before["gid"])
        elif before["kind"] == "link":
            path.unlink(missing_ok=True)
            path.symlink_to(before["target"])
        elif before["kind"] == "directory":
            path.mkdir(mode=0o755, parents=True, exist_ok=True)
            os.chown(path, before["uid"], before["gid"])
            path.chmod(int(before["mode"], 8))
        changes.append(f"path {path}")
    return changes


def restore_trees(noted: Mapping[str, Before]) -> list[str]:
    """Directories that filled up while we served: what was not in them before goes."""
    changes = []
    for name in sorted(noted, reverse=True):
        path = Path(name)
        for extra in strangers(path, noted[name]):
            if extra.is_dir() and not extra.is_symlink():
                shutil.rmtree(extra)
            else:
                extra.unlink(missing_ok=True)
            changes.append(f"path {extra}")
    return changes


def matches(path: Path, before: Before) -> bool:
    return find(path).as_before() == dict(before)


def strangers(path: Path, before: Before) -> list[Path]:
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


def residue(noted_paths: Mapping[str, Before], noted_trees: Mapping[str, Before]) -> list[str]:
    left = [f"path {name}" for name, before in noted_paths.items() if not matches(Path(name), before)]
    left += [f"path {extra}" for name, before in noted_trees.items() for extra in strangers(Path(name), before)]
    return sorted(set(left))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # Somebody else's file in a directory we made is not ours to delete; it shows up as residue instead.
        if not any(path.iterdir()):
            path.rmdir()
    else:
        path.unlink(missing_ok=True)
