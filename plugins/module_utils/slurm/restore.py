"""Restore a backup: accounting database and slurmctld's state together, and the packages that can read them.

Every check is made before a daemon is stopped. The present database and state become a backup too, so a restore can be
undone. The document `restore` is on the host from the first stop until the daemons serve: after a run that was killed,
the next one does not back up the half-restored cluster.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..host.errors import INTERVENTION, REPAIRABLE, AdapterError, last_line
from ..host.packages import refresh_index
from ..host.units import converge_units, state_of
from . import backups as slurm_backups
from . import watch as slurm_watch
from .backups import ASIDE, STATE, Backup
from .join_terms import series
from .kept import Kept
from .move import Mover, Units
from .versions import installed_slurm
from .watch import Cluster

SLURMDBD_CONF = Path("/etc/slurm/slurmdbd.conf")
LOCAL = ("localhost", "127.0.0.1", "::1")
STOP_SECONDS = 120
KEEP = 2


class Restore:
    """The restore of one backup on the controller of its cluster."""

    def __init__(
        self, kept: Kept, mover: Mover, name: str, database: str, state: Path, accept_unlabelled: bool = False
    ) -> None:
        self._kept = kept
        self._mover = mover
        self._database = database
        self._state = state
        self._room = kept.directory / "backups"
        self._backup: Backup = slurm_backups.find(self._room, name)
        slurm_backups.verify(self._backup, database, accept_unlabelled)
        login(database)
        # Any version of a series reads the database and state of that series.
        wanted = str(self._backup.manifest.get("version") or "")
        foreign = [one for one in installed_slurm().values() if series(one) != series(wanted)]
        # An interrupted restore may have installed them here already, while workers still have the other series.
        begun = (kept.read("restore") or {}).get("packages")
        self.packages = wanted if wanted and (foreign or begun) else ""

    def check(self) -> dict[str, Any]:
        """A summary of the restore. Raises the reason why it is not possible. Changes nothing."""
        if self.packages:
            refresh_index()
            self._mover.check(self.packages)
        return {**self._backup.summary(), "packages": self.packages}

    def run(self, units: Units, seconds: float) -> dict[str, Any]:
        """Stop the daemons, back up the present state, replace it, start the daemons and watch them."""
        self.check()
        note = self._kept.read("restore") or {}
        # An interrupted restore has made this backup already.
        note = {"backup": self._backup.name, "aside": note.get("aside"), "packages": self.packages}
        self._kept.write("restore", note)
        for unit in ("slurmctld", "slurmdbd"):
            stop(unit)
        if not note["aside"]:
            note["aside"] = self._set_aside(units)
            self._kept.write("restore", note)
        try:
            if self.packages:
                self._mover.finish_interrupted()
                self._mover.install(self.packages)
            load(self._backup.path / f"{self._database}.sql.gz", self._database)
            self._put_state()
            self._kept.drop("move")  # of an upgrade that this restore undoes
            converge_units(units, False)
            trouble = slurm_watch.watch(Cluster(), seconds)
            if trouble:
                raise AdapterError("controller_unhealthy", f"{trouble[0].upper()}{trouble[1:]}.", REPAIRABLE)
        except AdapterError as error:
            raise AdapterError(
                "restore_unfinished",
                f"{self._backup.name} is not restored yet: {error.message} Correct the cause, then run the same"
                f" play again. The former database and state are the backup {note['aside']}.",
                REPAIRABLE,
            ) from error
        self._kept.drop("restore")
        slurm_backups.prune(self._room, KEEP, {self._backup.name, str(note["aside"])})
        moved = {"target": self.packages} if self.packages else {}
        return {"backup": self._backup.name, "aside": note["aside"], **moved}

    def _set_aside(self, units: Units) -> str:
        at = ASIDE + time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        # Never replace a backup: it may be the one that is being restored.
        name = next(one for one in (at, *(f"{at}-{n}" for n in range(2, 100))) if not (self._room / one).exists())
        try:
            slurm_backups.check_room(self._room, self._state, self._database)
            slurm_backups.take_backup(
                self._room / name, self._database, self._state, 3600, change=f"restore of {self._backup.name}"
            )
        except (AdapterError, OSError):
            self._kept.drop("restore")
            converge_units(units, False)  # nothing was replaced: start the daemons again
            raise
        return name

    def _put_state(self) -> None:
        scratch, replaced = self._kept.directory / "restoring", self._kept.directory / "replaced"
        for directory in (scratch, replaced):
            shutil.rmtree(directory, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        unpacked = slurm_backups.unpack(self._backup.path / STATE, scratch)
        if self._state.exists():
            shutil.move(self._state, replaced)
        shutil.move(unpacked, self._state)
        for directory in (scratch, replaced):
            shutil.rmtree(directory, ignore_errors=True)


def login(database: str, conf: Path = SLURMDBD_CONF) -> tuple[str, str]:
    """slurmdbd's user and password for its database on this host.

    That user has access to this database only, whatever statements a dump has.
    """
    text = conf.read_text()
    settings = {key.lower(): value for key, value in re.findall(r"^\s*(Storage\w+)\s*=\s*(\S+)", text, re.MULTILINE)}
    if settings.get("storageloc") != database or settings.get("storagehost", "localhost") not in LOCAL:
        raise AdapterError(
            "database_not_ours",
            f"Nothing was changed: {conf} does not have the database {database!r} on this host. Correct the file, or"
            " restore by hand.",
            INTERVENTION,
        )
    return settings.get("storageuser", ""), settings.get("storagepass", "")


def load(dump: Path, database: str) -> None:
    """Drop the database and load the dump, as slurmdbd's user. The password goes through a pipe, not into a file."""
    user, password = login(database)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write(f'[client]\nuser="{user}"\npassword="{password}"\n')
    command = ["mariadb", f"--defaults-extra-file=/dev/fd/{reading}", "--batch"]
    try:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[reading]
        ) as process:
            assert process.stdin and process.stderr
            try:
                with process.stdin as sink, gzip.open(dump) as source:
                    sink.write(f"DROP DATABASE IF EXISTS `{database}`;\n".encode())
                    shutil.copyfileobj(source, sink, 1024 * 1024)
            except BrokenPipeError:
                pass  # the client ended early; its error is below
            errors = process.stderr.read().decode(errors="replace")
            if process.wait() != 0:
                raise AdapterError("restore_failed", f"The database was not loaded: {last_line(errors)}.", REPAIRABLE)
    finally:
        os.close(reading)


def stop(unit: str) -> None:
    """Stop the unit and check that it stopped: nothing may write while files and tables are replaced."""
    state: dict[str, str] = {}
    with suppress(subprocess.TimeoutExpired):  # a systemctl that hangs counts as a unit that does not stop
        subprocess.run(["systemctl", "stop", unit], capture_output=True, check=False, timeout=STOP_SECONDS)
        state = state_of(unit)
    if state.get("ActiveState") not in ("inactive", "failed"):
        raise AdapterError(
            "unit_not_stopped",
            f"{unit}.service does not stop; daemons stopped before it stay stopped, the database and the state are"
            " unchanged. Stop it, then run the play again.",
            REPAIRABLE,
        )
