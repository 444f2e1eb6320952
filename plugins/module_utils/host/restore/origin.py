"""Whether the adapter or others brought a new thing to the host, by the ledger and by the packages that we installed.

The baseline (baseline.py) shows what is new, not who created it: others may install a MariaDB or add a drop-in while
the cluster exists. A thing that neither the ledger nor a package of ours explains belongs to others and stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...app import FAMILIES, MAKERS, NAME, OTHER_MAKERS, SHARED_PATHS
from .entries import Entries, of_kind


def installed_by_us(entries: Entries) -> list[str]:
    """Packages that the adapter installed."""
    return sorted(name for name, before in of_kind(entries, "package").items() if not before["installed"])


def accounts_to_remove(
    entries: Entries, baseline: Mapping[str, Iterable[str]] | None, present: Collection[str]
) -> list[str]:
    """Accounts that packages of ours created and left behind. `present` are packages that dpkg still lists."""
    if baseline is None:
        return []
    there = {*baseline["account"], *baseline["group"]}
    made = [account for account in MAKERS if account not in there and _is_made_by_us(account, entries, present)]
    return [account for account in made if not set(_makers(account, entries)) & set(present)]


def is_ours(difference: str, entries: Entries, present: Collection[str]) -> bool:
    """Whether the ledger, or a package that we installed, explains a difference, given as kind and name."""
    kind, _, name = difference.partition(" ")
    if "gpuaas" in name or (kind == "package" and name in installed_by_us(entries)):
        return True
    if kind in ("account", "group"):
        return _is_made_by_us(name, entries, present)
    if kind == "path":
        if _is_noted(Path(name), entries) or SHARED_PATHS.get(name) in installed_by_us(entries):
            return True
        if name.endswith(".service.d"):  # created by hand or by the adapter, never by a package
            return any(Path(name).glob(f"*{NAME}*"))
    last = name.rpartition("/")[2]
    return kind != "package" and any(part.fullmatch(last) and _serves(of, entries) for of, part in FAMILIES.items())


def _makers(account: str, entries: Entries) -> list[str]:
    return [name for name in installed_by_us(entries) if account in MAKERS and MAKERS[account].fullmatch(name)]


def _is_made_by_us(account: str, entries: Entries, present: Collection[str]) -> bool:
    other = OTHER_MAKERS.get(account)
    theirs = [name for name in set(present) - set(installed_by_us(entries)) if other and other.fullmatch(name)]
    return bool(_makers(account, entries)) and not theirs


def _serves(family: str, entries: Entries) -> bool:
    """Whether the adapter installed the family's daemons, or started installed ones."""
    units: dict[str, Any] = of_kind(entries, "unit")
    return bool(_makers(family, entries)) or any(FAMILIES[family].fullmatch(unit) for unit in units)


def _is_noted(path: Path, entries: Entries) -> bool:
    noted = [Path(name) for kind in ("path", "tree") for name in of_kind(entries, kind)]
    return any(path == one or path in one.parents for one in noted)
