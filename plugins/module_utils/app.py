"""What the app is on a host: its own name there, and the names that its packages, daemons and files have.

The code in host/ does its work for any app and takes these names from here. Another app replaces this file and slurm/.
"""

from __future__ import annotations

import re
from pathlib import Path

# In the names of files, directories and commands of the adapter.
NAME = "gpuaas-slurm"
# As people call it.
TITLE = "Slurm"
STATE_DIRECTORY = Path("/var/lib") / NAME
RUN_DIRECTORY = Path("/run") / NAME
# The source package that all of the app's own packages are built from.
SOURCE_PACKAGE = "slurm-wlm"
# Stopped after all others: daemons that take leave of each other still need it.
LAST_UNIT = "munge"
LOGS = ("/var/log/munge", "/var/log/mysql", "/var/log/slurm")

# -- what a host has that belongs to a cluster -----------------------------------------------------------------------

# Anything else that is new on a host belongs to the host's owner.
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

# -- directories that fill up while daemons run ----------------------------------------------------------------------

# Trees of ledgers that did not note the package yet. Any other tree without one, as a home, is kept.
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

# What our own daemons make in a tree, by name.
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

# -- who made an account, and what belongs together ------------------------------------------------------------------

# The packages whose scripts make an account, which has the name of its family.
MAKERS = {"munge": re.compile(r"munge"), "mysql": re.compile(r"mariadb-server"), "slurm": re.compile(r"slurm.*")}
# A server of another make runs as the same account.
OTHER_MAKERS = {"mysql": re.compile(r"(mariadb|mysql|percona).*server.*")}
# Units, daemons, ports and last parts of paths.
FAMILIES = {
    "munge": re.compile(r"munge.*"),
    "mysql": re.compile(r"(mariadb|mysql).*|3306"),
    "slurm": re.compile(r"slurm.*|6817|6818|6819"),
}
# It comes with every client as well, not only with the server.
SHARED_PATHS = {"/etc/mysql": "mysql-common"}
