"""A controller in a directory, of which backups are taken and restored."""

import gzip
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host.errors import REPAIRABLE, AdapterError
from ansible.module_utils.slurm import backups as slurm_backups
from ansible.module_utils.slurm import restore as slurm_restore
from ansible.module_utils.slurm import watch as slurm_watch
from ansible.module_utils.slurm.backups import Backup
from ansible.module_utils.slurm.kept import Kept
from ansible.module_utils.slurm.restore import Restore

DATABASE = "slurm_acct_db"
OLD, NEXT = "22.05.8-4", "23.02.1-1"
CONF = f"DbdHost=localhost\nStorageHost=localhost\nStorageLoc={DATABASE}\nStoragePass=secret\nStorageUser=slurm\n"


cluster_name = slurm_backups.cluster_name


class Killed(BaseException):
    """As SIGKILL: nothing of ours runs after it."""


@dataclass
class Host:
    """A controller in a directory. Its database is one line of text; both daemons start if `starts` is set."""

    root: Path
    version: str = OLD
    database: str = "jobs 1-10"
    loads: bool = True
    starts: bool = True
    offered: bool = True
    killed_at: str = ""
    steps: list[str] = field(default_factory=list)

    @property
    def kept(self) -> Kept:
        return Kept("controller/packages", self.root / "kept")

    @property
    def room(self) -> Path:
        return self.root / "kept" / "backups"

    @property
    def state(self) -> Path:
        return self.root / "slurmctld"

    def step(self, what: str) -> None:
        if what == self.killed_at:
            self.killed_at = ""
            raise Killed(what)
        self.steps.append(what)

    # -- what the code under test calls --
    def dump(self, _database: str, target: Path, _seconds: float) -> None:
        self.step("dump")
        with gzip.open(target, "wt") as sink:
            sink.write(f"{self.database}\n-- Dump completed on 2026-01-01\n")

    def load(self, dump: Path, _database: str) -> None:
        self.step("load")
        if not self.loads:
            raise AdapterError("restore_failed", "The database was not loaded: disk full.", REPAIRABLE)
        with gzip.open(dump, "rt") as source:
            self.database = source.readline().strip()

    def stop(self, unit: str) -> None:
        self.step(f"stop {unit}")

    def start(self, units: list[dict[str, Any]], _dry: bool) -> list[str]:
        self.step(f"start {' '.join(one['name'] for one in units)}")
        if not self.starts:
            raise AdapterError("unit_failed", "slurmctld.service did not come up.", REPAIRABLE)
        return []

    def check(self, version: str) -> None:
        if not self.offered:
            raise AdapterError("version_not_offered", f"Nothing was changed: no {version}", REPAIRABLE)

    def install(self, version: str) -> list[str]:
        self.step(f"install {version}")
        self.version = version
        return []

    def finish_interrupted(self) -> None: ...

    # -- what tests do --
    def back_up(self, name: str = "op-1") -> Backup:
        made = slurm_backups.take_backup(self.room / name, DATABASE, self.state, 60, change=name)
        self.steps.clear()
        return made

    def go_on(self, text: str) -> None:
        self.database = text
        (self.state / "job_state").write_text(text)
        (self.state / "later").write_text("a file from after the backup")

    def restore(self, name: str = "op-1", **more: Any) -> dict[str, Any]:
        restore = Restore(self.kept, self, name, DATABASE, self.state, **more)  # type: ignore[arg-type]
        return restore.run([{"name": "slurmdbd"}, {"name": "slurmctld"}], 1)

    def holds(self) -> tuple[str, str, bool]:
        return self.database, (self.state / "job_state").read_text(), (self.state / "later").exists()


def restorable_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    made.state.mkdir()
    (made.state / "job_state").write_text("jobs 1-10")
    made.room.mkdir(parents=True)
    conf = tmp_path / "slurm.conf"
    conf.write_text("# comment\nClusterName=train\n")
    (tmp_path / "slurmdbd.conf").write_text(CONF)
    monkeypatch.setattr(slurm_backups, "cluster_name", lambda: cluster_name(conf))
    monkeypatch.setattr(slurm_backups, "installed_slurm", lambda: {"slurmctld": made.version})
    monkeypatch.setattr(slurm_backups, "oldest", min)
    monkeypatch.setattr(slurm_backups, "dump", made.dump)
    monkeypatch.setattr(slurm_backups, "DATA", tmp_path / "mysql")
    monkeypatch.setattr(slurm_restore, "installed_slurm", lambda: {"slurmctld": made.version})
    monkeypatch.setattr(slurm_restore, "refresh_index", lambda: None)
    monkeypatch.setattr(slurm_restore, "load", made.load)
    monkeypatch.setattr(slurm_restore, "stop", made.stop)
    monkeypatch.setattr(slurm_restore, "converge_units", made.start)
    monkeypatch.setattr(slurm_restore, "login", lambda _database: ("slurm", "secret"))
    monkeypatch.setattr(slurm_watch, "watch", lambda *_: None)
    return made
