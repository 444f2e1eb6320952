"""Keep what a person set DOWN out of service while daemons are restarted.

`ReturnToService=2` puts every DOWN node back to work when its slurmd registers, whoever set it DOWN. A drain stays. So
such a node is drained as well, with the person's own reason, before the adapter restarts a daemon. It stays drained:
setting it DOWN again afterwards would end a job that started in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..host.errors import RETRYABLE, AdapterError
from .leave import check_names, set_down_by_person

Nodes = Mapping[str, Any]


def hold_down(look: Callable[[], Nodes | None], run: Callable[[str, tuple[str, ...]], str]) -> dict[str, str]:
    """Nodes that are held now, with their reasons. If slurmctld does not answer, nothing can be known or held."""
    nodes = look()
    asked = set_down_by_person(nodes) if nodes is not None else {}
    said = {
        name: run(f"node {name} held", ("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}"))
        for name, reason in asked.items()
        if check_names([name])
    }
    if not asked:
        return {}
    after = look() or {}
    for name in asked:
        if name in after and "DRAIN" not in after[name]["flags"]:
            raise AdapterError(
                "not_held",
                f"Node {name} was set down by a person ({asked[name]}) and could not be drained"
                f" ({said[name] or 'Slurm gave no reason'}). A restart would put it back to work, so nothing was"
                " restarted. It is tried again.",
                RETRYABLE,
            )
    return asked
