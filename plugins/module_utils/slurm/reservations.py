"""Reservations with their nodes.

Slurm 22.05 has no JSON for them, so the output with one line per reservation is parsed, which is the same in all
supported versions. If any line is not understood, the result is None, never an empty list.
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
    """Reservations from `scontrol --oneliner show reservations`, by name; None if the answer is not valid."""
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
