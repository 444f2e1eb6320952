"""Restore paths to their state before the first change, and list those that still differ."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import find
from ..ledger import write_atomically

Before = Mapping[str, Any]


def restore_paths(noted: Mapping[str, Before], kept: Path) -> list[str]:
    """Restore files, links and directories. `kept` has the contents that the adapter replaced."""
    changes = []
    # Children first, so that a directory is empty when it is removed.
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
        # A directory with files of others stays and is reported as residue.
        if not any(path.iterdir()):
            path.rmdir()
    else:
        path.unlink(missing_ok=True)
