"""Files, links, the ledger, apt output and readiness of units, on a scratch directory instead of a host."""

import base64
import getpass
import grp
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host import packages as converge_packages
from ansible.module_utils.host import units as converge_units
from ansible.module_utils.host.errors import AdapterError, from_os_error
from ansible.module_utils.host.files import converge_directories, converge_files, converge_links, note_paths
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.host.packages import explain, restore_policy, services_held
from ansible.module_utils.host.units import listening, needs_restart

GROUP = grp.getgrgid(os.getgid()).gr_name


def wanted_file(path: Path, **more: Any) -> dict[str, Any]:
    return {"path": str(path), "owner": getpass.getuser(), "group": GROUP, "mode": "0640", **more}


def test_a_file_is_written_once_and_then_left_alone(tmp_path: Path) -> None:
    wanted = wanted_file(tmp_path / "conf" / "a", content="x\n")
    assert converge_files([wanted], dry=False) == [f"file {tmp_path}/conf/a"]
    written = (tmp_path / "conf" / "a").stat()
    assert stat.S_IMODE(written.st_mode) == 0o640
    assert converge_files([wanted], dry=False) == []
    assert (tmp_path / "conf" / "a").stat().st_mtime_ns == written.st_mtime_ns
    assert list((tmp_path / "conf").iterdir()) == [tmp_path / "conf" / "a"]


def test_a_dry_run_reports_what_it_would_do_and_does_nothing(tmp_path: Path) -> None:
    assert converge_files([wanted_file(tmp_path / "a", content="x")], dry=True) == [f"file {tmp_path}/a"]
    directory = {**wanted_file(tmp_path / "d"), "mode": "0700"}
    assert converge_directories([directory], dry=True) == [f"directory {tmp_path}/d"]
    assert list(tmp_path.iterdir()) == []


def test_a_mode_is_corrected_without_renewing_the_time_daemons_go_by(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("k")
    path.chmod(0o644)
    os.utime(path, (1, 1))
    assert converge_files([wanted_file(path, secret=base64.b64encode(b"k").decode())], dry=False) == [f"file {path}"]
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_mtime) == (0o640, 1)


def test_a_malformed_secret_is_refused_without_being_shown(tmp_path: Path) -> None:
    with pytest.raises(AdapterError) as refusal:
        converge_files([wanted_file(tmp_path / "key", secret="canary!not base64")], dry=False)
    assert refusal.value.code == "secret_malformed"
    assert "canary" not in str(refusal.value.as_dict())


def test_a_directory_where_a_file_belongs_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(AdapterError) as refusal:
        converge_files([wanted_file(tmp_path / "a", content="x")], dry=False)
    assert (refusal.value.code, (tmp_path / "a").is_dir()) == ("path_in_the_way", True)


def test_a_link_points_where_it_should_and_a_second_look_changes_nothing(tmp_path: Path) -> None:
    wanted = [{"path": str(tmp_path / "lib.so"), "target": "lib.so.2"}]
    (tmp_path / "lib.so").symlink_to("elsewhere")
    assert converge_links(wanted, dry=False) == [f"link {tmp_path}/lib.so"]
    assert str((tmp_path / "lib.so").readlink()) == "lib.so.2"
    assert converge_links(wanted, dry=False) == []


