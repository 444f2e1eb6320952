"""Home directories of users that the adapter created. They stay unless the operation requests their removal.

Only homes that the adapter created on the root file system are deleted: a home on a volume or a network file system may
be in use on other hosts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..files import find
from .trees import mount_points, obstacle

HOMES = Path("/home")


def homes_of(homes: Mapping[str, Mapping[str, Any]], trees: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """Each home in the ledger, and whether the adapter created it. Format 1 has homes among the trees."""
    old = {path: before for path, before in trees.items() if Path(path).parent == HOMES}
    return {path: before.get("kind") == "absent" for path, before in {**old, **homes}.items()}


def clear_homes(
    homes: Mapping[str, bool], *, remove: bool, root: Path = Path("/"), mounts: Iterable[Path] | None = None
) -> tuple[list[str], list[str]]:
    """Returns what was deleted, and the homes that are left with the reason."""
    mounted = list(mount_points() if mounts is None else mounts)
    changes, left = [], []
    for name, made in sorted(homes.items()):
        path = Path(name)
        found = find(path).kind
        if found == "absent":
            continue
        reason = "kept, since its removal was not requested" if not remove else None
        if remove and not made:
            reason = "it was there before the user was created"
        elif remove and found != "directory":
            reason = f"it is a {found}"
        elif remove:
            reason = obstacle(path, root, mounted)
        if reason:
            left.append(f"{path}: {reason}")
            continue
        shutil.rmtree(path)
        changes.append(f"home {path}")
    return changes, left
