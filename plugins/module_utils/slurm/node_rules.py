"""Rules about Slurm nodes: one table of states and flags for the modules on hosts and for the runner.

Pure and standard library only. The runner imports this same file as `runner.slurm.node_rules` (a symbolic link), so the
two sides cannot disagree. Everything fails closed: a state that is not listed as settled is never taken for drained,
since Slurm sets the flag DRAIN at once, while jobs still run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

BASE_STATES = frozenset({"UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE"})
SERVING_STATES = frozenset({"IDLE", "MIXED", "ALLOCATED"})
# The only base states in which a node can be without a job. Any other state says nothing about jobs.
SETTLED_STATES = frozenset({"IDLE", "DOWN"})
BUSY_STATES = frozenset({"ALLOCATED", "MIXED"})
# COMPLETING: a job's processes are still being ended. UNDRAIN: the drain is being lifted.
BUSY_FLAGS = frozenset({"COMPLETING"})
NOT_DRAINED_FLAGS = frozenset({"UNDRAIN"})
# With one of these flags Slurm starts nothing on the node, whatever its base state is.
HOLDING_FLAGS = frozenset(
    {
        "DRAIN",
        "FAIL",
        "INVALID_REG",
        "MAINTENANCE",
        "NOT_RESPONDING",
        "POWERED_DOWN",
        "POWERING_DOWN",
        "POWERING_UP",
        "POWER_DOWN",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
    }
)
# Reasons that start with this are the adapter's own. The id of the operation follows, or `manual:` (BY_HAND_PREFIX).
OUR_PREFIX = "gpuaas:"
# A drain that a person set with the adapter's playbook; it counts as the person's.
BY_HAND_PREFIX = f"{OUR_PREFIX}manual:"
# Stands for all drains that operations set, and for none that a person set, with our playbook or without.
ANY_OPERATION = f"{OUR_PREFIX}*"
# slurmd drains its own node as root, like a person; only these reasons show which of the two did.
SLURM_REASONS = ("Kill task failed",)
# A message must fit into the record of one operation, however many jobs there are.
NAMES_SHOWN = 20
NAME_CHARS = 60


class Obstacle(NamedTuple):
    """Why a node does not count as drained, or must not be deleted."""

    code: str
    message: str


def is_serving(state: str, flags: Collection[str]) -> bool:
    """Registered with values that Slurm accepts, and open for jobs."""
    return state in SERVING_STATES and not HOLDING_FLAGS.intersection(flags)


def is_held(state: str, flags: Collection[str]) -> bool:
    """Registered and answering, and closed for jobs by nothing but a drain."""
    return state in SERVING_STATES and HOLDING_FLAGS.intersection(flags) == {"DRAIN"}


def is_drained(state: str, flags: Collection[str], jobs: Collection[object]) -> bool:
    return drain_obstacle("", state, flags, jobs) is None


def drain_obstacle(name: str, state: str, flags: Collection[str], jobs: Collection[object]) -> Obstacle | None:
    """Why this node does not count as drained; None if it does. `jobs` are those that are on the node."""
    shown = "+".join([state, *sorted(flags)])
    if "DRAIN" not in flags or NOT_DRAINED_FLAGS.intersection(flags):
        return Obstacle("not_drained", f"Node {name} is {shown}, not drained. Drain it first.")
    if jobs:
        message = f"Node {name} is {shown} with job {_listed(jobs)}. Wait for its jobs, or end them."
        return Obstacle("not_drained", message)
    if state in BUSY_STATES or BUSY_FLAGS.intersection(flags):
        return Obstacle("not_drained", f"Node {name} is {shown}: a job on the node is still completing. Wait for it.")
    if state not in SETTLED_STATES:
        message = f"Node {name} is {shown}, so it is unknown whether a job is on the node. The adapter retries."
        return Obstacle("state_unknown", message)
    return None


def _listed(names: Collection[object]) -> str:
    """The first names, and how many more there are; a long list of array elements is cut."""
    texts = [str(name) for name in names]
    first = [text if len(text) <= NAME_CHARS else f"{text[: NAME_CHARS - 3]}..." for text in texts[:NAMES_SHOWN]]
    more = f" and {len(texts) - NAMES_SHOWN} more" if len(texts) > NAMES_SHOWN else ""
    return ", ".join(first) + more


def delete_obstacle(
    name: str,
    state: str,
    flags: Collection[str],
    jobs: Collection[object],
    named_by: Sequence[str],
    reserved_by: Sequence[str],
) -> Obstacle | None:
    """Why this node must not be deleted now; None if it may be.

    `named_by`: jobs that ask for the node by name. They would end in NODE_FAIL once the node is gone.
    """
    not_drained = drain_obstacle(name, state, flags, jobs)
    if not_drained:
        return not_drained
    if named_by:
        return Obstacle(
            "jobs_need_node",
            f"Job {_listed(named_by)} waits for node {name} by name. Change it"
            " (scontrol update jobid=ID nodelist=) or cancel it.",
        )
    if reserved_by:
        return Obstacle(
            "node_reserved",
            f"Reservation {_listed(reserved_by)} holds node {name}. Take the node out of it, or delete it.",
        )
    return None


def is_held_by_person(state: str, flags: Collection[str], reason: str | None, reason_by: str | None) -> bool:
    """Drained or set down by a person, not by Slurm itself and not by an operation."""
    text = reason or ""
    by_slurm = reason_by == "slurm" or text.startswith(SLURM_REASONS)
    if "DRAIN" not in flags:
        return state == "DOWN" and bool(reason_by) and not by_slurm and not text.startswith(OUR_PREFIX)
    if text.startswith(OUR_PREFIX):
        return text.startswith(BY_HAND_PREFIX)
    return not by_slurm


def is_set_down_by_person(state: str, flags: Collection[str], reason: str | None, reason_by: str | None) -> bool:
    """Set to DOWN by a person and not drained: the next registration of its slurmd would return it to service."""
    return state == "DOWN" and "DRAIN" not in flags and is_held_by_person(state, flags, reason, reason_by)


def drain_holder(flags: Collection[str], reason: str | None, reason_by: str | None) -> str:
    """Who set the drain: us, person or slurm; none if it is not drained."""
    if "DRAIN" not in flags:
        return "none"
    if is_held_by_person("", flags, reason, reason_by):
        return "person"
    return "us" if (reason or "").startswith(OUR_PREFIX) else "slurm"
