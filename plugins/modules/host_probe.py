#!/usr/bin/python3
"""Read the facts of a host before its first change, and refuse a host that cannot be a member."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host.accounts import user_ids
from ansible.module_utils.host.claim import ABSENT, CLAIM_ARGUMENT, Claim, HostOwner, check_claim, read_owner
from ansible.module_utils.host.database import check_database
from ansible.module_utils.host.errors import INTERVENTION, AdapterError, from_os_error
from ansible.module_utils.host.facts import os_release, short_hostname
from ansible.module_utils.host.gpus import check_gpu_count, read_gpus
from ansible.module_utils.host.ledger import Document, Entries
from ansible.module_utils.host.packages import installed_versions
from ansible.module_utils.host.root_access import check_root_access, foreign_root
from ansible.module_utils.host.users import check_users
from ansible.module_utils.slurm.foreign_daemons import refuse_foreign_daemons
from ansible.module_utils.slurm.foreign_data import refuse_foreign_files
from ansible.module_utils.slurm.gres import gres, gres_conf
from ansible.module_utils.slurm.join_terms import check_join_terms

DOCUMENTATION = r"""
module: host_probe
short_description: Read the facts of a host, and check that it can be a member
description:
  - Read-only. The action plugin of the same name checks the returned values before roles use them.
