"""Put a configuration live: write it, load it, watch the controller, then confirm or revert it.

The document `trial` is on the host from before the swap until the controller serves. After a run that was killed it
shows the next run that the live configuration was not confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..host.errors import INTERVENTION, REPAIRABLE, AdapterError
from ..host.facts import utc_time
from ..host.units import request
from . import watch as slurm_watch
from .kept import Kept
from .reload import RECONFIGURE, RESTART, how_to_load, pushes_to_workers
from .watch import Cluster

Files = dict[str, str]
# Values and keys on disk are those of version 1.0, whose documents are read.
REVERTING = "taking_back"
DESIRED_CONFIG = "wish"


class Activation:
    """The configuration of one controller. `write` replaces the files that differ, each in one step."""

    def __init__(self, kept: Kept, write: Callable[[Files], None], seconds: float) -> None:
        self._kept = kept
        self._write = write
        self._seconds = seconds

    def is_first(self, directory: Path) -> bool:
        """Whether there is nothing to revert to: no configuration of the adapter has served here."""
        return self._kept.read("good") is None or not (directory / "slurm.conf").exists()

    def finish_interrupted(self, wanted: Files) -> str | None:
        """Finish the trial of a run that was killed. Returns how the configuration was loaded, if it was."""
        trial = self._kept.read("trial")
        if trial is None:
            return None
        if trial.get("phase") != REVERTING and trial.get("files") == wanted:
            return None  # go_live or ensure_loaded continues with it
        before = Cluster.of_note(trial)
        serves = trial.get("phase") != REVERTING and slurm_watch.is_loaded() is True
        if serves and slurm_watch.watch(before, self._seconds) is None:
            self._confirm(trial["files"], str(trial.get(DESIRED_CONFIG) or ""))
            return str(trial.get("how"))
        self._revert(before)
        return RESTART

    def ensure_loaded(self) -> str | None:
        """The files are right; restart a slurmctld that has not read them."""
        trial = self._kept.read("trial")
        if trial is not None:
            return self.go_live(trial["files"], str(trial.get(DESIRED_CONFIG) or ""))
        if not slurm_watch.runs() or slurm_watch.is_loaded() is not False:
            return None
        before = slurm_watch.look_at_cluster()
        self._load(RESTART, before)
        trouble = slurm_watch.watch(before, self._seconds)
        if trouble:
            raise AdapterError(
                "controller_unhealthy",
                f"After a restart, {trouble}. Read `journalctl -u slurmctld`, then retry.",
                REPAIRABLE,
            )
        return RESTART

    def go_live(self, files: Files, desired_config: str) -> str:
        """Write, load, watch. Reverts to the last good configuration and raises an error if it does not serve."""
        good = self._kept.read("good") or {}
        trial = self._kept.read("trial")
        how = how_to_load(slurm_watch.running_series(), good.get("files") or {}, files)
        how = how if slurm_watch.runs() else RESTART
        if trial is None:
            before = slurm_watch.look_at_cluster()
            trial = {
                "files": files,
                DESIRED_CONFIG: desired_config,
                "how": how,
                "nodes": before.nodes,
                "serving": before.serving,
                "since": utc_time(),
            }
            self._kept.write("trial", trial)
        before = Cluster.of_note(trial)
        self._write(files)
        trouble = self._load(how, before) or slurm_watch.watch(before, self._seconds)
        if trouble:
            self._kept.write("trial", {**trial, "phase": REVERTING, "trouble": trouble})
            self._revert(before)
            raise AdapterError(
                "config_taken_back",
                f"Slurm parsed the configuration but did not serve with it: {trouble}. The last good one is live again."
                " Correct the instance's configuration.",
                INTERVENTION,
            )
        self._confirm(files, desired_config)
        return how

    def _load(self, how: str, before: Cluster) -> str | None:
        """Why the configuration could not be loaded; None if slurmctld accepted it or was restarted."""
        slurm_watch.hold_down()
        if how == RECONFIGURE:
            refused = slurm_watch.reconfigure()
            return f"scontrol reconfigure failed: {refused}" if refused else None
        request("restart", "slurmctld")
        if pushes_to_workers(slurm_watch.running_series()) and slurm_watch.watch(before, self._seconds) is None:
            slurm_watch.reconfigure()
        return None

    def _confirm(self, files: Files, desired_config: str) -> None:
        self._kept.write("good", {"files": files, DESIRED_CONFIG: desired_config})
        self._kept.drop("trial")

    def _revert(self, before: Cluster) -> None:
        good = self._kept.read("good") or {}
        self._write(good["files"])
        # A daemon that refused to reconfigure still runs with the old configuration.
        if slurm_watch.is_loaded() is not True or slurm_watch.problem(before):
            self._load(RESTART, before)
        trouble = slurm_watch.watch(before, self._seconds)
        if trouble:
            raise AdapterError(
                "controller_unhealthy",
                f"The last good configuration is in place again, but {trouble}. Read `journalctl -u slurmctld` on the"
                " controller and correct the cause; the next run continues.",
                REPAIRABLE,
            )
        self._kept.drop("trial")
