"""Reservations, by name and by the nodes they hold.

Slurm 22.05 has no JSON for them, so both supported versions are asked for one line a reservation, which they
write alike. As with nodes, an answer that is not understood to its last line is None, never "none reserved".
"""

from __future__ import annotations

import re
from typing import TypedDict

from .parse import expand_hostlist

NONE_AT_ALL = "No reservations in the system"
LINE = re.compile(r"ReservationName=(?P<name>\S+) .*?\bNodes=(?P<nodes>\S*) ")


class Reservation(TypedDict):
    name: str
    nodes: list[str]


def parse_reservations(answer: str | None) -> list[Reservation] | None:
    """What `scontrol --oneliner show reservations` says, by name; None if it cannot be trusted."""
    lines = [line.strip() for line in (answer or "").splitlines() if line.strip()]
    if lines == [NONE_AT_ALL]:
        return []
    found = [LINE.match(line) for line in lines]
    if not found or None in found:
        return None
    try:
        reservations: list[Reservation] = [
            {"name": match["name"], "nodes": _nodes(match["nodes"])} for match in found if match
        ]
    except ValueError:
        return None
    return sorted(reservations, key=lambda reservation: reservation["name"])


def _nodes(expression: str) -> list[str]:
    return [] if expression == "(null)" else expand_hostlist(expression)
