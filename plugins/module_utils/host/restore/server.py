"""Whether a clean-up removes the host's MariaDB: only if the adapter installed it and others do not use it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..database import DATA, PACKAGE, SERVER, drop_databases, foreign_databases
from .packages import still_needed

Noted = Mapping[str, Mapping[str, Any]]
NAMED = 5
# Packages, unit, account, directories, process and port of the server.
PARTS = re.compile(r"(package |unit |account |group |process |port )?(mariadb.*|mysql.*|galera.*|3306)|path .*/mysqld?")


def belongs_to_server(name: str) -> bool:
    return PARTS.fullmatch(name) is not None


def in_use(databases: Noted) -> bool:
    """Whether the server has databases of others. Read from its directory, so it works for a stopped server too."""
    return bool(foreign_databases(databases))


@dataclass(frozen=True)
class ServerPlan:
    """Whether the server stays and keeps running, and why if it did not run before the cluster."""

    stays: bool
    keeps_running: bool
    reasons: list[str] = field(default_factory=list)
    databases: Noted = field(default_factory=dict)
    may_start: bool = False

    def drop(self) -> list[str]:
        return list(drop_databases(self.databases, may_start=self.may_start))


def plan_server(units: Noted, packages: Noted, databases: Noted) -> ServerPlan:
    """By the server's state before the cluster, and by its present users."""
    if SERVER not in units:
        return ServerPlan(stays=False, keeps_running=False)
    ours = [name for name, before in packages.items() if not before["installed"]]
    reasons = []
    others = foreign_databases(databases)
    if others:
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        reasons.append(f"{DATA} has databases of others: {', '.join(others[:NAMED])}{more}")
    if PACKAGE in ours and PACKAGE in still_needed(ours):
        reasons.append(f"other packages need {PACKAGE}")
    ran = units[SERVER].get("ActiveState") == "active"
    stays = PACKAGE not in ours or bool(reasons)
    return ServerPlan(
        stays=stays,
        keeps_running=ran or bool(reasons),
        reasons=[] if ran else [f"{SERVER}.service stays and runs: {reason}" for reason in reasons],
        databases=databases,
        may_start=not ran,
    )
