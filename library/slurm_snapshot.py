#!/usr/bin/python3
"""One fast look at a cluster, from its controller."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.slurm_state import (
    is_serving,
    iso,
    parse_daemon,
    parse_jobs,
    parse_nodes,
    with_jobs,
)

DOCUMENTATION = r"""
module: slurm_snapshot
short_description: Report nodes, jobs and daemons of the cluster this controller runs
description:
  - Read-only. What cannot be learnt is reported as unknown (null), never as empty.
  - With O(wait_for_nodes) it looks again until each of these nodes serves, or O(timeout) is over.
    Time running out is no failure, the snapshot then says what is.
options:
  config_path: {type: path, default: /etc/slurm/slurm.conf, description: The live configuration.}
  wait_for_nodes: {type: list, elements: str, default: [], description: Nodes that should serve.}
  timeout: {type: float, default: 20, description: Seconds to wait for the nodes.}
author: [gpuaas-slurm]
"""

UNITS = {"munge": "munge", "slurmctld": "slurmctld", "slurmdbd": "slurmdbd", "mariadb": "mariadb"}
POLL_SECONDS = 0.15
# Times are printed in the host's zone unless told otherwise; C keeps the words we parse.
ENVIRONMENT = {**os.environ, "TZ": "UTC", "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def ask(*command: str) -> str | None:
    """Standard output, or None if the command failed, is absent or hangs on a dead controller."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False, env=ENVIRONMENT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def nodes_command() -> tuple[str, ...]:
    """22.05 speaks JSON in sinfo only; from 23.02 on scontrol does, and gives every node once."""
    version = (ask("sinfo", "--version") or "").split()
    old = bool(version) and version[-1].split(".")[:2] in (["22", "05"], ["21", "08"])
    return ("sinfo", "--json", "--all") if old else ("scontrol", "show", "nodes", "--json")


def unit_states() -> dict[str, str]:
    answer = ask("systemctl", "show", "--property=Id,ActiveState", *UNITS.values()) or ""
    found: dict[str, str] = {}
    for block in answer.split("\n\n"):
        pairs = dict(line.partition("=")[::2] for line in block.splitlines())
        found[pairs.get("Id", "").removesuffix(".service")] = pairs.get("ActiveState", "unknown")
    return {key: found.get(unit, "unknown") for key, unit in UNITS.items()}


def package_version() -> str | None:
    answer = ask("dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", "slurmctld") or ""
    status, _, version = answer.partition(" ")
    return version if status == "installed" else None


def config_version(path: Path) -> str | None:
    try:
        return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def submit_account() -> str | None:
    """An account with a user on it; a person's account is preferred to the one Slurm keeps for root."""
    answer = ask("sacctmgr", "--noheader", "--parsable2", "show", "association", "format=account,user")
    pairs = [line.split("|") for line in (answer or "").splitlines()]
    accounts = [pair[0] for pair in pairs if len(pair) == 2 and pair[1]]
    return next((name for name in accounts if name != "root"), accounts[0] if accounts else None)


def wait_for(names: list[str], command: tuple[str, ...], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while True:
        nodes = parse_nodes(ask(*command)) or {}
        if all(name in nodes and is_serving(nodes[name]) for name in names):
            return
        if time.monotonic() >= deadline:
            return
        time.sleep(POLL_SECONDS)


def look(command: tuple[str, ...], config: Path) -> dict[str, Any]:
    with ThreadPoolExecutor() as pool:
        asked_nodes: Future[str | None] = pool.submit(ask, *command)
        asked_jobs: Future[str | None] = pool.submit(ask, "squeue", "--json", "--all")
        asked_daemon: Future[str | None] = pool.submit(ask, "scontrol", "show", "config")
        asked_units = pool.submit(unit_states)
        asked_package = pool.submit(package_version)
        asked_account = pool.submit(submit_account)
    nodes, jobs = parse_nodes(asked_nodes.result()), parse_jobs(asked_jobs.result())
    daemon = parse_daemon(asked_daemon.result())
    return {
        "observed_at": iso(time.time()),
        "controller": {
            "hostname": socket.gethostname().split(".")[0],
            **asked_units.result(),
            **daemon,
            "package_version": asked_package.result(),
            "config_version": config_version(config),
            "submit_account": asked_account.result(),
        },
        # Without the jobs a node's `jobs` would be a guess: then the nodes are unknown too.
        "nodes": None if nodes is None or jobs is None else with_jobs(nodes, jobs),
        "jobs": jobs,
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "config_path": {"type": "path", "default": "/etc/slurm/slurm.conf"},
            "wait_for_nodes": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "float", "default": 20},
        },
        supports_check_mode=True,
    )
    command = nodes_command()
    if module.params["wait_for_nodes"]:
        wait_for(module.params["wait_for_nodes"], command, module.params["timeout"])
    snapshot = look(command, Path(module.params["config_path"]))
    serving = sorted(name for name, node in (snapshot["nodes"] or {}).items() if is_serving(node))
    facts = {"slurm_snapshot": snapshot, "slurm_serving_nodes": serving}
    module.exit_json(changed=False, snapshot=snapshot, ansible_facts=facts)


if __name__ == "__main__":
    main()
