"""Logs that outlive their daemons, where no later install looks for logs of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..app import LOGS, NAME
from .database import PACKAGE
from .restore.entries import of_kind

KEPT = Path("/var/log") / NAME


def keep_logs(entries: Mapping[str, Mapping[str, Any]], component: str, units: Iterable[str]) -> str | None:
    """Copy what the daemons wrote, and what the journal has of them. Named by when the host was first changed, so that
    a second attempt adds to the first and a later cluster does not."""
    began = min((str(entry["noted_at"]) for entry in entries.values()), default="")
    if not began:
        return None
    target = KEPT / f"{began.replace(':', '')}-{component}"
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    KEPT.chmod(0o700)
    brought = not of_kind(entries, "package").get(PACKAGE, {"installed": True})["installed"]
    for source in map(Path, LOGS):
        # The logs of a server that was there before us are its owner's.
        if source.is_dir() and (brought or source.name != "mysql"):
            shutil.copytree(source, target / source.name, dirs_exist_ok=True)
    _keep_journal(target / "journal.txt", sorted(units))
    return str(target)


def _keep_journal(target: Path, units: list[str]) -> None:
    if not units or target.exists():
        return
    named = [f"--unit={unit}" for unit in units]
    told = subprocess.run(
        ["journalctl", "--no-pager", "--output=short-iso", *named], capture_output=True, text=True, check=False
    )
    target.write_text(told.stdout)
