"""Keep nodes that a person set DOWN out of service while daemons are restarted.

With `ReturnToService=2` a DOWN node returns to service when its slurmd registers, also if a person set it DOWN. A drain
survives the registration. So the adapter drains such a node, with the person's reason, before it restarts a daemon. The
node stays drained: setting it DOWN again would end a job that started in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..host.errors import RETRYABLE, AdapterError
from .leave import check_names, set_down_by_person

Nodes = Mapping[str, Any]


def hold_down(look: Callable[[], Nodes | None], run: Callable[[str, tuple[str, ...]], str]) -> dict[str, str]:
    """Drain the nodes that a person set DOWN; returns them with their reasons. Empty if slurmctld does not answer."""
    wanted = set_down_by_person(look() or {})
    if not wanted:
        return {}
    check_names(wanted)
    complaints = {
        name: run(f"node {name} held", ("scontrol", "update", f"NodeName={name}", "State=DRAIN", f"Reason={reason}"))
        for name, reason in wanted.items()
    }
    after = look() or {}
    for name in wanted:
        if name in after and "DRAIN" not in after[name]["flags"]:
            raise AdapterError(
                "not_held",
                f"Node {name} was set down by a person ({wanted[name]}) and could not be drained"
                f" ({complaints[name] or 'Slurm gave no reason'}). A restart would return the node to service, so"
                " nothing was restarted. The adapter retries.",
                RETRYABLE,
            )
    return wanted
