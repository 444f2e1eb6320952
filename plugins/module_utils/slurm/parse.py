"""Answers of Slurm about nodes and daemons, as one typed result for every supported version.

Slurm 22.05 answers `sinfo --json` with `state: "mixed"` and a list of flags; from 23.02 on
`scontrol show nodes --json` answers `state: ["MIXED", "DRAIN"]` and numbers as {set, infinite, number}.
This module reads both. Pure and standard library only: it runs inside modules on hosts and in unit tests.

An answer that cannot be trusted is None, never an empty collection: 22.05 exits 0 with `nodes: []` and a
filled `errors` list when the controller is down, which does not mean "no nodes".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, TypedDict

from ..host.facts import utc_time
from . import node_rules
from .node_rules import BASE_STATES


class Node(TypedDict):
    state: str
    flags: list[str]
    reason: str | None
    reason_by: str | None
    cpus: int
    memory_mb: int
    gres: str
    gres_used: str
    address: str
    slurm_version: str | None
    slurmd_started_at: str | None
    features: list[str]
    partitions: list[str]
    jobs: list[str]


class Daemon(TypedDict):
    ping: str
    slurm_version: str | None
    cluster_name: str | None
    started_at: str | None
    config_loaded: bool | None
    process_control: str | None


def is_serving(node: Node) -> bool:
    """Registered with values that Slurm accepts, and able to take jobs."""
    return node_rules.is_serving(node["state"], node["flags"])


def is_held(node: Node) -> bool:
    """Registered and answering, and out of service only because of a drain."""
    return node_rules.is_held(node["state"], node["flags"])


def has_registered(node: Node, started: float | None = None) -> bool:
    """Whether the node serves or is only drained. With `started`, whether the slurmd that started then registered."""
    if not (is_serving(node) or is_held(node)):
        return False
    if started is None:
        return True
    # Slurm shows whole seconds, and a slightly later time than the start of the process.
    return node["slurmd_started_at"] is not None and node["slurmd_started_at"] >= utc_time(started - 1)


def parse_nodes(answer: str | None) -> dict[str, Node] | None:
    """The nodes; None if the answer is not valid (controller down, output cut off, not JSON)."""
    found = read_list(answer, "nodes")
    if found is None:
        return None
    try:
        return {str(raw["name"]): _node(raw) for raw in found}
    except (KeyError, TypeError, ValueError):
        return None


def parse_daemon(answer: str | None) -> Daemon:
    """The running slurmctld by `scontrol show config`, called with TZ=UTC.

    The last line is Slurm's own ping; the values above it come from the daemon's memory, not from a file.
    """
    text = answer or ""
    ping = re.search(r"^Slurmctld\(primary\) at \S+ is (UP|DOWN)\s*$", text, re.MULTILINE)
    started = _config_value(text, "BOOT_TIME")
    # Slurm's own comparison of slurm.conf on disk with the one that slurmctld has read.
    compared = _config_value(text, "HASH_VAL") or ""
    return {
        "ping": ping.group(1) if ping else ("UNKNOWN" if text else "DOWN"),
        "slurm_version": _config_value(text, "SLURM_VERSION"),
        "cluster_name": _config_value(text, "ClusterName"),
        "started_at": f"{started}Z" if started and re.fullmatch(r"[\d-]+T[\d:]+", started) else None,
        "config_loaded": {"Match": True, "Different": False}.get(compared.partition(" ")[0]),
        "process_control": (_config_value(text, "ProctrackType") or "").removeprefix("proctrack/") or None,
    }


def parse_slurmdbd_version(answer: str | None) -> str | None:
    """The version of the running slurmdbd by `sacctmgr show configuration`, which also has that of sacctmgr."""
    return _config_value(answer or "", "SLURMDBD_VERSION")


def expand_hostlist(expression: str) -> list[str]:
    """Names in a Slurm host list: 'a,b[1-3,07],c[1-2]x' -> each name, in order, without duplicates."""
    names: list[str] = []
    for part in _split_top_level(expression):
        names.extend(_expand(part))
    return list(dict.fromkeys(names))


def read_list(answer: str | None, key: str) -> list[dict[str, Any]] | None:
    if not answer:
        return None
    try:
        document = json.loads(answer)
    except ValueError:
        return None
    if not isinstance(document, dict) or document.get("errors"):
        return None
    found = document.get(key)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        return None
    return found


def _node(raw: dict[str, Any]) -> Node:
    names = [str(name).upper() for name in as_list(raw["state"])]
    names += [str(flag).upper() for flag in raw.get("state_flags") or []]
    base = [name for name in names if name in BASE_STATES]
    return {
        "state": base[0] if base else "UNKNOWN",
        "flags": sorted({name for name in names if name not in BASE_STATES}),
        "reason": raw.get("reason") or None,
        "reason_by": raw.get("reason_set_by_user") or None,
        "cpus": int(raw["cpus"]),
        "memory_mb": int(raw["real_memory"]),
        "gres": str(raw.get("gres") or ""),
        "gres_used": str(raw.get("gres_used") or ""),
        "address": str(raw.get("address") or ""),
        "slurm_version": raw.get("slurmd_version") or raw.get("version") or None,
        "slurmd_started_at": read_time(raw.get("slurmd_start_time")),
        "features": sorted(_names(raw.get("features"))),
        "partitions": sorted(_names(raw.get("partitions"))),
        "jobs": [],
    }


def read_time(value: object) -> str | None:
    epoch = number(value)
    return utc_time(epoch) if epoch else None


def number(value: object) -> int | None:
    if isinstance(value, dict):
        return int(value["number"]) if value.get("set") and not value.get("infinite") else None
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else None


def as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _names(value: object) -> Iterable[str]:
    if isinstance(value, str):
        return [name for name in value.split(",") if name]
    return [str(name) for name in value] if isinstance(value, list) else []


def _config_value(text: str, key: str) -> str | None:
    found = re.search(rf"^{re.escape(key)}\s+= (.*?)\s*$", text, re.MULTILINE)
    return found.group(1) if found and found.group(1) not in ("", "(null)") else None


def _split_top_level(expression: str) -> list[str]:
    return [part for part in re.split(r",(?![^\[]*\])", expression) if part]


def _expand(part: str) -> list[str]:
    bracket = re.search(r"\[([^\]]*)\]", part)
    if not bracket:
        return [part]
    names: list[str] = []
    for piece in bracket.group(1).split(","):
        first, _, last = piece.partition("-")
        for number in range(int(first), int(last or first) + 1):
            names.extend(_expand(f"{part[: bracket.start()]}{number:0{len(first)}d}{part[bracket.end() :]}"))
    return names
