"""The app on a host: its name, and the names of its packages, daemons and files.

The code in host/ works for any app and takes these names from here. Another app replaces this file and slurm/.
"""

from __future__ import annotations

import re
from pathlib import Path

# Used in names of files, directories and commands of the adapter.
NAME = "gpuaas-slurm"
# Used in messages.
TITLE = "Slurm"
STATE_DIRECTORY = Path("/var/lib") / NAME
RUN_DIRECTORY = Path("/run") / NAME
# The source package that all of the app's own packages are built from.
SOURCE_PACKAGE = "slurm-wlm"
# Stopped last: the other daemons need it to end their connections.
LAST_UNIT = "munge"
LOGS = ("/var/log/munge", "/var/log/mysql", "/var/log/slurm")

# -- parts of a cluster on a host -----------------------------------------------------------------------

# Other new things on a host belong to the host's owner.
PACKAGE_PREFIXES = ("gpuaas", "libmunge", "libpmix", "libslurm", "mariadb", "munge", "mysql", "slurm")
ACCOUNTS = ("munge", "mysql", "slurm")
DAEMONS = ("mariadbd", "munged", "slurmctld", "slurmd", "slurmdbd", "slurmstepd")
PORTS = ("3306", "6817", "6818", "6819")
PATHS = (
    *(f"/etc/{name}" for name in ("munge", "mysql", "slurm")),
    *(f"/run/{name}" for name in ("gpuaas-slurm/source", "munge", "mysqld", "slurm", "slurmctld", "slurmdbd")),
    *(f"/var/lib/{name}" for name in ("munge", "mysql", "slurm")),
    *(f"/var/log/{name}" for name in ("munge", "mysql", "slurm")),
    *(f"/var/spool/{name}" for name in ("slurm", "slurmctld", "slurmd")),
    *(f"/etc/systemd/system/{name}.service.d" for name in ("mariadb", "munge", "slurmctld", "slurmd", "slurmdbd")),
    "/usr/sbin/policy-rc.d.before-gpuaas-slurm",
)

# -- directories that daemons fill ----------------------------------------------------------------------

# Packages of trees in ledgers of format 1, which do not have them. Other trees without a package, as homes, are kept.
KNOWN_PACKAGES = {
    "/etc/mysql/debian.cnf": "mariadb-server",
    "/run/mysqld": "mariadb-server",
    "/var/lib/mysql": "mariadb-server",
    "/var/log/mysql": "mariadb-server",
    "/run/munge": "munge",
    "/var/lib/munge": "munge",
    "/var/log/munge": "munge",
    "/etc/slurm": "slurmctld",
    "/run/slurm": "slurmd",
    "/run/slurmdbd": "slurmdbd",
    "/var/lib/slurm/slurmctld": "slurmctld",
    "/var/lib/slurm/slurmd": "slurmd",
    "/var/log/slurm": "slurmdbd",
}

# Files of the cluster's daemons in a tree.
DAEMON_FILES = {
    "/run/munge": ("munge*",),
    "/var/lib/munge": ("munge.seed", "munged.seed"),
    "/var/log/munge": ("munged.log",),
    "/run/slurm": ("conf", "slurm*.pid"),
    "/run/slurmdbd": ("slurmdbd.pid",),
    "/var/lib/slurm/slurmctld": (
        *("assoc_mgr_state*", "assoc_usage*", "bb_state*", "clustername*", "dbd.messages*", "fed_mgr_state*"),
        *("hash.[0-9]", "heartbeat*", "job_state*", "last_config_lite*", "last_tres*", "node_state*", "part_state*"),
        *("priority_last_decay_ran*", "qos_usage*", "resv_state*", "sackd_nodes*", "trigger_state*"),
    ),
    "/var/lib/slurm/slurmd": ("conf-cache", "cred_state*", "hwloc_topo_*.xml", "job[0-9]*", "*_[0-9]*.[0-9]*"),
    "/var/log/slurm": ("slurmctld.log", "slurmd.log", "slurmdbd.log"),
}

# -- origin of accounts, and families ------------------------------------------------------------------

# Packages whose scripts create an account. The account has the name of the family.
MAKERS = {"munge": re.compile(r"munge"), "mysql": re.compile(r"mariadb-server"), "slurm": re.compile(r"slurm.*")}
# Another server that uses the same account.
OTHER_MAKERS = {"mysql": re.compile(r"(mariadb|mysql|percona).*server.*")}
# Units, daemons, ports and last parts of paths.
FAMILIES = {
    "munge": re.compile(r"munge.*"),
    "mysql": re.compile(r"(mariadb|mysql).*|3306"),
    "slurm": re.compile(r"slurm.*|6817|6818|6819"),
}
# A package of every client, not only of the server.
SHARED_PATHS = {"/etc/mysql": "mysql-common"}
