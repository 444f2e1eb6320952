"""Paths as they were before the first change, and what still differs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import find
from ..ledger import write_atomically

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


def matches(path: Path, before: Before) -> bool:
    return find(path).as_before() == dict(before)


def paths_left(noted: Mapping[str, Before]) -> list[str]:
    return sorted(f"path {name}" for name, before in noted.items() if not matches(Path(name), before))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        # Somebody else's file in a directory we made is not ours to delete; it shows up as residue instead.
        if not any(path.iterdir()):
            path.rmdir()
    else:
        path.unlink(missing_ok=True)
