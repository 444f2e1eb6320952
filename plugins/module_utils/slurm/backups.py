"""Backups of a cluster's accounting database together with slurmctld's state.

Each is a directory with the dump, the state, a manifest, and a file that marks it as complete. Backups of releases
before ledger format 2 have no manifest.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ..host.errors import INTERVENTION, REPAIRABLE, AdapterError, last_line
from ..host.facts import utc_time
from ..host.ledger import write_atomically
from .versions import installed_slurm, oldest

FORMAT = 1
COMPLETE = "complete"
MANIFEST = "manifest.json"
STATE = "state.tar.gz"
ASIDE = "before-restore-"
CHUNK = 1024 * 1024
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]{0,120}")
END_OF_DUMP = b"-- Dump completed"
DATA = Path("/var/lib/mysql")
SLURM_CONF = Path("/etc/slurm/slurm.conf")


@dataclass(frozen=True)
class Backup:
    """One backup on the controller's disk. Without a manifest, `manifest` is empty."""

    path: Path
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def is_complete(self) -> bool:
        return (self.path / COMPLETE).exists()

    def summary(self) -> dict[str, Any]:
        fields = {key: self.manifest.get(key) for key in ("cluster", "taken_at", "change", "version", "target")}
        size = sum(one.stat().st_size for one in self.path.iterdir() if one.is_file())
        taken = fields["taken_at"] or utc_time(self.path.stat().st_mtime)
        return {"name": self.name, "complete": self.is_complete, "mib": size >> 20, **fields, "taken_at": taken}


def take_backup(path: Path, /, database: str, state: Path, seconds: float, **manifest: Any) -> Backup:
    """Make a backup that only root can read. It is valid once it is marked as complete."""
    before = os.umask(0o077)
    try:
        return _write_backup(path, database, state, seconds, manifest)
    finally:
        os.umask(before)


def _write_backup(target: Path, database: str, state: Path, seconds: float, more: dict[str, Any]) -> Backup:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(mode=0o700)
    dump(database, target / f"{database}.sql.gz", seconds)
    pack(state, target / STATE)
    versions = installed_slurm()
    files = {name: _digest(target / name) for name in (f"{database}.sql.gz", STATE)}
    manifest = {
        "format": FORMAT,
        "cluster": cluster_name(),
        "taken_at": utc_time(),
        "database": database,
        "version": oldest(versions.values()),
        "packages": versions,
        "files": files,
        **more,
    }
    write_atomically(target / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode(), mode=0o600)
    (target / COMPLETE).touch(mode=0o600)
    return Backup(target, manifest)


def check_room(directory: Path, state: Path, database: str) -> None:
    """Require free space of twice the size of tables and state, which a compressed backup never exceeds."""
    tables = DATA / database
    need = sum(file.stat().st_size for root in (state, tables) for file in root.rglob("*") if file.is_file())
    free = shutil.disk_usage(directory).free
    if free < 2 * need:
        raise AdapterError(
            "disk_full",
            f"A backup needs {2 * need >> 20} MiB of free space under {directory}; {free >> 20} MiB are free."
            " Nothing was changed. Free space on the controller, then retry.",
            INTERVENTION,
        )


def prune(room: Path, keep: int, protected: Collection[str]) -> None:
    """Keep the newest backups of each kind: before a change, and before a restore."""
    for aside in (False, True):
        found = [one for one in room.iterdir() if one.name.startswith(ASIDE) is aside]
        found.sort(key=lambda one: one.stat().st_mtime, reverse=True)
        for old in found[keep:]:
            if old.name not in protected:
                shutil.rmtree(old, ignore_errors=True)


def list_backups(room: Path) -> list[dict[str, Any]]:
    """Summaries of all backups, newest first."""
    found = [_read(one).summary() for one in room.iterdir() if one.is_dir()] if room.is_dir() else []
    return sorted(found, key=lambda one: str(one["taken_at"]), reverse=True)


def find(room: Path, given: str) -> Backup:
    """A backup by its name, or by its whole path as in the result of an operation."""
    name = given.removeprefix(f"{room}/")
    if not NAME.fullmatch(name) or not (room / name).is_dir():
        names = ", ".join(one["name"] for one in list_backups(room)) or "none"
        raise _refused("backup_not_found", f"{given!r} is not a backup on this controller; it has: {names}")
    return _read(room / name)


def of_change(room: Path, change: str) -> Backup | None:
    """The complete backup of a change; None if there is none."""
    found = _read(room / change) if NAME.fullmatch(change) and (room / change).is_dir() else None
    return found if found and found.is_complete else None


