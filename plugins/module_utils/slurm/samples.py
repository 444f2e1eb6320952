"""Commands for users of the controller with the output of this cluster: the examples of the access bundle."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

LINES = 12
COLUMNS = 150

# A description, the command, and whether its output changes only with the cluster. Job names are left out: they are
# private to their users.
USE = (
    ("partitions and the state of their nodes", "sinfo", True),
    (
        "every node with its CPUs, memory in MiB and GPUs",
        "sinfo --Node --Format=NodeList,StateLong,CPUs,Memory,Gres",
        True,
    ),
    (
        "jobs that wait or run",
        "squeue --all --Format=JobID,Partition,UserName,Account,State,TimeUsed,NodeList",
        False,
    ),
    (
        "jobs of the last day, ended ones too",
        "sacct --allusers --allocations --starttime=now-1days --format=JobID,User,Account,Partition,State,ExitCode",
        False,
    ),
)
HEALTH = (
    ("whether the scheduler answers", "scontrol ping", False),
    ("nodes that are out of service, and why", "sinfo --list-reasons", True),
    ("what the scheduler has been doing", "sdiag", False),
)
JOBS = ("squeue", "sacct")


def take_samples(ask: Callable[..., str | None]) -> list[dict[str, Any]]:
    """Every example with its output; None as output if the command failed."""
    wanted = [("use", *entry) for entry in USE] + [("health", *entry) for entry in HEALTH]
    with ThreadPoolExecutor() as pool:
        outputs = list(pool.map(lambda entry: ask(*entry[2].split()), wanted))
    return [
        {
            "kind": kind,
            "about": about,
            "command": command,
            "output": clipped(output) if output is not None else None,
            "steady": steady,
            "about_jobs": command.split()[0] in JOBS,
        }
        for (kind, about, command, steady), output in zip(wanted, outputs, strict=True)
    ]


def clipped(text: str) -> str:
    """A short form of the output: a long table keeps its first and its last rows."""
    lines = [line.rstrip()[:COLUMNS] for line in text.splitlines() if line.strip()]
    if len(lines) > LINES:
        head, tail = LINES // 2, LINES - LINES // 2
        lines = [*lines[:head], f"... {len(lines) - LINES} lines left out ...", *lines[-tail:]]
    return "\n".join(lines)
