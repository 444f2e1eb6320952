"""Which of a ledger's entries may go with a member, and which are still another's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Entries = Mapping[str, Mapping[str, Any]]


def leaving(entries: Entries, component: str) -> dict[str, dict[str, Any]]:
    """Entries that nobody but this component asked for. Two members may share a host."""
    return {key: dict(entry) for key, entry in entries.items() if all(_is_of(o, component) for o in entry["owners"])}


def remaining(entries: Entries, component: str) -> dict[str, dict[str, Any]]:
    """What the ledger still has to say once this component is gone."""
    gone = leaving(entries, component)
    return {
        key: {**entry, "owners": [owner for owner in entry["owners"] if not _is_of(owner, component)]}
        for key, entry in entries.items()
        if key not in gone
    }


def of_kind(entries: Entries, kind: str) -> dict[str, dict[str, Any]]:
    """What each thing of a kind was like before, by its name."""
    return {key.partition(":")[2]: entry["before"] for key, entry in entries.items() if key.startswith(f"{kind}:")}


def _is_of(owner: str, component: str) -> bool:
    return owner.partition("/")[0] == component
