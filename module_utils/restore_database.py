"""A database that we made in somebody else's MariaDB, dropped by that server: its files alone are not all of it."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .adapter_error import REPAIRABLE, AdapterError
from .converge_ledger import Ledger
from .converge_units import show

DATA = Path("/var/lib/mysql")
SERVER = "mariadb"
START_SECONDS = 60
NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


def note_databases(ledger: Ledger, databases: list[dict[str, Any]]) -> None:
    for database in databases:
        before = {"present": (DATA / database["name"]).exists(), "user": database["user"]}
        ledger.note("database", database["name"], before)


def drop_databases(noted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """For a server that stays. One that goes takes its data along."""
    ours = {name: before["user"] for name, before in noted.items() if not before["present"] and (DATA / name).exists()}
    if not ours:
        return []
    if show([SERVER]).get(SERVER, {}).get("ActiveState") != "active":
        _start()
    for name, user in sorted(ours.items()):
        _drop(name, user)
    return [f"database {name}" for name in sorted(ours)]


def databases_left(noted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [f"database {name}" for name, before in noted.items() if not before["present"] and (DATA / name).exists()]


def _start() -> None:
    subprocess.run(["systemctl", "--no-block", "restart", SERVER], capture_output=True, check=False, timeout=60)
    deadline = time.monotonic() + START_SECONDS
    while show([SERVER]).get(SERVER, {}).get("ActiveState") != "active":
        if time.monotonic() > deadline:
            raise _undropped(f"{SERVER}.service does not start")
        time.sleep(0.2)


def _drop(name: str, user: str) -> None:
    if not NAME.fullmatch(name) or not NAME.fullmatch(user):
        raise _undropped(f"{name!r} or {user!r} is not a name that we give")
    # The user first: its database being there is what tells the next attempt that there is something to do.
    statements = f"DROP USER IF EXISTS '{user}'@'localhost'; DROP DATABASE IF EXISTS `{name}`;"
    done = subprocess.run(
        ["mariadb", "--batch"], input=statements, capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode != 0:
        raise _undropped((done.stderr or done.stdout).strip() or "the server gave no reason")


def _undropped(why: str) -> AdapterError:
    return AdapterError(
        "database_not_dropped",
        f"The accounting database is still in the host's MariaDB: {why}. See to the server, then ask again.",
        REPAIRABLE,
    )
