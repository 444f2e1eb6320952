#!/usr/bin/python3
"""Keep the accounting database and slurmctld's state as they are now, on the controller, for root alone."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.adapter_error import INTERVENTION, REPAIRABLE, AdapterError
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host_claim import CLAIM_ARGUMENT
from ansible.module_utils.host_turn import host_turn
from ansible.module_utils.slurm_kept import Kept

DOCUMENTATION = r"""
module: slurm_backup
short_description: Back up Slurm's accounting database and slurmctld's state
description:
  - Taken while both run, the database as of one moment, the state file by file, each of which slurmctld replaces whole.
  - One a name, so a run that is taken up again has the backup from before it began. The newest are kept.
options:
  owner: {type: str, required: true, description: "Who asks, for the ledger, as component/role."}
  name: {type: str, required: true, description: What it is taken for.}
  database: {type: str, required: true, description: The accounting database.}
  state: {type: path, default: /var/lib/slurm/slurmctld, description: StateSaveLocation.}
  keep: {type: int, default: 2, description: How many to keep.}
  timeout: {type: float, default: 600, description: Seconds it may take.}
  claim: {type: dict, default: {}, description: "For whom the call is made. Its action plugin sets it."}
author: [gpuaas-slurm]
"""

RETURN = r"""
path: {type: str, description: Where it is., returned: success}
"""

WHOLE = "complete"
CHUNK = 1024 * 1024


def dump(database: str, target: Path, seconds: float) -> None:
    """Through a pipe into a compressed file: the plain text never lies on the disk, and the time is bounded."""
    deadline = time.monotonic() + seconds
    command = ["mariadb-dump", "--single-transaction", "--routines", "--databases", database]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        with gzip.open(target, "wb", compresslevel=3) as sink:
            while block := process.stdout.read(CHUNK):
                sink.write(block)
                if time.monotonic() > deadline:
                    process.kill()
                    raise AdapterError("backup_timeout", _sentence(f"it took longer than {seconds:.0f} s"), REPAIRABLE)
        words = process.stderr.read().decode(errors="replace").strip()
        if process.wait() != 0:
            raise AdapterError("backup_failed", _sentence(words.splitlines()[-1] if words else "no words"), REPAIRABLE)


def pack(state: Path, target: Path) -> None:
    def unless_gone(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return entry if (state.parent / entry.name).exists() else None

    with tarfile.open(target, "w:gz", compresslevel=3) as archive:
        archive.add(state, arcname=state.name, filter=unless_gone)


def check_room(directory: Path, state: Path, database: Path) -> None:
    need = sum(file.stat().st_size for root in (state, database) for file in root.rglob("*") if file.is_file())
    free = shutil.disk_usage(directory).free
    if free < 2 * need:
        raise AdapterError(
            "disk_full",
            f"A backup needs up to {need >> 20} MiB and there should be twice that; {free >> 20} MiB are free under"
            f" {directory}. Nothing was changed. Free space on the controller, then ask again.",
            INTERVENTION,
        )


def back_up(params: dict[str, Any]) -> tuple[bool, Path]:
    kept = Kept(params["owner"])
    kept.make_room()
    room = kept.directory / "backups"
    room.mkdir(mode=0o700, exist_ok=True)
    target = room / params["name"]
    if (target / WHOLE).exists():
        return False, target
    check_room(room, Path(params["state"]), Path("/var/lib/mysql") / params["database"])
    shutil.rmtree(target, ignore_errors=True)
    before = os.umask(0o077)
    try:
        target.mkdir(mode=0o700)
        dump(params["database"], target / f"{params['database']}.sql.gz", params["timeout"])
        pack(Path(params["state"]), target / "state.tar.gz")
        (target / WHOLE).touch()
    finally:
        os.umask(before)
    others = sorted((one for one in room.iterdir() if one != target), key=lambda one: one.stat().st_mtime, reverse=True)
    for old in others[params["keep"] - 1 :]:
        shutil.rmtree(old, ignore_errors=True)
    return True, target


def _sentence(why: str) -> str:
    return (
        f"The backup before the change failed, so nothing was changed: {why}. Look at the controller, then ask again."
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLAIM_ARGUMENT,
            "owner": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
            "database": {"type": "str", "required": True},
            "state": {"type": "path", "default": "/var/lib/slurm/slurmctld"},
            "keep": {"type": "int", "default": 2},
            "timeout": {"type": "float", "default": 600},
        },
        supports_check_mode=False,
    )
    with host_turn(module, "taking a backup"):
        changed, path = back_up(module.params)
    module.exit_json(changed=changed, path=str(path))


if __name__ == "__main__":
    main()
