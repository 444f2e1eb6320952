"""What a controller's host keeps so that a change can be taken back, by whoever comes next.

`good` is the configuration that was last seen serving. `trial` says that another one is being tried, `move` that
packages are being moved; a run that was killed leaves them here. `point` is what `rollback` returns to: configuration
and package versions from before the last change. Readable by root alone; the ledger has the directory, so it goes with
the controller.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..app import STATE_DIRECTORY
from ..host.ledger import Ledger, write_atomically

DIRECTORY = STATE_DIRECTORY / "slurm"


class Kept:
    """Small documents by name, each written whole or not at all."""

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
        """Remember how things are before a change. One change in several steps has one point, that of its beginning."""
        known, good = self.read("point"), self.read("good") or {}
        if known and known.get("change") == change:
            return
        self.write("point", {"change": change, "packages": packages, **good})
