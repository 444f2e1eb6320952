"""How a controller is asked: the commands, their environment, and one snapshot made of their answers."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .slurm_partitions import parse_partitions
from .slurm_reservations import parse_reservations
from .slurm_state import iso, parse_daemon, parse_jobs, parse_nodes, with_jobs

CONFIGURATION = Path("/etc/slurm/slurm.conf")
UNITS = {"munge": "munge", "slurmctld": "slurmctld", "slurmdbd": "slurmdbd", "mariadb": "mariadb"}
# Times are printed in the host's zone unless told otherwise; C keeps the words we parse.
ENVIRONMENT = {**os.environ, "TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}
PATIENCE_SECONDS = 15


def run(*command: str) -> tuple[int | None, str, str]:
    """Exit code, output and errors; no exit code if the command is absent or hangs on a dead controller."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, env=ENVIRONMENT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, "", str(error)
    return done.returncode, done.stdout, done.stderr.strip()


def ask(*command: str) -> str | None:
    """Standard output, or None if the command did not end well."""
    code, output, _ = run(*command)
    return output if code == 0 else None


def nodes_command() -> tuple[str, ...]:
    """22.05 speaks JSON in sinfo only; from 23.02 on scontrol does, and gives every node once."""
    version = (ask("sinfo", "--version") or "").split()
    old = bool(version) and version[-1].split(".")[:2] in (["22", "05"], ["21", "08"])
    return ("sinfo", "--json", "--all") if old else ("scontrol", "show", "nodes", "--json")


def look_at_nodes(command: tuple[str, ...]) -> dict[str, Any]:
    """The part of a snapshot that decides over nodes: them, the jobs, and the reservations."""
    with ThreadPoolExecutor() as pool:
        asked_nodes = pool.submit(ask, *command)
        asked_jobs = pool.submit(ask, "squeue", "--json", "--all")
        asked_reservations = pool.submit(ask, "scontrol", "--all", "--oneliner", "show", "reservations")
    nodes, jobs = parse_nodes(asked_nodes.result()), parse_jobs(asked_jobs.result())
    return {
        # Without the jobs a node's `jobs` would be a guess: then the nodes are unknown too.
        "nodes": None if nodes is None or jobs is None else with_jobs(nodes, jobs),
        "jobs": jobs,
        "reservations": parse_reservations(asked_reservations.result()),
    }


def look(command: tuple[str, ...], config: Path = CONFIGURATION) -> dict[str, Any]:
    """The whole snapshot. Every question is asked at the same time, since most of the time is waiting."""
    with ThreadPoolExecutor() as pool:
        asked_nodes = pool.submit(look_at_nodes, command)
        asked_daemon = pool.submit(ask, "scontrol", "show", "config")
        asked_units = pool.submit(_unit_states)
        asked_package = pool.submit(_package_version)
        asked_account = pool.submit(_submit_account)
        asked_partitions = pool.submit(ask, "scontrol", "--all", "--oneliner", "show", "partitions")
    return {
        "observed_at": iso(time.time()),
        "controller": {
            "hostname": socket.gethostname().split(".")[0],
            **asked_units.result(),
            **parse_daemon(asked_daemon.result()),
            "package_version": asked_package.result(),
            "config_version": _config_version(config),
            "submit_account": asked_account.result(),
        },
        **asked_nodes.result(),
        "partitions": parse_partitions(asked_partitions.result()),
    }


def _unit_states() -> dict[str, str]:
    answer = ask("systemctl", "show", "--property=Id,ActiveState", *UNITS.values()) or ""
    found: dict[str, str] = {}
    for block in answer.split("\n\n"):
        pairs = dict(line.partition("=")[::2] for line in block.splitlines())
        found[pairs.get("Id", "").removesuffix(".service")] = pairs.get("ActiveState", "unknown")
    return {key: found.get(unit, "unknown") for key, unit in UNITS.items()}


def _package_version() -> str | None:
    answer = ask("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", "slurmctld") or ""
    status, _, version = answer.partition(" ")
    return version if status == "installed" else None


def _config_version(path: Path) -> str | None:
    try:
        return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def _submit_account() -> str | None:
    """An account with a user on it; a person's account is preferred to the one Slurm keeps for root."""
    answer = ask("sacctmgr", "--noheader", "--parsable2", "show", "association", "format=account,user")
    pairs = [line.split("|") for line in (answer or "").splitlines()]
    accounts = [pair[0] for pair in pairs if len(pair) == 2 and pair[1]]
    return next((name for name in accounts if name != "root"), accounts[0] if accounts else None)
