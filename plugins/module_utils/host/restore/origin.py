"""Whose a thing is that came to the host while we served, told by the ledger and by the packages that we brought.

The picture of the host (baseline.py) shows what is new, not who brought it: others may install a MariaDB or add a
drop-in during the cluster's life. What neither the ledger nor a package of ours accounts for is theirs and stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...app import FAMILIES, MAKERS, NAME, OTHER_MAKERS, SHARED_PATHS
from .entries import Entries, of_kind


def brought(entries: Entries) -> list[str]:
    """Packages that were not there before us."""
    return sorted(name for name, before in of_kind(entries, "package").items() if not before["installed"])


def accounts_to_remove(
    entries: Entries, baseline: Mapping[str, Iterable[str]] | None, present: Collection[str]
) -> list[str]:
    """Accounts that packages of ours made and left. `present` are packages that dpkg still knows."""
    if baseline is None:
        return []
    there = {*baseline["account"], *baseline["group"]}
    made = [account for account in MAKERS if account not in there and _is_made_by_us(account, entries, present)]
    return [account for account in made if not set(_makers(account, entries)) & set(present)]


def is_ours(difference: str, entries: Entries, present: Collection[str]) -> bool:
    """Whether the ledger, or a package that we brought, accounts for a difference: its kind and its name."""
    kind, _, name = difference.partition(" ")
    if "gpuaas" in name or (kind == "package" and name in brought(entries)):
        return True
    if kind in ("account", "group"):
        return _is_made_by_us(name, entries, present)
    if kind == "path":
        if _is_noted(Path(name), entries) or SHARED_PATHS.get(name) in brought(entries):
            return True
        if name.endswith(".service.d"):  # made by hand or by us, never by a package
            return any(Path(name).glob(f"*{NAME}*"))
    last = name.rpartition("/")[2]
    return kind != "package" and any(part.fullmatch(last) and _serves(of, entries) for of, part in FAMILIES.items())


def _makers(account: str, entries: Entries) -> list[str]:
    return [name for name in brought(entries) if account in MAKERS and MAKERS[account].fullmatch(name)]


def _is_made_by_us(account: str, entries: Entries, present: Collection[str]) -> bool:
    other = OTHER_MAKERS.get(account)
    theirs = [name for name in set(present) - set(brought(entries)) if other and other.fullmatch(name)]
    return bool(_makers(account, entries)) and not theirs


def _serves(family: str, entries: Entries) -> bool:
    """Whether we brought its daemons, or started those that were there."""
    units: dict[str, Any] = of_kind(entries, "unit")
    return bool(_makers(family, entries)) or any(FAMILIES[family].fullmatch(unit) for unit in units)


def _is_noted(path: Path, entries: Entries) -> bool:
    noted = [Path(name) for kind in ("path", "tree") for name in of_kind(entries, kind)]
    return any(path == one or path in one.parents for one in noted)
