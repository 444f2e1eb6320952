"""How a controller is asked: the commands, their environment, and one snapshot made of their answers."""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .conf import is_intact
from .jobs import parse_jobs, with_jobs
from .parse import iso, parse_daemon, parse_nodes, parse_slurmdbd_version
from .partitions import parse_partitions
from .reservations import parse_reservations
from .samples import take_samples

CONFIGURATION = Path("/etc/slurm/slurm.conf")
UNITS = {"munge": "munge", "slurmctld": "slurmctld", "slurmdbd": "slurmdbd", "mariadb": "mariadb"}
# Times are printed in the host's zone unless told otherwise; C keeps the words we parse; 0 is a list without a cut.
ENVIRONMENT = {
    **os.environ,
    "TZ": "UTC",
    "LC_ALL": "C",
    "SLURM_TIME_FORMAT": "standard",
    "SLURM_BITSTR_LEN": "0",
}
PATIENCE_SECONDS = 15
SLURMDBD = ("sacctmgr", "--noheader", "show", "configuration")
PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partitions")
# What fills up and then takes the controller with it, beside the state directory that slurm.conf names.
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


def look(command: tuple[str, ...], config: Path = CONFIGURATION, *, samples: bool = False) -> dict[str, Any]:
    """The whole snapshot. Every question is asked at the same time, since most of the time is waiting.

    Only a daemon that runs is asked: a question to a dead one waits long and learns nothing that systemd does not know.
    """
    units = _units()
    states = {name: unit["state"] for name, unit in units.items()}
    answering = states["munge"] == states["slurmctld"] == "active"
    accounting = states["munge"] == states["slurmdbd"] == states["mariadb"] == "active"
    with ThreadPoolExecutor() as pool:
        asked_nodes = pool.submit(look_at_nodes, command) if answering else None
        asked_daemon = pool.submit(ask, "scontrol", "show", "config") if answering else None
        asked_accounts = pool.submit(_submit_account) if accounting else None
        asked_package = pool.submit(_package_version)
        asked_partitions = pool.submit(ask, *PARTITIONS) if answering else None
        asked_samples = pool.submit(take_samples, ask) if answering and samples else None
        asked_slurmdbd = pool.submit(ask, *SLURMDBD) if accounting else None
    answers, account = asked_accounts.result() if asked_accounts else (False, None)
    return {
        "observed_at": iso(time.time()),
        "controller": {
            "hostname": socket.gethostname().split(".")[0],
            **states,
            **parse_daemon(asked_daemon.result() if asked_daemon else None),
            "slurmdbd_version": parse_slurmdbd_version(asked_slurmdbd.result() if asked_slurmdbd else None),
            "package_version": asked_package.result(),
            "outdated": sorted(name for name, unit in units.items() if unit["replaced"]),
            "config_version": _config_version(config),
            "config_intact": _is_intact(config),
            "accounting_answers": answers,
            "submit_account": account,
            "disks": _disks([_state_directory(config), *FILLING_DIRECTORIES]),
        },
        **(asked_nodes.result() if asked_nodes else {"nodes": None, "jobs": None, "reservations": None}),
        "partitions": parse_partitions(asked_partitions.result() if asked_partitions else None),
        "samples": asked_samples.result() if asked_samples else None,
    }


def _units() -> dict[str, dict[str, Any]]:
    """Of each daemon its state, and whether the program it runs is no longer the one that is installed."""
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
    """An upgrade puts another file in the place of the program that a daemon was started from.

    Which file it has open is shown only to whoever may trace it, which root in a container may not; so times decide.
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
    """Each file system once, under the first directory that is on it, with what is left for others than root."""
    found: dict[int, dict[str, Any]] = {}
    for directory in directories:
        try:
            device, space = Path(directory).stat().st_dev, os.statvfs(directory)
        except OSError:
            continue  # not there yet, or no longer: its daemon says so
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


def _config_version(path: Path) -> str | None:
    try:
        return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def _is_intact(path: Path) -> bool | None:
    """Whether slurm.conf is as the adapter wrote it; None if there is none to read."""
    try:
        return bool(is_intact(path.read_text()))
    except UnicodeDecodeError:
        return False
    except OSError:
        return None


def _submit_account() -> tuple[bool, str | None]:
    """Whether slurmdbd answers, and an account with a user on it; a person's is preferred to the one kept for root."""
    answer = ask("sacctmgr", "--noheader", "--parsable2", "show", "association", "format=account,user")
    pairs = [line.split("|") for line in (answer or "").splitlines()]
    accounts = {pair[0] for pair in pairs if len(pair) == 2 and pair[1]}
    # The login user's first, which every cluster has; declared users may have others.
    ordered = sorted(accounts, key=lambda name: (name != DEFAULT_ACCOUNT, name == "root", name))
    return answer is not None, ordered[0] if ordered else None
