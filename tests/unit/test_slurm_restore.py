"""A backup names its cluster, is read before anything is stopped; what was there is kept aside at a restore."""

import gzip
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host.errors import REPAIRABLE, AdapterError
from ansible.module_utils.slurm import backups as slurm_backups
from ansible.module_utils.slurm import restore as slurm_restore
from ansible.module_utils.slurm.restore import Restore

from tests.unit.restorable_host import CONF, DATABASE, NEXT, OLD, Host, Killed, restorable_host


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return restorable_host(tmp_path, monkeypatch)


def test_a_manifest_names_what_the_backup_is_of(host: Host) -> None:
    backup = slurm_backups.take_backup(host.room / "op-1", DATABASE, host.state, 60, change="op-1", target=NEXT)
    assert backup.manifest["cluster"] == "train"
    assert (backup.manifest["version"], backup.manifest["target"], backup.manifest["change"]) == (OLD, NEXT, "op-1")
    (row,) = slurm_backups.list_backups(host.room)
    assert (row["name"], row["complete"], row["cluster"], row["version"]) == ("op-1", True, "train", OLD)
    assert backup.path.stat().st_mode & 0o777 == 0o700
    assert {one.stat().st_mode & 0o777 for one in backup.path.iterdir()} == {0o600}


def test_the_backup_of_a_change_is_found_once_it_is_complete(host: Host) -> None:
    assert slurm_backups.of_change(host.room, "op-1") is None
    assert slurm_backups.of_change(host.room, "") is None
    backup = host.back_up()
    found = slurm_backups.of_change(host.room, "op-1")
    assert found and found.manifest["version"] == OLD
    (backup.path / "complete").unlink()
    assert slurm_backups.of_change(host.room, "op-1") is None


def test_a_restore_puts_database_and_state_back_and_keeps_what_was_there(host: Host) -> None:
    host.back_up()
    host.go_on("jobs 1-20")
    done = host.restore()
    assert host.holds() == ("jobs 1-10", "jobs 1-10", False)
    order = ["stop slurmctld", "stop slurmdbd", "dump", "load", "start slurmdbd slurmctld"]
    assert host.steps == order
    undone = host.restore(done["aside"])
    assert host.holds() == ("jobs 1-20", "jobs 1-20", True)
    assert undone["aside"] != done["aside"], "a copy aside is never made over another"


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda one: (one / "complete").unlink(), "backup_incomplete"),
        (lambda one: (one / "manifest.json").unlink(), "backup_without_manifest"),
        (lambda one: (one / "manifest.json").write_text("{"), "backup_unreadable"),
        (lambda one: (one / "manifest.json").write_text('{"format": 9}'), "backup_unreadable"),
        (lambda one: (one / "state.tar.gz").write_bytes(b"x"), "backup_unreadable"),
        (lambda one: (one / f"{DATABASE}.sql.gz").unlink(), "backup_unreadable"),
        (lambda one: other_dump(one / f"{DATABASE}.sql.gz"), "backup_unreadable"),
        (lambda one: shutil.rmtree(one), "backup_not_found"),
        (lambda one: change_manifest(one, cluster="other"), "backup_of_another_cluster"),
        (lambda one: change_manifest(one, database="other"), "backup_of_another_database"),
    ],
)
def test_a_backup_that_does_not_fit_is_refused_before_anything_is_stopped(host: Host, spoil: Any, code: str) -> None:
    spoil(host.back_up().path)
    host.go_on("jobs 1-20")
    with pytest.raises(AdapterError) as caught:
        host.restore()
    assert caught.value.code == code
    assert caught.value.message.startswith("Nothing was changed")
    assert (host.steps, host.holds()[0]) == ([], "jobs 1-20")


def other_dump(path: Path) -> None:
    """One that can be read and has its end, but is not the one that was taken."""
    with gzip.open(path, "wt") as sink:
        sink.write("jobs 1-3\n-- Dump completed on 2026-01-01\n")


def change_manifest(backup: Path, **changes: Any) -> None:
    manifest = json.loads((backup / "manifest.json").read_text())
    (backup / "manifest.json").write_text(json.dumps(manifest | changes))


def test_a_dump_that_was_cut_off_is_refused_also_without_a_manifest(host: Host) -> None:
    backup = host.back_up().path
    (backup / "manifest.json").unlink()
    with gzip.open(backup / f"{DATABASE}.sql.gz", "wt") as sink:
        sink.write("half a dump")
    with pytest.raises(AdapterError, match="the dump has no end"):
        host.restore(accept_unlabelled=True)


def test_an_old_backup_without_a_manifest_is_restored_if_a_person_confirms_it(host: Host) -> None:
    (host.back_up().path / "manifest.json").unlink()
    host.go_on("jobs 1-20")
    host.restore(accept_unlabelled=True)
    assert host.holds()[0] == "jobs 1-10"


@pytest.mark.parametrize("name", ["../op-1", "/etc", "op-1/..", "", "-x"])
def test_only_a_backup_of_this_controller_can_be_named(host: Host, name: str) -> None:
    host.back_up()
    with pytest.raises(AdapterError, match="is not a backup on this controller"):
        host.restore(name)


def test_a_backup_is_also_found_by_the_path_that_an_operation_names(host: Host) -> None:
    host.restore(str(host.back_up().path))
    assert "load" in host.steps


