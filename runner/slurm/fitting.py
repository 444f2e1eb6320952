"""A member's record, cut to what the platform takes. Pure."""

from collections.abc import Mapping
from typing import Any

from runner.model.limits import RECORD_BYTES, size
from runner.slurm.reports import DETAIL

# What hosts and Slurm report is cut, in this order and then by size: it can be read again on the host or at the next
# look. The rest of a record is what the runner decides by, and is never cut.
CUT_FIRST = (
    "residue",
    "services_left",
    "projects_foreign",
    "jobs",
    "drain_reason",
    "upgraded",
    "returned",
    "logs_kept",
)
# From the controller's snapshot, not from a report.
SEEN = ("mariadb_state", "munge_state")
DECIDED_BY = frozenset({"controller_hostname", "host_cleaned", "host_touched", "applied_config", "worker_hostname"})


def fitted(component: str, detail: Mapping[str, Any]) -> dict[str, Any]:
    """The detail, with reported keys set to null if it is too large; `cut` names them."""
    made = {key: value for key, value in detail.items() if key != "cut"}
    if size(made) <= RECORD_BYTES:
        return made
    others = {*DETAIL.get(component, {}), *SEEN} - DECIDED_BY - set(CUT_FIRST)
    cut: list[str] = []
    for key in (*CUT_FIRST, *sorted(others, key=lambda key: size(made.get(key)), reverse=True)):
        if made.get(key) is None:
            continue
        cut.append(key)
        made |= {key: None, "cut": cut}
        if size(made) <= RECORD_BYTES:
            break
    return made