def verify(backup: Backup, database: str, accept_unlabelled: bool) -> None:
    """Raise the reason why the backup cannot be restored here. Reads all of it."""
    if not backup.is_complete:
        raise _refused("backup_incomplete", f"{backup.name} is not complete")
    if not backup.manifest and not accept_unlabelled:
        raise _refused(
            "backup_without_manifest",
            f"{backup.name} has no manifest with its cluster and its Slurm version. If both are those of this"
            " controller, run again with -e accept_unlabelled=true",
        )
    here = cluster_name()
    if backup.manifest and backup.manifest.get("cluster") != here:
        raise _refused(
            "backup_of_another_cluster",
            f"{backup.name} is of cluster {backup.manifest.get('cluster')!r}, but this controller has {here!r}",
        )
    if backup.manifest and backup.manifest.get("database") != database:
        raise _refused("backup_of_another_database", f"{backup.name} is not of the database {database!r}")
    for name, digest in (backup.manifest.get("files") or {}).items():
        if _digest(backup.path / name) != digest:
            raise _refused("backup_unreadable", f"{name} of {backup.name} was changed or damaged")
    try:
        _read_dump(backup.path / f"{database}.sql.gz")
        _read_state(backup.path / STATE)
    except (OSError, EOFError, ValueError, tarfile.TarError, gzip.BadGzipFile) as error:
        raise _refused("backup_unreadable", f"{backup.name} cannot be read: {error}") from error


def dump(database: str, target: Path, seconds: float) -> None:
    """Dump through a pipe into a compressed file, within a time limit. Plain text is never written to the disk."""
    deadline = time.monotonic() + seconds
    command = ["mariadb-dump", "--single-transaction", "--routines", "--databases", database]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        with gzip.open(target, "wb", compresslevel=3) as sink:
            while block := process.stdout.read(CHUNK):
                sink.write(block)
                if time.monotonic() > deadline:
                    process.kill()
                    raise _not_taken("backup_timeout", f"it took longer than {seconds:.0f} s")
        errors = process.stderr.read().decode(errors="replace")
        if process.wait() != 0:
            raise _not_taken("backup_failed", last_line(errors))


def pack(state: Path, target: Path) -> None:
    def unless_gone(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return entry if (state.parent / entry.name).exists() else None

    with tarfile.open(target, "w:gz", compresslevel=3) as archive:
        archive.add(state, arcname=state.name, filter=unless_gone)


def unpack(archive: Path, into: Path) -> Path:
    """Unpack the state below `into`, with its owners. Returns its directory."""
    with tarfile.open(archive, "r:gz") as packed:
        top = _check_members(packed)
        safe: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        packed.extractall(into, numeric_owner=True, **safe)  # noqa: S202 - names were checked above
    return into / top


def cluster_name(conf: Path = SLURM_CONF) -> str:
    found = re.search(r"^\s*ClusterName\s*=\s*(\S+)", conf.read_text(), re.MULTILINE | re.IGNORECASE)
    if not found:
        raise AdapterError("cluster_name_missing", f"{conf} has no ClusterName. Repair it, then retry.", REPAIRABLE)
    return found[1]


def _read(path: Path) -> Backup:
    try:
        manifest = json.loads((path / MANIFEST).read_text())
    except FileNotFoundError:
        return Backup(path)
    except (OSError, ValueError) as error:
        raise _refused("backup_unreadable", f"the manifest of {path.name} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _refused("backup_unreadable", f"the manifest of {path.name} has an unknown format")
    return Backup(path, manifest)


def _read_dump(path: Path) -> None:
    last = b""
    with gzip.open(path) as source:
        while block := source.read(CHUNK):
            last = (last + block)[-400:]
    if END_OF_DUMP not in last:
        raise ValueError("the dump has no end")


def _read_state(path: Path) -> None:
    with tarfile.open(path, "r:gz") as packed:
        _check_members(packed)


def _check_members(packed: tarfile.TarFile) -> str:
    """The one directory of the archive. An entry that would be unpacked elsewhere is an error."""
    members = packed.getmembers()
    tops = {PurePosixPath(one.name).parts[0] for one in members if PurePosixPath(one.name).parts}
    for one in members:
        if one.name.startswith("/") or ".." in PurePosixPath(one.name).parts or not (one.isfile() or one.isdir()):
            raise ValueError(f"{one.name} does not belong in a backup")
    if len(tops) != 1:
        raise ValueError("the state is not one directory")
    return str(tops.pop())


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as source:
            while block := source.read(CHUNK):
                digest.update(block)
    except FileNotFoundError:
        return ""
    return digest.hexdigest()


def _refused(code: str, why: str) -> AdapterError:
    return AdapterError(code, f"Nothing was changed: {why}.", INTERVENTION)


def _not_taken(code: str, why: str) -> AdapterError:
    message = f"The backup failed, so nothing was changed: {why}. Check the controller, then retry."
    return AdapterError(code, message, REPAIRABLE)
