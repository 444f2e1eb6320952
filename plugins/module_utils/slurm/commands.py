"""Queries to a controller: the commands, their environment, and a snapshot of their answers."""

from __future__ import annotations

import os
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..host.digest import file_version
from ..host.facts import short_hostname, utc_time
from .accounting_state import parse_remembered
from .conf import is_intact
from .jobs import parse_jobs, with_jobs
from .parse import parse_daemon, parse_nodes, parse_slurmdbd_version
from .partitions import parse_partitions
from .reservations import parse_reservations
from .samples import take_samples

CONFIGURATION = Path("/etc/slurm/slurm.conf")
UNITS = {"munge": "munge", "slurmctld": "slurmctld", "slurmdbd": "slurmdbd", "mariadb": "mariadb"}
# TZ: times in UTC. LC_ALL: untranslated output. SLURM_BITSTR_LEN 0: task lists are not cut.
ENVIRONMENT = {
    **os.environ,
    "TZ": "UTC",
    "LC_ALL": "C",
    "SLURM_TIME_FORMAT": "standard",
    "SLURM_BITSTR_LEN": "0",
}
# A busy controller answers late: 15 s were too few where other work had the processors.
PATIENCE_SECONDS = 30
SLURMDBD = ("sacctmgr", "--noheader", "show", "configuration")
REMEMBERED = ("sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name,description")
# Of roles/slurmctld, on a cluster that several projects share. It waits until slurmctld answers, and gives it the lists
# of partitions.
LISTS_SCRIPT = Path("/etc/slurm/account-lists.sh")
PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partitions")
# Directories that stop the controller when they are full, besides the state directory in slurm.conf.
FILLING_DIRECTORIES = ("/var/lib/mysql", "/var/log")
DEFAULT_ACCOUNT = "default"
DEFAULT_STATE_DIRECTORY = "/var/lib/slurm/slurmctld"


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
    """Standard output; None if the command failed."""
    code, output, _ = run(*command)
    return output if code == 0 else None


def nodes_command() -> tuple[str, ...]:
    """22.05 has JSON in sinfo only; from 23.02 on scontrol has it, with every node once."""
    version = (ask("sinfo", "--version") or "").split()
    old = bool(version) and version[-1].split(".")[:2] in (["22", "05"], ["21", "08"])
    return ("sinfo", "--json", "--all") if old else ("scontrol", "show", "nodes", "--json")


def look_at_nodes(command: tuple[str, ...]) -> dict[str, Any]:
    """The part of a snapshot for decisions about nodes: nodes, jobs and reservations."""
    with ThreadPoolExecutor() as pool:
        nodes_query = pool.submit(ask, *command)
        jobs_query = pool.submit(ask, "squeue", "--json", "--all")
        reservations_query = pool.submit(ask, "scontrol", "--all", "--oneliner", "show", "reservations")
    nodes, jobs = parse_nodes(nodes_query.result()), parse_jobs(jobs_query.result())
    return {
        # Without the jobs the `jobs` of a node would be wrong: then the nodes are unknown too.
        "nodes": None if nodes is None or jobs is None else with_jobs(nodes, jobs),
        "jobs": jobs,
        "reservations": parse_reservations(reservations_query.result()),
    }


def look(command: tuple[str, ...], config: Path = CONFIGURATION, *, samples: bool = False) -> dict[str, Any]:
    """The whole snapshot. All queries run in parallel, since each mostly waits.

    Only a running daemon is queried: a query to a stopped one blocks until its timeout.
    """
    units = _units()
    states = {name: unit["state"] for name, unit in units.items()}
    answering = states["munge"] == states["slurmctld"] == "active"
    accounting = states["munge"] == states["slurmdbd"] == states["mariadb"] == "active"
    with ThreadPoolExecutor() as pool:
        nodes_query = pool.submit(look_at_nodes, command) if answering else None
        daemon_query = pool.submit(ask, "scontrol", "show", "config") if answering else None
        accounts_query = pool.submit(_submit_account) if accounting else None
        package_query = pool.submit(_package_version)
        partitions_query = pool.submit(ask, *PARTITIONS) if answering else None
        samples_query = pool.submit(take_samples, ask) if answering and samples else None
        slurmdbd_query = pool.submit(ask, *SLURMDBD) if accounting else None
        remembered_query = pool.submit(ask, *REMEMBERED) if accounting and LISTS_SCRIPT.is_file() else None
    answers, account = accounts_query.result() if accounts_query else (False, None)
    return {
        "observed_at": utc_time(),
        "controller": {
            "hostname": short_hostname(),
            **states,
            **parse_daemon(daemon_query.result() if daemon_query else None),
            "slurmdbd_version": parse_slurmdbd_version(slurmdbd_query.result() if slurmdbd_query else None),
            "package_version": package_query.result(),
            "outdated": sorted(name for name, unit in units.items() if unit["replaced"]),
            "config_version": file_version(config),
            "config_intact": _is_intact(config),
            "accounting_answers": answers,
            "submit_account": account,
            "disks": _disks([_state_directory(config), *FILLING_DIRECTORIES]),
        },
        **(nodes_query.result() if nodes_query else {"nodes": None, "jobs": None, "reservations": None}),
        "partitions": parse_partitions(partitions_query.result() if partitions_query else None),
        "samples": samples_query.result() if samples_query else None,
        "remembered": _remembered(remembered_query.result() if remembered_query else None),
    }


