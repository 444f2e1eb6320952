"""Packages are moved, taken back within a series, and never taken back across series."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host.errors import INTERVENTION, REPAIRABLE, RETRYABLE, AdapterError
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.slurm import move as slurm_move
from ansible.module_utils.slurm import watch as slurm_watch
from ansible.module_utils.slurm.conversion import StillConverting
from ansible.module_utils.slurm.kept import Kept
from ansible.module_utils.slurm.move import Mover

OLD, MINOR, NEXT = "22.05.8-4", "22.05.9-1", "23.02.1-1"
UNITS: list[dict[str, Any]] = [{"name": "slurmdbd", "converts": True}, {"name": "slurmctld"}]
BACKUP = "/var/lib/gpuaas-slurm/slurm/backups/op-1"


@dataclass
class Host:
    """Packages of one version, and daemons that serve or do not, by version."""

    version: str = OLD
    fails: dict[str, AdapterError] = field(default_factory=dict)  # at slurmdbd's start, by version
    converting: bool = False
    unhealthy: str | None = None
    apt: AdapterError | None = None
    steps: list[str] = field(default_factory=list)

    def install(self, command: list[str], _doing: str) -> str:
        if "--simulate" not in command:
            if self.apt:
                raise self.apt
            self.version = command[-1].partition("=")[2]
            self.steps.append(self.version)
        return ""

    def start_slurmdbd(self, *_: Any) -> list[str]:
        if self.converting and self.version == NEXT:
            raise StillConverting({"seconds": 45})
        if self.version in self.fails:
            raise self.fails[self.version]
        self.steps.append("slurmdbd")
        return []

    def converge(self, units: list[dict[str, Any]], _dry: bool) -> list[str]:
        self.steps.append(units[0]["name"])
        return []

    def watch(self, _before: object, _seconds: float) -> str | None:
        return self.unhealthy if self.version != OLD else None


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr(slurm_move, "installed_slurm", lambda: {"slurmctld": made.version, "slurmdbd": made.version})
    monkeypatch.setattr(slurm_move, "oldest", lambda versions: min(versions))
    monkeypatch.setattr(slurm_move, "run_apt", made.install)
    monkeypatch.setattr(slurm_move, "services_held", lambda: pytest.MonkeyPatch.context())
    monkeypatch.setattr(slurm_move, "start_slurmdbd", made.start_slurmdbd)
    monkeypatch.setattr(slurm_move, "converge_units", made.converge)
    monkeypatch.setattr(slurm_watch, "watch", made.watch)
    monkeypatch.setattr(slurm_watch, "look_at_cluster", lambda: slurm_watch.Cluster(["w1"], ["w1"]))
    monkeypatch.setattr(Mover, "finish_interrupted", lambda _self: None)
    return made


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept("controller/packages", tmp_path / "slurm")


def move(kept: Kept, version: str, backup: str = BACKUP) -> list[str]:
    mover = Mover(kept, Ledger("controller/packages", kept.directory.parent))
    return mover.move(version, UNITS, controller=True, backup=backup)


BROKEN = AdapterError("slurmdbd_not_ready", "slurmdbd.service did not get ready: it keeps ending.", REPAIRABLE)


def test_a_move_within_a_series_that_fails_is_taken_back(host: Host, kept: Kept) -> None:
    host.fails = {MINOR: BROKEN}
    with pytest.raises(AdapterError) as caught:
        move(kept, MINOR)
    assert caught.value.code == "upgrade_taken_back"
    assert host.version == OLD
    assert kept.read("move") is None


def test_a_move_across_series_that_fails_stops_where_it_is(host: Host, kept: Kept) -> None:
    host.fails = {NEXT: BROKEN}
    with pytest.raises(AdapterError) as caught:
        move(kept, NEXT)
    assert (caught.value.code, caught.value.error_class) == ("upgrade_unfinished", INTERVENTION)
    assert "it keeps ending" in caught.value.message
    assert BACKUP in caught.value.message
    assert "playbooks/restore_backup.yml" in caught.value.message and "-e backup=op-1" in caught.value.message
    assert host.version == NEXT and OLD not in host.steps
    assert "slurmctld" not in host.steps, "slurmctld is started only once slurmdbd listens"


def test_an_unhealthy_slurmctld_across_series_is_not_taken_back_either(host: Host, kept: Kept) -> None:
    host.unhealthy = "slurmctld is failed and does not answer"
    with pytest.raises(AdapterError) as caught:
        move(kept, NEXT)
    assert caught.value.code == "upgrade_unfinished"
    assert host.version == NEXT


def test_a_package_run_that_may_pass_is_tried_again_across_series(host: Host, kept: Kept) -> None:
    host.apt = AdapterError("package_lock_busy", "Another package run held the lock.", RETRYABLE)
    with pytest.raises(AdapterError) as caught:
        move(kept, NEXT)
    assert (caught.value.code, caught.value.error_class) == ("upgrade_unfinished", RETRYABLE)
    host.apt = None
    move(kept, NEXT)
    assert host.version == NEXT


def test_the_next_run_after_a_failure_across_series_goes_on_forwards(host: Host, kept: Kept) -> None:
    host.fails = {NEXT: BROKEN}
    with pytest.raises(AdapterError):
        move(kept, NEXT)
    host.fails, host.steps = {}, []
    move(kept, NEXT, backup="/another/op-2")
    assert host.steps == ["slurmdbd", "slurmctld"]
    assert kept.read("move") is None


def test_a_later_version_of_the_new_series_still_crosses_series(host: Host, kept: Kept) -> None:
    """What counts is the version from before the unfinished move, and so does its backup."""
    host.fails = {NEXT: BROKEN, "23.02.2-1": BROKEN}
    with pytest.raises(AdapterError):
        move(kept, NEXT)
    with pytest.raises(AdapterError) as caught:
        move(kept, "23.02.2-1", backup="/another/op-2")
    assert caught.value.code == "upgrade_unfinished"
    assert BACKUP in caught.value.message
    note = kept.read("move")
    assert note and (note["from"], note["to"]) == (OLD, "23.02.2-1")


def test_a_conversion_that_goes_on_is_neither_an_error_nor_an_end(host: Host, kept: Kept) -> None:
    host.converting = True
    with pytest.raises(StillConverting):
        move(kept, NEXT)
    assert host.steps == [NEXT]
    assert kept.read("move") is not None
    host.converting = False
    move(kept, NEXT)
    assert host.steps == [NEXT, "slurmdbd", "slurmctld"]
    assert kept.read("move") is None


def test_the_message_names_the_way_back_however_long_the_cause_is(host: Host, kept: Kept) -> None:
    """The runner keeps 1000 characters of a message."""
    host.fails = {NEXT: AdapterError("slurmdbd_not_ready", "x" * 3000, REPAIRABLE)}
    with pytest.raises(AdapterError) as caught:
        move(kept, NEXT)
    assert len(caught.value.message) <= 1000
    assert caught.value.message.endswith("-e backup=op-1")
