"""What a host has that belongs to somebody else and that we would otherwise take for ours: keys and configuration.

A thing is ours if our ledger has it. A munge key, a slurm.conf or a slurmdbd.conf without an entry there was made by
others; it is neither used nor replaced, and the host is refused before its first change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..host.errors import INTERVENTION, AdapterError
from ..host.files import find

MUNGE_KEY = "/etc/munge/munge.key"
# What shows that a Slurm was set up here: its configuration, and the state that a slurmctld would start from.
SLURM_FILES = {
    "/etc/slurm/slurm.conf": "slurm_conf_exists",
    "/etc/slurm-llnl/slurm.conf": "slurm_conf_exists",
    "/etc/slurm/slurmdbd.conf": "slurm_conf_exists",
    "/var/lib/slurm/slurmctld/clustername": "slurm_state_exists",
}
SLURM_UNITS = ("slurmctld", "slurmd", "slurmdbd")


def judge_files(entries: Mapping[str, Mapping[str, Any]], root: Path = Path("/")) -> None:
    """Raise the first file of others that a member here would adopt. `entries` are our ledger's."""
    if f"path:{MUNGE_KEY}" not in entries and _is_there(root, MUNGE_KEY):
        raise AdapterError(
            "munge_key_exists",
            f"{MUNGE_KEY} on the host was not made by this cluster. If nothing on the host uses munge, stop munge and"
            " remove the key, then retry; otherwise use another host.",
            INTERVENTION,
        )
    if any(f"unit:{name}" in entries for name in SLURM_UNITS):
        return  # it was looked at before we set up Slurm here
    for path, code in SLURM_FILES.items():
        if f"path:{path}" not in entries and _is_there(root, path):
            raise AdapterError(
                code,
                f"{path} on the host was not made by this cluster, so the host has or had a Slurm of its own. If that"
                " is no longer used, move the file away, then retry; otherwise use another host.",
                INTERVENTION,
            )


def _is_there(root: Path, path: str) -> bool:
    # Only a file or a link is a key or configuration; anything else is reported by the task that writes the path.
    return find(root / path.lstrip("/")).kind in ("file", "link")