options:
  supported:
    type: list
    elements: dict
    required: true
    description: Supported systems, each with id, version and the name of its variables file.
  reference_epoch: {type: float, description: The time by the clock of the machine that runs Ansible.}
  max_skew_seconds: {type: float, default: 60, description: 'A larger difference, also to the controller, is refused.'}
  min_free_mb: {type: int, default: 1024, description: A host with less free space on /var is refused.}
  users: {type: dict, default: {}, description: Name to the uid that an existing user must have.}
  controller:
    type: dict
    description: Conditions of the running controller for a host that joins.
    suboptions:
      slurm_version: {type: str, required: true, description: The controller's version.}
      skew: {type: float, required: true, description: Difference of its clock to the same reference.}
      slurm_user: {type: dict, description: uid and gid of its slurm user.}
      accepts: {type: dict, required: true, description: "Series of a controller to series of its workers."}
      gpus: {type: int, description: Number of GPUs that the host must have; any number by default.}
  declared_users:
    type: list
    elements: dict
    default: []
    description: Users that will be created, each with name, uid and gid.
  database:
    type: dict
    description: >-
      The accounting database that will be created. A host with such a database of others, or with a MariaDB that
      cannot have it, is refused.
    suboptions:
      name: {type: str, required: true, description: The database.}
      user: {type: str, required: true, description: Its user.}
  contributed:
    type: dict
    description: >-
      For a host of another project than the cluster's owner. Other ways to become root on it are looked for, and such
      a host is refused unless its project is trusted.
    suboptions:
      login_key: {type: str, required: true, description: Type and body of the public key that we log in with.}
      login_user: {type: str, required: true, description: The user that we log in as.}
      trusted: {type: bool, required: true, description: Whether a host with other ways to root is accepted.}
  claim: {type: dict, default: {}, description: "Instance, member and claim number; set by the action plugin."}
author: [gpuaas-slurm]
"""

RETURN = r"""
addresses: {type: list, returned: success, description: Addresses by which other hosts may reach this one.}
cgroup: {type: dict, returned: success, description: version and writable of the cgroup hierarchy.}
cpus: {type: int, returned: success, description: Number of CPUs.}
epoch: {type: float, returned: success, description: "Time by the host's clock, in seconds."}
foreign_root: {type: list, returned: success, description: "Other ways to root; null without O(contributed)."}
free_mb: {type: int, returned: success, description: "Free space on /var, in MiB."}
gpus: {type: list, returned: success, description: "Each GPU with index, uuid, memory_mb, bus, name, type and device."}
gres: {type: str, returned: success, description: The GPUs as a node's Gres.}
gres_conf: {type: str, returned: success, description: The GPUs as the host's part of gres.conf.}
hostname: {type: str, returned: success, description: Short name of the host.}
installed: {type: dict, returned: success, description: Versions of Slurm's packages that are installed.}
memory_mb: {type: int, returned: success, description: "Memory as slurmd counts it, in MiB."}
multiarch: {type: str, returned: success, description: Name of the directory of the host's libraries.}
os_id: {type: str, returned: success, description: The operating system.}
os_version: {type: str, returned: success, description: Its version.}
process_control: {type: str, returned: success, description: "How Slurm can hold jobs here, cgroup or linuxproc."}
python: {type: str, returned: success, description: Version of the Python that the module ran in.}
skew: {type: float, returned: success, description: "Seconds that the clock is ahead of O(reference_epoch), if given."}
slurm_version: {type: str, returned: success, description: The version of Slurm that the host has or would get.}
systemd: {type: bool, returned: success, description: Whether the host runs systemd.}
users: {type: dict, returned: success, description: "uid and gid of slurm and munge, null for one that is absent."}
"""

CAP_SYS_ADMIN, CAP_SYS_NICE = 21, 23
SLURM_PACKAGES = ["slurmctld", "slurmd", "slurmdbd", "munge"]
HOSTNAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def memory_mb() -> int:
    """Memory as slurmd counts it, in whole mebibytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024)


def cgroup() -> dict[str, Any]:
    """The version of the cgroup hierarchy, and whether Slurm can put jobs into it.

    In a container the hierarchy is often there but read-only, or the daemon may not set another user's CPU
    affinity. Then Slurm has to track processes by /proc.
    """
    version = "none"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if where == "/sys/fs/cgroup" and kind == "cgroup2":
            return {"version": "v2", "writable": "rw" in options.split(",")}
        if kind == "cgroup":
            version = "v1"
    return {"version": version, "writable": False}


def has_capability(number: int) -> bool:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> number & 1)


def addresses() -> list[str]:
    """Addresses by which other hosts may reach this one."""
    done = subprocess.run(["hostname", "--all-ip-addresses"], capture_output=True, text=True, check=False)
    return done.stdout.split()


def probe() -> dict[str, Any]:
    release, hierarchy = os_release(), cgroup()
    in_cgroups = hierarchy["version"] == "v2" and hierarchy["writable"]
    return {
        "os_id": release.get("ID", "unknown"),
        "os_version": release.get("VERSION_ID", "unknown"),
        "multiarch": f"{platform.machine()}-linux-gnu",
        "hostname": short_hostname(),
        "addresses": addresses(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mb": memory_mb(),
        "gpus": (gpus := read_gpus()),
        "gres": gres(gpus),
        "gres_conf": gres_conf(gpus),
        "cgroup": hierarchy,
        "process_control": "cgroup"
        if in_cgroups and has_capability(CAP_SYS_ADMIN) and has_capability(CAP_SYS_NICE)
        else "linuxproc",
        "users": {name: user_ids(name) for name in ("slurm", "munge")},
        "epoch": time.time(),
        "installed": installed_versions(SLURM_PACKAGES),
        "free_mb": shutil.disk_usage("/var").free // (1024 * 1024),
        "python": platform.python_version(),
        "systemd": Path("/run/systemd/system").is_dir(),
    }


def check_host(found: dict[str, Any], params: dict[str, Any]) -> str:
    """The version of Slurm that the host has or would get. Raises the reason why the host cannot be a member."""
    systems = [s for s in params["supported"] if (s["id"], s["version"]) == (found["os_id"], found["os_version"])]
    if not systems:
        supported = ", ".join(f"{s['id']} {s['version']}" for s in params["supported"])
        raise AdapterError(
            "os_unsupported",
            f"The host runs {found['os_id']} {found['os_version']}; supported are {supported}."
            " Allocate a host with one of these.",
            INTERVENTION,
        )
    if os.geteuid() != 0:
        raise AdapterError("not_root", "The login user cannot become root. Give it sudo, then retry.", INTERVENTION)
    if not found["systemd"]:
        raise AdapterError("no_systemd", "The host does not run systemd. Allocate a host with systemd.", INTERVENTION)
    entries = check_owner(Claim.of(params))
    if not HOSTNAME.fullmatch(found["hostname"]):
        raise AdapterError(
            "hostname_invalid",
            "The host's name has characters that a Slurm node name cannot have. Rename the host, then retry.",
            INTERVENTION,
        )
    if found["free_mb"] < params["min_free_mb"]:
        raise AdapterError(
            "disk_full",
            f"/var has {found['free_mb']} MiB free, {params['min_free_mb']} are needed. Free space, then retry.",
            INTERVENTION,
        )
    for name, uid in params["users"].items():
        present = found["users"].get(name)
        if present and present["uid"] != int(uid):
            raise AdapterError(
                "uid_mismatch",
                f"User {name} has uid {present['uid']} on the host, but the cluster needs {uid}."
                " Change the uid on the host, or use a clean host.",
                INTERVENTION,
            )
    skew = found["skew"] or 0.0
    # A host that joins is compared with its controller's clock below: the runner's clock may be wrong.
    if not params["controller"] and abs(skew) > params["max_skew_seconds"]:
        raise AdapterError(
            "clock_skew",
            f"The host's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the runner's, and munge"
            " refuses credentials between clocks that differ so much. Correct the time service of the wrong one, then"
            " retry.",
            INTERVENTION,
        )
    check_root_access(found["foreign_root"] or [], params["contributed"])
    check_users(params["declared_users"])
    refuse_foreign_data(entries, params["database"])
    version = found["installed"].get("slurmd") or systems[0]["slurm"]
    if params["controller"]:
        check_join_terms({**found, "slurm_version": version}, params["controller"], params["max_skew_seconds"])
        check_gpu_count(found["gpus"], params["controller"]["gpus"])
    return str(version)


def check_owner(claim: Claim) -> Entries:
    """Refuse a host of another instance or another cluster. Returns the entries of the ledger."""
    found: HostOwner = read_owner(claim)
    try:
        check_claim(claim, found)
    except AdapterError as error:
        if error.code in ABSENT:
            raise  # the claim number matters only for calls that change the host
    entries: Entries = (found.ledger or Document()).entries
    refuse_foreign_daemons(entries)
    return entries


def refuse_foreign_data(entries: Entries, database: dict[str, str] | None) -> None:
    """Refuse a host with data of others that the adapter would adopt. Data in the ledger is the cluster's."""
    refuse_foreign_files(entries)
    if database and f"database:{database['name']}" not in entries:
        check_database(database["name"], database["user"])


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "supported": {"type": "list", "elements": "dict", "required": True},
            "reference_epoch": {"type": "float"},
            "max_skew_seconds": {"type": "float", "default": 60},
            "min_free_mb": {"type": "int", "default": 1024},
            "users": {"type": "dict", "default": {}},
            "controller": {
                "type": "dict",
                "options": {
                    "slurm_version": {"type": "str", "required": True},
                    "skew": {"type": "float", "required": True},
                    "slurm_user": {"type": "dict"},
                    "accepts": {"type": "dict", "required": True},
                    "gpus": {"type": "int"},
                },
            },
            "declared_users": {"type": "list", "elements": "dict", "default": []},
            "contributed": {
                "type": "dict",
                "options": {
                    "login_key": {"type": "str", "required": True, "no_log": False},
                    "login_user": {"type": "str", "required": True},
                    "trusted": {"type": "bool", "required": True},
                },
            },
            "database": {
                "type": "dict",
                "options": {"name": {"type": "str", "required": True}, "user": {"type": "str", "required": True}},
            },
        },
        supports_check_mode=True,
    )
    try:
        found = probe()
        reference = module.params["reference_epoch"]
        found["skew"] = None if reference is None else found["epoch"] - reference
        own = module.params["contributed"]
        found["foreign_root"] = foreign_root(own["login_key"], own["login_user"]) if own else None
        found["slurm_version"] = check_host(found, module.params)
    except OSError as error:
        problem = from_os_error(error, "reading the facts of the host")
        module.fail_json(msg=problem.message, adapter_error=problem.as_dict())
    except AdapterError as error:
        module.fail_json(msg=error.message, adapter_error=error.as_dict())
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
