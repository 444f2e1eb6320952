"""Which entries of a ledger are removed with a member, and which another member still needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Entries = Mapping[str, Mapping[str, Any]]


def entries_to_remove(entries: Entries, component: str) -> dict[str, dict[str, Any]]:
    """Entries that only this component owns. Two members may share a host."""
    return {key: dict(entry) for key, entry in entries.items() if all(_is_of(o, component) for o in entry["owners"])}


def entries_to_keep(entries: Entries, component: str) -> dict[str, dict[str, Any]]:
    """The ledger without this component."""
    gone = entries_to_remove(entries, component)
    return {
        key: {**entry, "owners": [owner for owner in entry["owners"] if not _is_of(owner, component)]}
        for key, entry in entries.items()
        if key not in gone
    }


def of_kind(entries: Entries, kind: str) -> dict[str, dict[str, Any]]:
    """The former state of each thing of a kind, by name."""
    return {key.partition(":")[2]: entry["before"] for key, entry in entries.items() if key.startswith(f"{kind}:")}


def _is_of(owner: str, component: str) -> bool:
    return owner.partition("/")[0] == component
