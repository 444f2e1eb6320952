"""Copies of the daemons' logs that stay after the clean-up, in a directory that no daemon uses."""

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
    """Copy the log files and the journal of the daemons. Returns the directory.

    Its name is the time of the host's first change, so a second attempt uses the same one and a later cluster another.
    """
    began = min((str(entry["noted_at"]) for entry in entries.values()), default="")
    if not began:
        return None
    target = KEPT / f"{began.replace(':', '')}-{component}"
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    KEPT.chmod(0o700)
    installed_by_us = not of_kind(entries, "package").get(PACKAGE, {"installed": True})["installed"]
    for source in map(Path, LOGS):
        # The logs of a server that was there before belong to its owner.
        if source.is_dir() and (installed_by_us or source.name != "mysql"):
            shutil.copytree(source, target / source.name, dirs_exist_ok=True)
    _keep_journal(target / "journal.txt", sorted(units))
    return str(target)


def _keep_journal(target: Path, units: list[str]) -> None:
    if not units or target.exists():
        return
    named = [f"--unit={unit}" for unit in units]
    command = ["journalctl", "--no-pager", "--output=short-iso", *named]
    target.write_text(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
