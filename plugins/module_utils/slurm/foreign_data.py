"""Keys and configuration of others on a host, which the adapter must not adopt.

A file is the cluster's if the ledger has it. A munge key, a slurm.conf or a slurmdbd.conf without an entry belongs to
others. It is neither used nor replaced: the host is refused before its first change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..host.errors import INTERVENTION, AdapterError
from ..host.files import find

MUNGE_KEY = "/etc/munge/munge.key"
# Files of another Slurm: its configuration, and the state that a slurmctld would start from.
SLURM_FILES = {
    "/etc/slurm/slurm.conf": "slurm_conf_exists",
    "/etc/slurm-llnl/slurm.conf": "slurm_conf_exists",
    "/etc/slurm/slurmdbd.conf": "slurm_conf_exists",
    "/var/lib/slurm/slurmctld/clustername": "slurm_state_exists",
}
SLURM_UNITS = ("slurmctld", "slurmd", "slurmdbd")


def refuse_foreign_files(entries: Mapping[str, Mapping[str, Any]], root: Path = Path("/")) -> None:
    """Raise an error about the first file of others that a member would adopt. `entries` are the ledger's."""
    if f"path:{MUNGE_KEY}" not in entries and _is_there(root, MUNGE_KEY):
        raise AdapterError(
            "munge_key_exists",
            f"{MUNGE_KEY} on the host was not created by this cluster. If nothing there uses munge, stop munge and"
            " remove the key, then retry; otherwise use another host.",
            INTERVENTION,
        )
    if any(f"unit:{name}" in entries for name in SLURM_UNITS):
        return  # checked before Slurm was set up here
    for path, code in SLURM_FILES.items():
        if f"path:{path}" not in entries and _is_there(root, path):
            raise AdapterError(
                code,
                f"{path} on the host was not created by this cluster, so the host has or had another Slurm. If that is"
                " no longer used, move the file away, then retry; otherwise use another host.",
                INTERVENTION,
            )


def _is_there(root: Path, path: str) -> bool:
    # Only a file or a link is a key or configuration; anything else is reported by the task that writes the path.
    return find(root / path.lstrip("/")).kind in ("file", "link")
