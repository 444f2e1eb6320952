"""Whether a controller serves, by the answers of slurmctld over a short time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..host.units import TOLERATED_RESTARTS, journal, state_of
from . import account_lists
from . import hold as slurm_hold
from .commands import ask, nodes_command, run
from .parse import is_serving, parse_daemon, parse_nodes

POLL_SECONDS = 0.2
# A daemon that fails because of its configuration does so within its first second.
STEADY_SECONDS = 1.5


@dataclass(frozen=True)
class Cluster:
    """The nodes of a controller before a change."""

    nodes: list[str] = field(default_factory=list)
    serving: list[str] = field(default_factory=list)

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> Cluster:
        return cls(list(note["nodes"]), list(note["serving"]))


def look_at_cluster() -> Cluster:
    """The nodes now. Empty if slurmctld does not answer: then no comparison is possible after the change."""
    found = parse_nodes(ask(*nodes_command())) or {}
    return Cluster(sorted(found), sorted(name for name, node in found.items() if is_serving(node)))


def hold_down() -> None:
    """For use before a restart or a reconfigure, after which every slurmd registers again; see hold.py."""

    def run_command(_change: str, command: tuple[str, ...]) -> str:
        return run(*command)[2]

    if runs():
        slurm_hold.hold_down(lambda: parse_nodes(ask(*nodes_command())), run_command)


def runs() -> bool:
    return state_of("slurmctld").get("ActiveState") in ("active", "reloading", "activating")


def running_series() -> str:
    """The series of the installed slurmctld, which a restart starts."""
    version = (ask("slurmctld", "-V") or "").split()
    return ".".join(version[-1].split(".")[:2]) if version else ""


def is_loaded() -> bool | None:
    """Whether slurmctld runs with the file on disk, by Slurm's own comparison; None if unknown."""
    return parse_daemon(ask("scontrol", "show", "config"))["config_loaded"]


def problem(before: Cluster) -> str | None:
    """Why the controller does not serve as it did; None if it does."""
    daemon = parse_daemon(ask("scontrol", "show", "config"))
    if daemon["ping"] != "UP":
        state = state_of("slurmctld").get("ActiveState", "unknown")
        return f"slurmctld is {state} and does not answer"
    if daemon["config_loaded"] is False:
        return "slurmctld does not run with the configuration on disk"
    found = parse_nodes(ask(*nodes_command()))
    if found is None:
        return "slurmctld does not list its nodes"
    gone = [name for name in before.nodes if name not in found]
    if gone:
        return f"slurmctld has lost {', '.join(gone[:5])}{' and more' if len(gone) > 5 else ''}"
    # One worker may fail for another reason; if all fail at once, the change is the reason.
    if before.serving and not any(is_serving(found[name]) for name in before.serving):
        return "none of the workers that served before serves"
    return None


def watch(before: Cluster, seconds: float) -> str | None:
    """Wait until the controller serves steadily. Returns None, or the problem at the end of the time."""
    since, deadline = time.time(), time.monotonic() + seconds
    good_since: float | None = None
    process = ""
    while True:
        state = state_of("slurmctld")
        found = problem(before)
        if state.get("MainPID", "") != process:
            process, good_since = state.get("MainPID", ""), None
        if found:
            good_since = None
        elif good_since is None:
            good_since = time.monotonic()
        elif time.monotonic() - good_since >= STEADY_SECONDS:
            return None
        dying = int(state.get("NRestarts") or 0) > TOLERATED_RESTARTS or state.get("ActiveState") == "failed"
        if time.monotonic() > deadline or (found and dying):
            lines = [line for line in journal("slurmctld", since, 40) if "error" in line or "fatal" in line][-3:]
            return (found or "slurmctld did not stay up") + (
                f"; its log: {' | '.join(lines)}".rstrip(".") if lines else ""
            )
        time.sleep(POLL_SECONDS)


def reconfigure() -> str | None:
    """The error of scontrol; None if slurmctld accepted."""
    code, output, errors = run("scontrol", "reconfigure")
    if code == 0:
        account_lists.apply_kept()  # the new configuration admits no account until then
        return None
    return (errors or output or "scontrol reconfigure did not end").strip()
