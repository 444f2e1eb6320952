"""What becomes of the host's MariaDB when we leave: it goes only if we brought it and nobody else uses it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..database import DATA, PACKAGE, SERVER, drop_databases, foreign_databases
from .packages import still_needed

Noted = Mapping[str, Mapping[str, Any]]
NAMED = 5
# Whatever belongs to the server: its packages, unit, account, directories, process and port.
PARTS = re.compile(r"(package |unit |account |group |process |port )?(mariadb.*|mysql.*|galera.*|3306)|path .*/mysqld?")


def is_servers(name: str) -> bool:
    return PARTS.fullmatch(name) is not None


def in_use(databases: Noted) -> bool:
    """Whether the server has databases of others. Read from its directory, so also while it cannot run."""
    return bool(foreign_databases(databases))


@dataclass(frozen=True)
class ServerFate:
    """Whether the server stays, whether it goes on running, and why if that was not so from the start."""

    stays: bool
    keeps_running: bool
    reasons: list[str] = field(default_factory=list)
    databases: Noted = field(default_factory=dict)
    may_start: bool = False

    def drop(self) -> list[str]:
        return list(drop_databases(self.databases, may_start=self.may_start))


def fate_of(units: Noted, packages: Noted, databases: Noted) -> ServerFate:
    """From what the ledger noted of the server before us, and who uses it now."""
    if SERVER not in units:
        return ServerFate(stays=False, keeps_running=False)
    brought = [name for name, before in packages.items() if not before["installed"]]
    reasons = []
    others = foreign_databases(databases)
    if others:
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        reasons.append(f"{DATA} has databases that are not ours: {', '.join(others[:NAMED])}{more}")
    if PACKAGE in brought and PACKAGE in still_needed(brought):
        reasons.append(f"other packages need {PACKAGE}")
    ran = units[SERVER].get("ActiveState") == "active"
    stays = PACKAGE not in brought or bool(reasons)
    return ServerFate(
        stays=stays,
        keeps_running=ran or bool(reasons),
        reasons=[] if ran else [f"{SERVER}.service stays and runs: {reason}" for reason in reasons],
        databases=databases,
        may_start=not ran,
    )
