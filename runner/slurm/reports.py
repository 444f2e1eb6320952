"""What a host reports, read as data: a type and a size for each key, and no key that the runner decides by. Pure.

Used on both sides of a play: by translate for what goes into a member's record, and by the action plugin of
host_probe for what roles use. It imports nothing that takes time to load, since Ansible loads it in every run.
"""

import re
from collections.abc import Mapping
from typing import Any

from runner.model.host_data import (
    Reader,
    addresses,
    count,
    fields,
    flag,
    matching,
    moment,
    one_of,
    plain,
    printable,
    read_value,
    text,
    texts,
)

# A short host name, which is what slurmd -Z registers its node by.
NODE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?", re.ASCII)
# Versions, digests, states, paths, phases.
_WORD = re.compile(r"[A-Za-z0-9_.:+~@/ -]{0,160}", re.ASCII)
_GRES = re.compile(r"[A-Za-z0-9_.:,()-]{0,1000}", re.ASCII)
_MULTIARCH = re.compile(r"[a-z0-9_]{1,40}-linux-gnu", re.ASCII)


_word = matching(_WORD)
_name = matching(NODE_NAME)

_ANY_MEMBER: Mapping[str, Reader] = {
    "config_version": _word,
    "data_left": texts,
    "homes_left": texts,
    "host_cleaned": flag,
    "host_touched": flag,
    "logs_kept": _word,
    "munge_version": _word,
    "munge_vulnerable": flag,
    "package_version": _word,
    "residue": texts,
    "slurm_version": _word,
    "switched_at": moment,
    "users_version": _word,
}
# Of a cluster that several projects share.
PROJECTS = (
    "projects_busy",
    "projects_closed_by_hand",
    "projects_foreign",
    "projects_refused",
    "projects_unresolved",
)
# Every key that a play reports, by component. Any other key is the runner's own and cannot come from a host.
DETAIL: Mapping[str, Mapping[str, Reader]] = {
    "controller": {
        **_ANY_MEMBER,
        "applied_config": _word,
        "cluster_name": _word,
        "controller_hostname": _name,
        "conversion": fields(since=_word, seconds=count, idle_seconds=count, cpu_seconds=count, last_line=text),
        **dict.fromkeys(PROJECTS, texts),
        "returned": fields(**{"from": _word, "to": _word, "config": _word}),
        "services_left": texts,
        "slurmctld_state": _word,
        "slurmdbd_state": _word,
        "slurmdbd_version": _word,
        "upgraded": fields(**{"from": _word, "to": _word, "backup": _word}),
    },
    "worker": {
        **_ANY_MEMBER,
        "cpus": count,
        "drain_held_by": one_of("none", "us", "person", "slurm"),
        "drain_reason": text,
        "foreign_root": texts,
        "gpus": count,
        "jobs_remaining": count,
        "memory_mb": count,
        "process_control": one_of("cgroup", "linuxproc"),
        "registered_in_controller": flag,
        "slurmd_state": _word,
        "worker_hostname": _name,
    },
}
# Keys that plays of version 1.0 used.
FORMER: Mapping[str, str] = {"wish": "applied_config", "people_version": "users_version"}
# What roles use of a host's probe.
_PROBE: Mapping[str, Reader] = {
    "addresses": addresses,
    "cgroup": fields(version=one_of("none", "v1", "v2"), writable=flag),
    "cpus": count,
    "foreign_root": lambda value: read_value(texts, value),
    "gres": matching(_GRES),
    "gres_conf": lambda value: printable(value, 200_000, keep="\n"),
    "hostname": _name,
    "memory_mb": count,
    "multiarch": matching(_MULTIARCH),
    "os_id": _word,
    "os_version": _word,
    "process_control": one_of("cgroup", "linuxproc"),
    "slurm_version": _word,
}


def read_detail(component: str, reported: Any) -> tuple[dict[str, Any], list[str]]:
    """What of a reported detail may go into the member's record, and the keys that may not."""
    if not isinstance(reported, dict):
        return {}, [] if reported is None else ["detail"]
    readers = DETAIL.get(component, {})
    kept: dict[str, Any] = {}
    dropped = []
    for key, value in reported.items():
        try:
            name = FORMER.get(key, key)
            kept[name] = read_value(readers[name], value)
        except (KeyError, ValueError, TypeError):
            dropped.append(printable(key, 60))
    return kept, dropped


def read_probe(found: Mapping[str, Any], systems: list[dict[str, Any]]) -> dict[str, Any]:
    """A host's probe by type, with the name of its system from our own list. Raises ValueError naming the wrong key."""
    read: dict[str, Any] = {}
    for key, reader in _PROBE.items():
        try:
            read[key] = reader(found.get(key))
        except (ValueError, TypeError):
            raise ValueError(key) from None
    gpus = found.get("gpus")
    if not isinstance(gpus, list) or len(gpus) > 1024:
        raise ValueError("gpus")
    names = [one["name"] for one in systems if (one["id"], one["version"]) == (read["os_id"], read["os_version"])]
    if not names:
        raise ValueError("os_version")
    return {**read, "gpus": plain(gpus), "system": names[0]}
