"""Slurm's packages from one version to another, and back if the daemons do not serve.

The note `move` is on the host from before the first package until the daemons serve, with the version there was
before: a run that was killed in the middle is finished by the next, forwards or backwards.
"""

from __future__ import annotations

from typing import Any

from . import slurm_watch
from .adapter_error import INTERVENTION, REPAIRABLE, AdapterError
from .converge_ledger import Ledger
from .converge_packages import APT, INSTALL, finish_interrupted_install, restore_policy, run_apt, services_held
from .converge_units import converge_units
from .slurm_kept import Kept
from .slurm_versions import installed_slurm, oldest
from .slurm_watch import Cluster

Units = list[dict[str, Any]]


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

    def move(self, version: str, units: Units, controller: bool, seconds: float) -> list[str]:
        """What was done; nothing if everything is there and runs. Raises once it has gone back."""
        note = self._kept.read("move")
        if note is None and all(now == version for now in installed_slurm().values()):
            return self._settle(units, None, seconds)
        if note is None or note["to"] != version:
            before = slurm_watch.look_at_cluster() if controller else Cluster()
            note = {"from": note["from"] if note else oldest(installed_slurm().values()), "to": version}
            note |= {"nodes": before.nodes, "serving": before.serving}
            self._kept.write("move", note)
        watched = Cluster(list(note["nodes"]), list(note["serving"])) if controller else None
        try:
            changes = self._install(version) + self._settle(units, watched, seconds)
        except AdapterError as error:
            self._go_back(str(note["from"]), units, watched, seconds, error)
            raise AssertionError("unreachable: going back raises") from error
        self._kept.drop("move")
        return changes

    def _install(self, version: str) -> list[str]:
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

    @staticmethod
    def _settle(units: Units, watched: Cluster | None, seconds: float) -> list[str]:
        """Restart what started before its package was unpacked, in order, and see that it serves."""
        changes = converge_units(units, False)
        trouble = slurm_watch.watch(watched, seconds) if watched is not None else None
        if trouble:
            raise AdapterError("controller_unhealthy", f"{trouble[0].upper()}{trouble[1:]}.", REPAIRABLE)
        return changes

    def _go_back(
        self, version: str, units: Units, watched: Cluster | None, seconds: float, cause: AdapterError
    ) -> None:
        try:
            self.finish_interrupted()
            self._install(version)
            self._settle(units, watched, seconds)
        except AdapterError as error:
            raise AdapterError(
                "upgrade_stuck",
                f"The move failed ({cause.message}) and so did going back to {version} ({error.message}). Look at the"
                " host, then ask again: the next run goes on from what it finds.",
                REPAIRABLE,
            ) from error
        self._kept.drop("move")
        raise AdapterError(
            "upgrade_taken_back",
            f"The new version did not serve, and {version} is back and does: {cause.message}",
            INTERVENTION,
        )


def _upgrades(line: str) -> bool:
    """apt shows the version there is now in brackets: Inst name [1.0] (1.1 ...)."""
    return line.split()[2].startswith("[") if len(line.split()) > 2 else False
