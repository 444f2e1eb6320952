"""Which nodes may be drained, resumed or deleted, from the controller's answers. Pure.

Everything fails closed. A state that is absent, unknown or unreadable never counts as drained: other operators made
that mistake and lost running jobs. The reason of a drain shows whether a person or the adapter set it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from ..host.errors import INTERVENTION, AdapterError
from .jobs import naming
from .node_rules import ANY_OPERATION, OUR_PREFIX, delete_obstacle, is_set_down_by_person

_OPERATION = re.compile(rf"{OUR_PREFIX}[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}(?![0-9A-Za-z-])")
NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?")
# scontrol reads this name, in upper or lower case, as every node.
EVERY_NODE = "all"
REASON_LENGTH = 200


class Verdict(TypedDict):
    did: str
    code: str | None
    reason: str | None


def verdict(did: str, reason: str | None = None, code: str | None = None) -> Verdict:
    return {"did": did, "code": code, "reason": reason}


def check_names(names: Iterable[str]) -> list[str]:
    """Sorted and without duplicates. A name that Slurm would read as more than one node is refused."""
    listed = sorted(set(names))
    for name in listed:
        if not NODE_NAME.fullmatch(name) or name.lower() == EVERY_NODE:
            raise AdapterError(
                "node_name_refused",
                f"{name!r} is not the name of one node. Correct the member's record, then retry.",
                INTERVENTION,
            )
    return listed


def check_reason(reason: str) -> str:
    """One printable line with our prefix, which marks the drain as the adapter's."""
    text = " ".join("".join(c for c in reason if c.isprintable() or c.isspace()).split()).replace('"', "'")
    if not text.startswith(OUR_PREFIX):
        raise AdapterError(
            "reason_refused",
            f"A drain's reason must start with {OUR_PREFIX}, which marks it as the adapter's. Correct it, then retry.",
            INTERVENTION,
        )
    return text[:REASON_LENGTH]


def to_drain(names: Iterable[str], nodes: Mapping[str, Any]) -> tuple[list[str], dict[str, Verdict]]:
    """Nodes to drain now, and a verdict on those that are left as they are."""
    wanted, left = [], {}
    for name in names:
        node = nodes.get(name)
        if node is None:
            left[name] = verdict("absent", f"The controller has no node {name}.")
        elif "DRAIN" in node["flags"]:
            left[name] = standing_drain(node)
        else:
            wanted.append(name)
    return wanted, left


def standing_drain(node: Mapping[str, Any]) -> Verdict:
    reason = node["reason"]
    ours = reason and reason.startswith(OUR_PREFIX)
    return verdict("already_draining" if ours else "held_by_person", reason)


def to_resume(names: Iterable[str], owner: str, nodes: Mapping[str, Any]) -> tuple[list[str], dict[str, Verdict]]:
    """Nodes with a drain that `owner` may lift, and a verdict on the others."""
    wanted, left = [], {}
    for name in names:
        node = nodes.get(name)
        if node is None:
            left[name] = verdict("absent", f"The controller has no node {name}.")
        elif "DRAIN" not in node["flags"]:
            left[name] = verdict("left", f"Node {name} is not drained.")
        elif not owns(owner, node["reason"]):
            left[name] = verdict("left", f"Another owner drained {name}: {node['reason'] or 'no reason given'}.")
        else:
            wanted.append(name)
    return wanted, left


def owns(owner: str, reason: str | None) -> bool:
    """Whether a drain with this reason is the owner's. `gpuaas:` owns every drain of the adapter, also by hand."""
    if not reason:
        return False
    if owner == ANY_OPERATION:
        return bool(_OPERATION.match(reason))
    if not owner.startswith(OUR_PREFIX) or not reason.startswith(owner):
        return False
    # One operation's id may be the start of another's.
    return owner.endswith(":") or reason[len(owner) :][:1] in ("", ":", " ")


def obstacle(name: str, seen: Mapping[str, Any]) -> Verdict | None:
    """Why the node may not be deleted now; None if it may be."""
    for kind in ("nodes", "jobs", "reservations"):
        if seen[kind] is None:
            return verdict("unknown", f"The controller did not list its {kind}. The adapter retries.", "state_unknown")
    node = seen["nodes"].get(name)
    if node is None:
        return verdict("absent")
    named_by = naming(name, seen["jobs"])
    reserved_by = [one["name"] for one in seen["reservations"] if name in one["nodes"]]
    found = delete_obstacle(name, node["state"], node["flags"], node["jobs"], named_by, reserved_by)
    if found is None:
        return None
    return verdict("unknown" if found.code == "state_unknown" else "kept", found.message, found.code)


def set_down_by_person(nodes: Mapping[str, Any]) -> dict[str, str]:
    """Nodes that a person set DOWN, with the reason. A registration of slurmd would return them to service."""
    return {
        name: node["reason"] or "set down by a person"
        for name, node in sorted(nodes.items())
        if is_set_down_by_person(node["state"], node["flags"], node["reason"], node["reason_by"])
    }
