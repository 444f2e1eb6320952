"""Packages that were on the host before the cluster: their files and services belong to the host's owner."""

from __future__ import annotations

from typing import Any

from ..app import STATE_DIRECTORY
from .database import SERVER, converge_databases, read_server, require_running
from .ledger import Ledger
from .packages import installed_versions
from .restore.entries import of_kind
from .restore.paths import restore_paths
from .units import converge_units


def preinstalled_packages(params: dict[str, Any], ledger: Ledger) -> set[str]:
    """The packages of trees, files and units that were on the host before the cluster."""
    named = {one["package"] for kind in ("trees", "files", "units") for one in params[kind] if one.get("package")}
    return {name for name in installed_versions(sorted(named)) if not ledger.installed_by_us(name)}


def restore_former_files(paths: list[str], ledger: Ledger) -> list[str]:
    """Replace files that the adapter no longer needs by their former content, in this order."""
    noted = of_kind(ledger.entries, "path")
    return [
        change
        for path in paths
        if path in noted
        for change in restore_paths({path: noted[path]}, STATE_DIRECTORY / "before")
    ]


def converge_services(params: dict[str, Any], foreign: set[str], ledger: Ledger, dry: bool) -> list[str]:
    """Converge units in their order, and databases once their server runs."""
    changes: list[str] = []
    before = of_kind(ledger.entries, "unit")
    units = []
    for unit in params["units"]:
        if unit["package"] not in foreign:
            units.append(unit)
        elif before[unit["name"]].get("ActiveState") == "active":
            require_running()
        else:
            units.append({**unit, "watches": [], "restart": False})
    if params["databases"]:
        changes += converge_units([unit for unit in units if unit["name"] == SERVER], dry)
        units = [unit for unit in units if unit["name"] != SERVER]
        if not dry or read_server().active:
            changes += converge_databases(params["databases"], dry)
    return changes + converge_units(units, dry)
