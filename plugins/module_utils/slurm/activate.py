"""A configuration on its way to being live: put in place, loaded, watched, and confirmed or taken back.

The note `trial` is on the host from before the swap until the controller serves, so whoever comes after a run that was
killed knows that what is live was never seen to serve.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ..host.errors import INTERVENTION, REPAIRABLE, AdapterError
from . import watch as slurm_watch
from .kept import Kept
from .reload import RECONFIGURE, RESTART, how_to_load, pushes_to_workers
from .units import restart
from .watch import Cluster

Files = dict[str, str]
TAKING_BACK = "taking_back"


class Activation:
    """One controller's configuration. `write` puts files in their place, atomically, and only those that differ."""

    def __init__(self, kept: Kept, write: Callable[[Files], None], seconds: float) -> None:
        self._kept = kept
        self._write = write
        self._seconds = seconds

    def is_first(self, directory: Path) -> bool:
        """Nothing to go back to: no configuration of ours has served here."""
        return self._kept.read("good") is None or not (directory / "slurm.conf").exists()

    def settle(self, wanted: Files) -> str | None:
        """Finish what a run that was killed left on trial; how it was loaded, if it was."""
        trial = self._kept.read("trial")
        if trial is None:
            return None
        if trial.get("phase") != TAKING_BACK and trial.get("files") == wanted:
            return None  # `bring` takes it up where it was left, or there is nothing left but to look
        before = Cluster(list(trial["nodes"]), list(trial["serving"]))
        serves = trial.get("phase") != TAKING_BACK and slurm_watch.is_loaded() is True
        if serves and slurm_watch.watch(before, self._seconds) is None:
            self._confirm(trial["files"], str(trial.get("wish") or ""))
            return str(trial.get("how"))
        self._take_back(before)
        return RESTART

    def ensure_loaded(self) -> str | None:
        """The files are as they should be; see that a running slurmctld has read them."""
        trial = self._kept.read("trial")
        if trial is not None:
            return self.bring(trial["files"], str(trial.get("wish") or ""))
        if not slurm_watch.runs() or slurm_watch.is_loaded() is not False:
            return None
        before = slurm_watch.look_at_cluster()
        self._load(RESTART, before)
        trouble = slurm_watch.watch(before, self._seconds)
        if trouble:
            raise AdapterError("controller_unhealthy", f"After a restart, {trouble}. Look at its journal.", REPAIRABLE)
        return RESTART

    def bring(self, files: Files, wish: str) -> str:
        """Swap, load, watch. Raises once the last good configuration serves again, or nothing does."""
        good = self._kept.read("good") or {}
        trial = self._kept.read("trial")
        how = how_to_load(slurm_watch.running_series(), good.get("files") or {}, files)
        how = how if slurm_watch.runs() else RESTART
        if trial is None:
            before = slurm_watch.look_at_cluster()
            trial = {
                "files": files,
                "wish": wish,
                "how": how,
                "nodes": before.nodes,
                "serving": before.serving,
                "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            self._kept.write("trial", trial)
        before = Cluster(list(trial["nodes"]), list(trial["serving"]))
        self._write(files)
        trouble = self._load(how, before) or slurm_watch.watch(before, self._seconds)
        if trouble:
            self._kept.write("trial", {**trial, "phase": TAKING_BACK, "trouble": trouble})
            self._take_back(before)
            raise AdapterError(
                "config_taken_back",
                f"Slurm parsed the configuration but did not serve with it: {trouble}. The last good one is live again."
                " Correct the instance's configuration.",
                INTERVENTION,
            )
        self._confirm(files, wish)
        return how

    def _load(self, how: str, before: Cluster) -> str | None:
        """Why it could not be loaded; None if slurmctld took it or was told to start with it."""
        slurm_watch.hold_down()
        if how == RECONFIGURE:
            refused = slurm_watch.reconfigure()
            return f"scontrol reconfigure said: {refused}" if refused else None
        restart("slurmctld")
        if pushes_to_workers(slurm_watch.running_series()) and slurm_watch.watch(before, self._seconds) is None:
            slurm_watch.reconfigure()
        return None

    def _confirm(self, files: Files, wish: str) -> None:
        self._kept.write("good", {"files": files, "wish": wish})
        self._kept.drop("trial")

    def _take_back(self, before: Cluster) -> None:
        good = self._kept.read("good") or {}
        self._write(good["files"])
        # A daemon that refused to reconfigure runs with the old one still.
        if slurm_watch.is_loaded() is not True or slurm_watch.problem(before):
            self._load(RESTART, before)
        trouble = slurm_watch.watch(before, self._seconds)
        if trouble:
            raise AdapterError(
                "controller_unhealthy",
                f"The last good configuration is in place again, but {trouble}. Read `journalctl -u slurmctld` on the"
                " controller, put right what it names; the next run goes on.",
                REPAIRABLE,
            )
        self._kept.drop("trial")
