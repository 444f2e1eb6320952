"""Slurm's packages from one version to another.

The note `move` is on the host from before the first package until the daemons serve, with the version there was before
and the backup: a run that was killed in the middle is finished by the next.

Within a series a failed move is taken back. Across series it never is: the newer slurmdbd and slurmctld may have
converted database and state, which the older ones cannot read. It stops where it is, and the next run goes on forwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..host.errors import INTERVENTION, REPAIRABLE, RETRYABLE, AdapterError
from ..host.ledger import Ledger
from ..host.packages import APT, INSTALL, finish_interrupted_install, restore_policy, run_apt, services_held
from ..host.units import converge_units
from . import watch as slurm_watch
from .conversion import Patience, StillConverting, start_slurmdbd
from .join_terms import series
from .kept import Kept
from .versions import installed_slurm, oldest
from .watch import Cluster

Units = list[dict[str, Any]]
# For slurmdbd of the former version, which has nothing to convert.
BACK = Patience(round=300)
RESTORE = (
    "gpuaas-slurm exec --instance INSTANCE -- ansible-playbook -i gpuaas.yml playbooks/restore_backup.yml"
    " --limit INSTANCE-GROUP -e backup={name}"
)


class Mover:
    """The packages of one host."""

    def __init__(self, kept: Kept, ledger: Ledger) -> None:
        self._kept = kept
        self._ledger = ledger

    def check(self, version: str) -> None:
        """apt's own word that every package can be had in that version."""
        wanted = [f"{name}={version}" for name, now in sorted(installed_slurm().items()) if now != version]
        try:
            if wanted:
                run_apt([*APT, "--simulate", "--allow-downgrades", *INSTALL, *wanted], f"planning Slurm {version}")
        except AdapterError as error:
            raise AdapterError("version_not_offered", f"Nothing was touched: {error.message}", INTERVENTION) from error

    def finish_interrupted(self) -> None:
        restore_policy()
        finish_interrupted_install()

    def move(
        self,
        version: str,
        units: Units,
        *,
        controller: bool = False,
        seconds: float = 90,
        database: str = "",
        backup: str = "",
        patience: Patience | None = None,
    ) -> list[str]:
        """What was done; nothing if everything is there and runs.

        Raises StillConverting while slurmdbd converts. Raises AdapterError after going back, or across series without.
        """
        note = self._kept.read("move")
        if note is None and all(now == version for now in installed_slurm().values()):
            return self._settle(units, None, seconds)
        if note is None or note["to"] != version:
            before = slurm_watch.look_at_cluster() if controller else Cluster()
            known = note or {"from": oldest(installed_slurm().values()), "backup": backup}
            note = {"from": known["from"], "backup": known.get("backup") or backup, "to": version}
            note |= {"nodes": before.nodes, "serving": before.serving, "database": database}
            self._kept.write("move", note)
        watched = Cluster(list(note["nodes"]), list(note["serving"])) if controller else None
        try:
            changes = self.install(version) + self._settle(units, watched, seconds, note, patience or Patience())
        except AdapterError as error:
            if series(str(note["from"])) != series(version):
                raise _unfinished(note, error) from error
            self._go_back(note, units, watched, seconds, error)
            raise AssertionError("unreachable: going back raises") from error
        self._kept.drop("move")
        return changes

    def install(self, version: str) -> list[str]:
        present = installed_slurm()
        wanted = [f"{name}={version}" for name, now in sorted(present.items()) if now != version]
        if not wanted:
            return []
        command = [*APT, "--allow-downgrades", *INSTALL, *wanted]
        planned = run_apt([*APT, "--simulate", "--allow-downgrades", *INSTALL, *wanted], f"planning Slurm {version}")
        for line in planned.splitlines():
            name = line.split()[1] if line.startswith("Inst ") else ""
            if name and not self._ledger.knows("package", name):
                # What comes along is ours; what was there is noted with the version it had.
                there = present.get(name)
                self._ledger.note("package", name, {"installed": bool(there) or _upgrades(line), "version": there})
        self._ledger.save()
        with services_held():
            run_apt(command, f"moving Slurm to {version}")
        return [f"packages {version}"]

    def _settle(
        self,
        units: Units,
        watched: Cluster | None,
        seconds: float,
        note: dict[str, Any] | None = None,
        patience: Patience | None = None,
    ) -> list[str]:
        """Restart what started before its package was unpacked, in order, and see that it serves."""
        changes: list[str] = []
        for unit in units:
            if unit.get("converts") and note is not None:
                changes += self._start_slurmdbd(unit, note, patience or Patience())
            else:
                changes += converge_units([unit], False)
        trouble = slurm_watch.watch(watched, seconds) if watched is not None else None
        if trouble:
            raise AdapterError("controller_unhealthy", f"{trouble[0].upper()}{trouble[1:]}.", REPAIRABLE)
        return changes

    def _start_slurmdbd(self, unit: dict[str, Any], note: dict[str, Any], patience: Patience) -> list[str]:
        def save(record: dict[str, Any]) -> None:
            self._kept.write("move", note | {"conversion": record})

        return start_slurmdbd(unit, str(note.get("database") or ""), note.get("conversion") or {}, save, patience)

    def _go_back(
        self, note: dict[str, Any], units: Units, watched: Cluster | None, seconds: float, cause: AdapterError
    ) -> None:
        version, problem = str(note["from"]), ""
        try:
            self.finish_interrupted()
            self.install(version)
            self._settle(units, watched, seconds, {**note, "conversion": {}}, BACK)
        except AdapterError as error:
            problem = error.message
        except StillConverting:
            problem = f"slurmdbd did not listen within {BACK.round:.0f} s."
        if problem:
            raise AdapterError(
                "upgrade_stuck",
                f"The move failed ({cause.message}) and so did going back to {version} ({problem}). Look at the"
                " host, then ask again: the next run goes on from what it finds.",
                REPAIRABLE,
            )
        self._kept.drop("move")
        raise AdapterError(
            "upgrade_taken_back",
            f"The new version did not serve, and {version} is back and does: {cause.message}",
            INTERVENTION,
        )


def _unfinished(note: dict[str, Any], cause: AdapterError) -> AdapterError:
    """Across series. The cause is shortened, so that the way back is not cut off where messages have a limit."""
    backup = str(note.get("backup") or "")
    back = f" The way back is the backup {backup}: {RESTORE.format(name=Path(backup).name)}" if backup else ""
    return AdapterError(
        "upgrade_unfinished",
        f"Slurm is on its way from {note['from']} to {note['to']} and does not serve yet: {cause.message[:350]} Nothing"
        " was taken back, since an older series cannot read what a newer one wrote. Put right what is named, then ask"
        f" for the upgrade again: it goes on from here.{back}",
        RETRYABLE if cause.error_class == RETRYABLE else INTERVENTION,
    )


def _upgrades(line: str) -> bool:
    """apt shows the version there is now in brackets: Inst name [1.0] (1.1 ...)."""
    return line.split()[2].startswith("[") if len(line.split()) > 2 else False