def test_a_backup_of_another_series_brings_its_packages_back(host: Host) -> None:
    host.back_up()
    host.version = NEXT
    host.kept.write("move", {"from": OLD, "to": NEXT})
    done = host.restore()
    assert (host.version, done["target"]) == (OLD, OLD)
    assert host.steps.index(f"install {OLD}") < host.steps.index("load")
    assert host.kept.read("move") is None, "the upgrade is taken back, and no later run goes on with it"


def test_packages_that_cannot_be_had_refuse_before_anything_is_stopped(host: Host) -> None:
    host.back_up()
    host.version, host.offered = NEXT, False
    with pytest.raises(AdapterError) as caught:
        host.restore()
    assert (caught.value.code, host.steps) == ("version_not_offered", [])


def test_within_a_series_packages_stay(host: Host) -> None:
    host.back_up()
    host.version = "22.05.9-1"
    assert "target" not in host.restore()
    assert host.version == "22.05.9-1"


@pytest.mark.parametrize("place", ["stop slurmdbd", "load", "start slurmdbd slurmctld"])
def test_a_restore_that_was_killed_is_run_again_with_the_first_copy_aside(host: Host, place: str) -> None:
    host.back_up()
    host.go_on("jobs 1-20")
    host.killed_at = place
    with pytest.raises(Killed):
        host.restore()
    done = host.restore()
    assert host.holds() == ("jobs 1-10", "jobs 1-10", False)
    assert host.kept.read("restore") is None
    host.restore(done["aside"])
    assert host.holds() == ("jobs 1-20", "jobs 1-20", True)


@pytest.mark.parametrize("hangs", [True, False])
def test_a_unit_that_does_not_stop_is_named_also_if_systemctl_hangs(monkeypatch: Any, hangs: bool) -> None:
    def systemctl(command: list[str], **_: Any) -> None:
        if hangs:
            raise subprocess.TimeoutExpired(command, slurm_restore.STOP_SECONDS)

    monkeypatch.setattr(subprocess, "run", systemctl)
    monkeypatch.setattr(slurm_restore, "state_of", lambda _unit: {"ActiveState": "deactivating"})
    with pytest.raises(AdapterError) as caught:
        slurm_restore.stop("slurmdbd")
    assert caught.value.code == "unit_not_stopped"
    assert "slurmdbd.service does not stop; daemons stopped before it stay stopped" in caught.value.message


@pytest.mark.parametrize("place", [f"install {OLD}", "load", "start slurmdbd slurmctld"])
def test_a_restore_across_series_that_was_killed_still_names_the_version_for_workers(host: Host, place: str) -> None:
    host.back_up()
    host.version, host.killed_at = NEXT, place
    with pytest.raises(Killed):
        host.restore()
    again = Restore(host.kept, host, "op-1", DATABASE, host.state)  # type: ignore[arg-type]
    assert again.check()["packages"] == OLD
    assert host.restore()["target"] == OLD
    assert "target" not in host.restore(), "the note ends with the restore"


def test_another_backup_of_the_series_after_a_killed_restore_names_the_version_too(host: Host) -> None:
    host.back_up("op-1")
    host.back_up("op-2")
    host.version, host.killed_at = NEXT, "load"
    with pytest.raises(Killed):
        host.restore("op-1")
    assert host.restore("op-2")["target"] == OLD


def test_a_copy_aside_that_fails_leaves_the_cluster_running_as_it_was(host: Host, monkeypatch: Any) -> None:
    host.back_up()
    host.go_on("jobs 1-20")

    def no_room(*_: object) -> None:
        raise AdapterError("disk_full", "A backup needs more.", REPAIRABLE)

    monkeypatch.setattr(slurm_backups, "check_room", no_room)
    with pytest.raises(AdapterError, match="A backup needs more"):
        host.restore()
    assert host.steps[-1] == "start slurmdbd slurmctld"
    assert host.holds()[0] == "jobs 1-20"
    assert host.kept.read("restore") is None


def test_a_restore_that_fails_names_the_copy_aside(host: Host) -> None:
    host.back_up()
    host.loads = False
    with pytest.raises(AdapterError) as caught:
        host.restore()
    assert caught.value.code == "restore_unfinished"
    note = host.kept.read("restore")
    assert note and note["aside"] in caught.value.message


def test_pruning_keeps_the_newest_of_each_kind_and_what_is_in_use(host: Host) -> None:
    for place, name in enumerate(["op-1", "op-2", "op-3", "before-restore-1"]):
        path = host.back_up(name).path
        os.utime(path, (place, place))
    slurm_backups.prune(host.room, 1, {"op-1"})
    assert sorted(one.name for one in host.room.iterdir()) == ["before-restore-1", "op-1", "op-3"]


def test_the_database_is_opened_as_slurmdbds_user_on_this_host_only(tmp_path: Path) -> None:
    conf = tmp_path / "slurmdbd.conf"
    conf.write_text(CONF)
    assert slurm_restore.login(DATABASE, conf) == ("slurm", "secret")
    for wrong in (CONF.replace("StorageHost=localhost", "StorageHost=db.example.org"), CONF.replace(DATABASE, "other")):
        conf.write_text(wrong)
        with pytest.raises(AdapterError) as caught:
            slurm_restore.login(DATABASE, conf)
        assert caught.value.code == "database_not_ours"


def test_a_state_archive_with_foreign_names_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "state.tar.gz"
    (tmp_path / "x").write_text("x")
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "x", arcname="../../etc/passwd")
    with pytest.raises(ValueError, match="does not belong"):
        slurm_backups.unpack(archive, tmp_path / "into")
