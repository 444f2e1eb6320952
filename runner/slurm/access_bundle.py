"""The access bundle: how users reach and use this cluster, with real output of its commands. Pure; it has no secret.

It is made of the platform's records (hosts, ports, keys), what the roles fix (paths, ports of daemons) and the last
look at the controller. docs/usage/access.md describes its fields.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from runner.intent.connection import Target, read_target
from runner.intent.errors import IntentError
from runner.model.plan import Detail, stamp
from runner.model.platform import IN_SERVICE, Allocation, AppInstance, Member
from runner.slurm import notes
from runner.slurm.cluster_config import read_config
from runner.slurm.components import CONTROLLER
from runner.slurm.node_names import node_name
from runner.slurm.snapshot import Sample, Snapshot

MOST_BYTES = 15 * 1024  # the platform takes 16 KiB
WORKERS_SHOWN = 20
SAMPLES_SHOWN = 20
OUTPUT_CHARS = 2500
PARTITION = "main"
KNOWN_HOSTS_FILE = "~/.ssh/known_hosts"
SSH_PORT = 22
PORTS = {"slurmctld": 6817, "slurmd": 6818}
PATHS = {
    "controller": {
        "configuration": "/etc/slurm/slurm.conf",
        "cgroup configuration": "/etc/slurm/cgroup.conf",
        "GPU configuration": "/etc/slurm/gres.conf",
        "scheduler state": "/var/lib/slurm/slurmctld",
        "accounting configuration (root only)": "/etc/slurm/slurmdbd.conf",
        "munge log": "/var/log/munge/munged.log",
    },
    "worker": {
        "configuration, as fetched from the controller": "/var/lib/slurm/slurmd/conf-cache/slurm.conf",
        "GPUs of the host": "/etc/slurm/gres-here.conf",
        "spool of running jobs": "/var/lib/slurm/slurmd",
        "munge log": "/var/log/munge/munged.log",
    },
}
LOGS = {
    "controller": "journalctl --no-pager --lines=50 --unit=slurmctld --unit=slurmdbd --unit=mariadb --unit=munge",
    "worker": "journalctl --no-pager --lines=50 --unit=slurmd --unit=munge",
}
NOTES = [
    "logs: the journal of a daemon is readable as root and for members of the group systemd-journal.",
    "munge: all hosts of the cluster share one key, which the adapter keeps in Vault; their clocks must agree.",
    "slurmdbd and its MariaDB run on the controller and are queried by Slurm's commands; nothing else needs them.",
    "Hosts know each other by address; a node's name is its host's own short name.",
    "The configuration is written by the adapter: change the instance's config, not the file.",
]


def bundle(
    instance: AppInstance,
    snapshot: Snapshot,
    controller: Member,
    members: Sequence[Member],
    allocations: Mapping[UUID, Allocation],
) -> Detail | None:
    """The bundle; None if the last look has no samples, or the controller has no usable connection."""
    target = _target(controller, allocations)
    if snapshot.samples is None or target is None:
        return None
    seen, workers = snapshot.controller, _workers(members, allocations)
    account, partition = seen.submit_account, _partition(snapshot)
    made: Detail = {
        "observed_at": stamp(snapshot.observed_at),
        "cluster_name": seen.cluster_name,
        "versions": {
            "app": instance.app_version,
            "package": seen.package_version,
            "slurmctld": seen.slurm_version,
            "config": seen.config_version,
        },
        "controller": {"hostname": seen.hostname, **_where(target)},
        "workers": workers[:WORKERS_SHOWN],
        **({"more_workers": len(workers) - WORKERS_SHOWN} if len(workers) > WORKERS_SHOWN else {}),
        "ssh": {
            "command": _ssh(target),
            "known_hosts": f"{_name_in_known_hosts(target)} {target.key_type} {target.key_body}",
            "known_hosts_file": KNOWN_HOSTS_FILE,
            "key": f"from access credential {instance.access_credential_id} of the platform, by an ssh agent",
        },
        "ports": {"ssh": target.port, **PORTS},
        "submit": {
            "account": account,
            "partition": partition,
            "user": target.username,
            "batch": f"sbatch --account={account} --partition={partition} --output=/dev/null --wrap=hostname",
            "interactive": f"srun --account={account} --partition={partition} --immediate=60 hostname",
            "users": _users(instance),
        },
        "commands": _samples(instance, snapshot.samples, "use"),
        "health": _samples(instance, snapshot.samples, "health"),
        "logs": LOGS,
        "paths": PATHS,
        "notes": NOTES,
    }
    return _fitted(made)


def renewed(old: Detail | None, new: Detail | None) -> Detail | None:
    """The new bundle if it differs from the old one in more than values that change with every look."""
    if new is None or (old is not None and _lasting(old) == _lasting(new)):
        return None
    return new


def _lasting(made: Detail) -> Any:
    shown = dict(made)
    shown.pop("observed_at", None)
    for part in ("commands", "health"):
        entries = shown.get(part)
        shown[part] = [
            {key: value for key, value in entry.items() if key != "output" or entry.get("steady")}
            for entry in (entries if isinstance(entries, list) else [])
            if isinstance(entry, dict)
        ]
    return shown


def _samples(instance: AppInstance, samples: Sequence[Sample], kind: str) -> list[Detail]:
    private = _keeps_jobs_private(instance)
    return [
        {
            "about": one.about,
            "command": one.command,
            "output": "(this cluster keeps jobs private)"
            if private and one.about_jobs
            else (one.output or "")[:OUTPUT_CHARS] or None,
            "steady": one.steady,
        }
        for one in [one for one in samples if one.kind == kind][:SAMPLES_SHOWN]
    ]


def _keeps_jobs_private(instance: AppInstance) -> bool:
    settings = (instance.config or {}).get("slurm")
    return isinstance(settings, dict) and any(str(key).lower() == "privatedata" for key in settings)


def _users(instance: AppInstance) -> list[Detail]:
    try:
        declared = read_config(instance).users
    except IntentError:
        return []
    listed = sorted(declared, key=lambda user: user.name)[:WORKERS_SHOWN]
    return [{"name": user.name, "uid": user.uid, "account": user.account} for user in listed]


def _workers(members: Sequence[Member], allocations: Mapping[UUID, Allocation]) -> list[Detail]:
    found = []
    for member in members:
        target = _target(member, allocations)
        name = node_name(member)
        if member.component_key != CONTROLLER and member.status in IN_SERVICE and target and name:
            found.append({"hostname": name, **_where(target), "gpus": notes.worker(member).gpus})
    return sorted(found, key=lambda worker: str(worker["hostname"]))


def _target(member: Member, allocations: Mapping[UUID, Allocation]) -> Target | None:
    allocation = allocations.get(member.allocation_id) if member.allocation_id else None
    try:
        return read_target(allocation, member) if allocation else None
    except IntentError:
        return None


def _where(target: Target) -> Detail:
    return {"host": target.host, "port": target.port, "username": target.username}


def _ssh(target: Target) -> str:
    """One line to paste. It refuses a host whose key is not in known_hosts, and asks no person to accept one."""
    port = "" if target.port == SSH_PORT else f" -p {target.port}"
    return f"ssh -o StrictHostKeyChecking=yes{port} {target.username}@{target.host}"


def _name_in_known_hosts(target: Target) -> str:
    return target.host if target.port == SSH_PORT else f"[{target.host}]:{target.port}"


def _partition(snapshot: Snapshot) -> str:
    named = {name for node in (snapshot.nodes or {}).values() for name in node.partitions}
    return PARTITION if PARTITION in named or not named else sorted(named)[0]


def _fitted(made: Detail) -> Detail:
    """The platform limits the bundle's size: outputs are dropped first, from the least to the most useful, then
    workers, then commands."""
    for entry in (*reversed(made["health"]), *reversed(made["commands"])):
        if _size(made) <= MOST_BYTES:
            return made
        entry["output"] = None
    while _size(made) > MOST_BYTES and made["workers"]:
        made["workers"].pop()
        made["more_workers"] = made.get("more_workers", 0) + 1
    for part in ("health", "commands"):
        while _size(made) > MOST_BYTES and made[part]:
            made[part].pop()
    return made


def _size(made: Detail) -> int:
    return len(json.dumps(made, default=str).encode())