def test_the_ledger_keeps_what_was_there_first_and_who_asked_since(tmp_path: Path) -> None:
    path, state = tmp_path / "a", tmp_path / "state"
    path.write_text("before us")
    params: dict[str, Any] = {"files": [{"path": str(path)}], "directories": [], "links": []}
    for owner in ("controller/munge", "worker/munge", "controller/munge"):
        ledger = Ledger(owner, state)
        note_paths(ledger, params)
        ledger.save()
        path.write_text(f"by {owner}")
    entry = json.loads((state / "ledger.json").read_text())["entries"][f"path:{path}"]
    assert entry["owners"] == ["controller/munge", "worker/munge"]
    assert entry["before"]["kind"] == "file"
    assert (state / "before" / entry["before"]["sha256"]).read_text() == "before us"
    assert stat.S_IMODE((state / "before" / entry["before"]["sha256"]).stat().st_mode) == 0o600
    assert [kept.name for kept in (state / "before").iterdir()] == [entry["before"]["sha256"]]


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(converge_packages, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(converge_packages, "POLICY_ASIDE", tmp_path / "policy-rc.d.aside")
    return tmp_path / "policy-rc.d"


def test_services_are_held_only_while_packages_are_installed(policy: Path) -> None:
    with services_held():
        assert os.access(policy, os.X_OK)
        assert "exit 101" in policy.read_text()
    assert not policy.exists()


def test_a_policy_that_was_there_before_comes_back_even_after_a_failure(policy: Path) -> None:
    policy.write_text("theirs")
    with pytest.raises(RuntimeError), services_held():
        raise RuntimeError
    assert policy.read_text() == "theirs"
    assert list(policy.parent.iterdir()) == [policy]


def test_what_a_killed_run_left_is_recognised_and_undone(policy: Path) -> None:
    policy.write_text("theirs")
    services_held().__enter__()
    restore_policy()
    assert policy.read_text() == "theirs"
    restore_policy()
    assert policy.read_text() == "theirs"


def test_a_conflict_with_a_package_of_the_host_is_refused() -> None:
    assert "--no-remove" in converge_packages.INSTALL
    error = explain("E: Packages need to be removed but remove is disabled.", "installing mariadb-server")
    assert (error.code, error.error_class) == ("package_conflict", "intervention")


@pytest.mark.parametrize(
    ("output", "code", "error_class"),
    [
        ("E: Failed to fetch http://x  Could not connect", "package_install_failed", "retryable"),
        ("E: Unable to locate package slurmd", "package_not_found", "intervention"),
        ("E: Could not get lock /var/lib/dpkg/lock-frontend", "package_lock_busy", "retryable"),
        ("dpkg: error: write: No space left on device", "disk_full", "intervention"),
        ("", "package_install_failed", "retryable"),
    ],
)
def test_the_output_of_apt_decides_whether_trying_again_helps(output: str, code: str, error_class: str) -> None:
    error = explain(f"Reading package lists...\n{output}", "installing slurmd")
    assert (error.code, error.error_class) == (code, error_class)
    if code in ("package_install_failed", "package_not_found") and output:
        assert output in error.message


def test_a_full_disk_is_for_a_person_and_another_trouble_is_tried_again() -> None:
    assert from_os_error(OSError(28, "No space left on device"), "writing").code == "disk_full"
    assert from_os_error(OSError(5, "Input/output error"), "writing").error_class == "retryable"


def test_a_unit_restarts_only_for_what_changed_after_it_started(tmp_path: Path) -> None:
    watched = tmp_path / "conf"
    watched.write_text("x")
    running = {"ExecMainStartTimestampMonotonic": str(int((time.monotonic() - 60) * 1e6))}
    assert needs_restart(running, [str(watched)])
    hour_ago = time.time() - 3600
    os.utime(watched, (hour_ago, hour_ago))
    assert not needs_restart(running, [str(watched), str(tmp_path / "absent"), "package:no-such-package"])


def test_a_port_counts_as_open_only_when_something_listens_on_it(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        "  sl  local_address rem_address   st\n"
        "   0: 00000000:1AA2 00000000:0000 0A 0\n"
        "   1: 0100007F:1AA1 0100007F:9C40 01 0\n"
    )
    assert listening(6818, (str(table),))
    assert not listening(6817, (str(table), str(tmp_path / "absent")))


@pytest.mark.parametrize(("restart", "did"), [(False, []), (True, ["unit slurmd restarted"])])
def test_a_unit_that_runs_is_restarted_only_if_it_has_to_be_or_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, restart: bool, did: list[str]
) -> None:
    monkeypatch.setattr(converge_units, "systemctl", lambda *_arguments, **_more: None)
    monkeypatch.setattr(converge_units, "_wait_until_up", lambda *_arguments: None)
    unit = {"name": "slurmd", "enabled": True, "watches": [], "restart": restart}
    running = {"ActiveState": "active", "UnitFileState": "enabled"}
    assert converge_units._converge(unit, running, dry=False) == did
