"""States of partitions, and which names may be passed to scontrol. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..host.errors import INTERVENTION, AdapterError

STATES = ("UP", "DOWN", "DRAIN", "INACTIVE")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")


def parse_partitions(answer: str | None) -> dict[str, str] | None:
    """Name to state, from `scontrol --oneliner show partitions`; None if the answer is not one."""
    if answer is None:
        return None
    found: dict[str, str] = {}
    for line in answer.splitlines():
        fields = dict(field.partition("=")[::2] for field in line.split() if "=" in field)
        name, state = fields.get("PartitionName"), fields.get("State")
        if not name or state not in STATES:
            return {} if line.strip() == "No partitions in the system" else None
        found[name] = state
    return found


def to_change(wanted: Mapping[str, str], states: Mapping[str, str]) -> dict[str, str]:
    """Partitions whose state differs from the wanted one. A partition that no longer exists is skipped."""
    for name, state in wanted.items():
        if not NAME.fullmatch(name) or state not in STATES:
            raise AdapterError(
                "partition_refused",
                f"{name!r}={state!r} is not a partition and a state. Correct the record, then retry.",
                INTERVENTION,
            )
    return {name: state for name, state in sorted(wanted.items()) if name in states and states[name] != state}
