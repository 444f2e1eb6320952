"""Whether a controller serves: asked of slurmctld itself, and held for a moment before it is believed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ..host.units import TOLERATED_RESTARTS, journal, show
from . import hold as slurm_hold
from .commands import ask, nodes_command, run
from .parse import is_serving, parse_daemon, parse_nodes

POLL_SECONDS = 0.2
# A daemon that dies of its configuration does so within its first moments.
STEADY_SECONDS = 1.5


@dataclass(frozen=True)
class Cluster:
    """The nodes a controller had before it was touched."""

    nodes: list[str] = field(default_factory=list)
    serving: list[str] = field(default_factory=list)


def look_at_cluster() -> Cluster:
    """Empty if it does not answer: then nothing can be held against what comes after."""
    found = parse_nodes(ask(*nodes_command())) or {}
    return Cluster(sorted(found), sorted(name for name, node in found.items() if is_serving(node)))


def hold_down() -> None:
    """Before a restart or a reconfigure, after which every slurmd registers anew; see slurm_hold."""

    def order(_about: str, command: tuple[str, ...]) -> str:
        return run(*command)[2]

    if runs():
        slurm_hold.hold_down(lambda: parse_nodes(ask(*nodes_command())), order)


def runs() -> bool:
    return show(["slurmctld"]).get("slurmctld", {}).get("ActiveState") in ("active", "reloading", "activating")


def running_series() -> str:
    """Of the installed slurmctld, which is the one that a restart starts."""
    version = (ask("slurmctld", "-V") or "").split()
    return ".".join(version[-1].split(".")[:2]) if version else ""


def is_loaded() -> bool | None:
    """Whether slurmctld runs with the file on disk, by Slurm's own comparison; None if it does not say."""
    return parse_daemon(ask("scontrol", "show", "config"))["config_loaded"]


def problem(before: Cluster) -> str | None:
    """Why the controller does not serve as it did; None if it does."""
    daemon = parse_daemon(ask("scontrol", "show", "config"))
    if daemon["ping"] != "UP":
        state = show(["slurmctld"]).get("slurmctld", {}).get("ActiveState", "unknown")
        return f"slurmctld is {state} and does not answer"
    if daemon["config_loaded"] is False:
        return "slurmctld does not run with the configuration on disk"
    found = parse_nodes(ask(*nodes_command()))
    if found is None:
        return "slurmctld does not tell its nodes"
    gone = [name for name in before.nodes if name not in found]
    if gone:
        return f"slurmctld has lost {', '.join(gone[:5])}{' and more' if len(gone) > 5 else ''}"
    # One worker may go away for reasons of its own; all of them at once have one reason.
    if before.serving and not any(is_serving(found[name]) for name in before.serving):
        return "none of the workers that served before serves"
    return None


def watch(before: Cluster, seconds: float) -> str | None:
    """Wait until the controller serves and goes on to; None, or what stands against it when time is over."""
    since, deadline = time.time(), time.monotonic() + seconds
    good_since: float | None = None
    process = ""
    while True:
        state = show(["slurmctld"]).get("slurmctld", {})
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
            words = [line for line in journal("slurmctld", since, 40) if "error" in line or "fatal" in line][-3:]
            return (found or "slurmctld did not stay up") + (
                f"; its words: {' | '.join(words)}".rstrip(".") if words else ""
            )
        time.sleep(POLL_SECONDS)


def reconfigure() -> str | None:
    """Why slurmctld would not, in its own words; None if it did."""
    code, output, errors = run("scontrol", "reconfigure")
    if code == 0:
        return None
    return (errors or output or "scontrol reconfigure did not end").strip()
