"""Documents on the controller's host with which a later run can revert or finish a change.

`good` is the configuration that served last. `trial` is one that is being tried, `move` a change of packages that is
under way; a run that was killed leaves them. `point` is the target of `rollback`: configuration and package versions
before the last change. Only root can read them. The ledger has the directory, so a clean-up removes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..app import STATE_DIRECTORY
from ..host.ledger import Ledger, write_atomically

DIRECTORY = STATE_DIRECTORY / "slurm"


class Kept:
    """Small JSON documents by name, each replaced in one step."""

    def __init__(self, owner: str, directory: Path = DIRECTORY) -> None:
        self._owner = owner
        self.directory = directory

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            document = json.loads((self.directory / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        return document if isinstance(document, dict) else None

    def write(self, name: str, document: dict[str, Any]) -> None:
        self.make_room()
        content = json.dumps(document, indent=1, sort_keys=True).encode()
        write_atomically(self.directory / f"{name}.json", content, mode=0o600)

    def drop(self, name: str) -> None:
        (self.directory / f"{name}.json").unlink(missing_ok=True)

    def make_room(self) -> None:
        if self.directory.is_dir():
            return
        ledger = Ledger(self._owner, self.directory.parent)
        ledger.note("tree", str(self.directory), {"kind": "absent"})
        ledger.save()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def keep_point(self, change: str, packages: dict[str, str]) -> None:
        """Store the state before a change. The steps of one change share the point of the first step."""
        point, good = self.read("point"), self.read("good") or {}
        if point and point.get("change") == change:
            return
        self.write("point", {"change": change, "packages": packages, **good})
