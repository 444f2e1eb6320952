"""Packages that were on the host before us: their files and services are their owner's."""

from __future__ import annotations

from typing import Any

from ..app import STATE_DIRECTORY
from .database import SERVER, has_databases, look, require_running
from .ledger import Ledger
from .packages import installed_versions
from .restore.entries import of_kind
from .restore.paths import restore_paths
from .units import converge_units


def theirs(params: dict[str, Any], ledger: Ledger) -> set[str]:
    """Of the packages that trees, files and units belong to, those that were there before us."""
    named = {one["package"] for kind in ("trees", "files", "units") for one in params[kind] if one.get("package")}
    return {name for name in installed_versions(sorted(named)) if not ledger.brought(name)}


def withdraw(paths: list[str], ledger: Ledger) -> list[str]:
    """Files of ours that have no place any more go back to what was there, in this order."""
    noted = of_kind(ledger.entries, "path")
    return [
        change
        for path in paths
        if path in noted
        for change in restore_paths({path: noted[path]}, STATE_DIRECTORY / "before")
    ]


def serve(params: dict[str, Any], foreign: set[str], ledger: Ledger, dry: bool) -> list[str]:
    """Units in their order, and databases as soon as their server runs."""
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
        if not dry or look().active:
            changes += has_databases(params["databases"], dry)
    return changes + converge_units(units, dry)
