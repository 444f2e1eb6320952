"""Move Slurm's packages from one version to another.

The document `move` is on the host from before the first package until the daemons serve. It has the former version and
the backup, so the next run finishes a run that was killed.

Within a series a failed move is reverted. Across series it is not: the newer slurmdbd and slurmctld may have converted
database and state, which the older ones cannot read. The move stops, and the next run continues forwards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

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
# For slurmdbd of the former version, which converts nothing.
BACK = Patience(round=300)
RESTORE = (
    "gpuaas-slurm exec --instance INSTANCE --reason 'WHY' --"
    " ansible-playbook -i gpuaas.yml playbooks/restore_backup.yml"
    " --limit GROUP -e backup={name}"
)


class Mover:
    """The packages of one host."""

    def __init__(self, kept: Kept, ledger: Ledger) -> None:
        self._kept = kept
        self._ledger = ledger

    def check(self, version: str) -> None:
        """Let apt simulate the move. Raises an error if a package is not available in that version."""
        wanted = [f"{name}={version}" for name, now in sorted(installed_slurm().items()) if now != version]
        try:
            if wanted:
                run_apt([*APT, "--simulate", "--allow-downgrades", *INSTALL, *wanted], f"planning Slurm {version}")
        except AdapterError as error:
            raise AdapterError("version_not_offered", f"Nothing was changed: {error.message}", INTERVENTION) from error

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
        """Returns what was done; empty if the version is installed and runs.

        Raises StillConverting while slurmdbd converts, and AdapterError after a failure; it reverts within a series.
        """
        note = self._kept.read("move")
        if note is None and all(now == version for now in installed_slurm().values()):
            return self._settle(units, None, seconds)
        if note is None or note["to"] != version:
            before = slurm_watch.look_at_cluster() if controller else Cluster()
            former = note or {"from": oldest(installed_slurm().values()), "backup": backup}
            note = {"from": former["from"], "backup": former.get("backup") or backup, "to": version}
            note |= {"nodes": before.nodes, "serving": before.serving, "database": database}
            self._kept.write("move", note)
        watched = Cluster.of_note(note) if controller else None
        try:
            changes = self.install(version) + self._settle(units, watched, seconds, note, patience or Patience())
        except AdapterError as error:
            if series(str(note["from"])) != series(version):
                raise _unfinished(note, error) from error
            self._revert(note, units, watched, seconds, error)
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
            if name and not self._ledger.has("package", name):
                # New dependencies are noted as ours, installed packages with their former version.
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
        """Restart the daemons that started before their package was unpacked, in order, and watch the controller."""
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

    def _revert(
        self, note: dict[str, Any], units: Units, watched: Cluster | None, seconds: float, cause: AdapterError
    ) -> NoReturn:
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
                f"The move failed ({cause.message}), and so did the return to {version} ({problem}). Check the host,"
                " then retry: the next run continues from the present state.",
                REPAIRABLE,
            )
        self._kept.drop("move")
        raise AdapterError(
            "upgrade_taken_back",
            f"The new version did not serve; {version} is installed again and serves: {cause.message}",
            INTERVENTION,
        )


def _unfinished(note: dict[str, Any], cause: AdapterError) -> AdapterError:
    """The error of a move across series. The cause is shortened, so that the command at the end is not cut off."""
    backup = str(note.get("backup") or "")
    back = f" To return, restore the backup {backup}: {RESTORE.format(name=Path(backup).name)}" if backup else ""
    return AdapterError(
        "upgrade_unfinished",
        f"The move of Slurm from {note['from']} to {note['to']} is not complete: {cause.message[:350]} It was not"
        " reverted, since an older series cannot read the data of a newer one. Correct the cause, then request the"
        f" upgrade again: it continues from here.{back}",
        RETRYABLE if cause.error_class == RETRYABLE else INTERVENTION,
    )


def _upgrades(line: str) -> bool:
    """apt shows the installed version in brackets: Inst name [1.0] (1.1 ...)."""
    return line.split()[2].startswith("[") if len(line.split()) > 2 else False