def _remembered(answer: str | None) -> dict[str, list[str]] | None:
    """Users that a shared cluster has given to identities; None if it is not shared, or cannot be read."""
    try:
        return None if answer is None else parse_remembered(answer)
    except ValueError:
        return None


def _units() -> dict[str, dict[str, Any]]:
    """The state of each daemon, and whether its program was replaced after it started."""
    answer = (
        ask("systemctl", "show", "--property=Id,ActiveState,MainPID,ExecMainStartTimestampMonotonic", *UNITS.values())
        or ""
    )
    found: dict[str, dict[str, Any]] = {}
    for block in answer.split("\n\n"):
        pairs = dict(line.partition("=")[::2] for line in block.splitlines())
        state, started = (
            pairs.get("ActiveState", "unknown"),
            int(pairs.get("ExecMainStartTimestampMonotonic") or 0) / 1e6,
        )
        found[pairs.get("Id", "").removesuffix(".service")] = {
            "state": "active" if state == "reloading" else state,
            "replaced": _was_replaced(pairs.get("MainPID", "0"), started),
        }
    return {key: found.get(unit, {"state": "unknown", "replaced": False}) for key, unit in UNITS.items()}


def _was_replaced(pid: str, started: float) -> bool:
    """Whether an upgrade replaced the program file after the daemon started.

    Compared by time: /proc/PID/exe needs the right to trace the process, which root in a container does not have.
    """
    try:
        program = Path(Path(f"/proc/{int(pid)}/cmdline").read_bytes().split(b"\0")[0].decode())
    except (OSError, ValueError):
        return False
    if not program.is_absolute():
        return False
    try:
        return program.stat().st_ctime > time.time() - (time.monotonic() - started)
    except FileNotFoundError:
        return True


def _state_directory(config: Path) -> str:
    try:
        named = re.search(r"^\s*StateSaveLocation\s*=\s*(\S+)", config.read_text(), re.MULTILINE | re.IGNORECASE)
    except (OSError, UnicodeDecodeError):
        named = None
    return named.group(1) if named else DEFAULT_STATE_DIRECTORY


def _disks(directories: list[str]) -> list[dict[str, Any]]:
    """Each file system once, under its first directory, with the space that is free for users other than root."""
    found: dict[int, dict[str, Any]] = {}
    for directory in directories:
        try:
            device, space = Path(directory).stat().st_dev, os.statvfs(directory)
        except OSError:
            continue  # the directory does not exist
        if device not in found:
            mib = space.f_frsize / (1024 * 1024)
            found[device] = {
                "path": directory,
                "free_mb": int(space.f_bavail * mib),
                "size_mb": int(space.f_blocks * mib),
            }
    return list(found.values())


def _package_version() -> str | None:
    answer = ask("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", "slurmctld") or ""
    status, _, version = answer.partition(" ")
    return version if status == "installed" else None


def _is_intact(path: Path) -> bool | None:
    """Whether slurm.conf is as the adapter wrote it; None if it cannot be read."""
    try:
        return bool(is_intact(path.read_text()))
    except UnicodeDecodeError:
        return False
    except OSError:
        return None


def _submit_account() -> tuple[bool, str | None]:
    """Whether slurmdbd answers, and an account with a user; accounts of users are preferred to that of root."""
    answer = ask("sacctmgr", "--noheader", "--parsable2", "show", "association", "format=account,user")
    pairs = [line.split("|") for line in (answer or "").splitlines()]
    accounts = {pair[0] for pair in pairs if len(pair) == 2 and pair[1]}
    # The account of the login user first, which every cluster has.
    ordered = sorted(accounts, key=lambda name: (name != DEFAULT_ACCOUNT, name == "root", name))
    return answer is not None, ordered[0] if ordered else None
