"""Data and servers of others on a host: what was there before us is refused or kept, never adopted."""

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host import foreign_packages
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.ledger import Ledger
from ansible.module_utils.host.restore import server as restore_server
from ansible.module_utils.host.restore.server import belongs_to_server, plan_server
from ansible.module_utils.slurm.foreign_data import refuse_foreign_files


def place(root: Path, name: str) -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("of another program")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/etc/munge/munge.key", "munge_key_exists"),
        ("/etc/slurm/slurm.conf", "slurm_conf_exists"),
        ("/etc/slurm/slurmdbd.conf", "slurm_conf_exists"),
        ("/etc/slurm-llnl/slurm.conf", "slurm_conf_exists"),
        ("/var/lib/slurm/slurmctld/clustername", "slurm_state_exists"),
    ],
)
def test_a_file_of_others_is_refused_by_name_and_one_of_ours_is_not(tmp_path: Path, path: str, code: str) -> None:
    refuse_foreign_files({}, tmp_path)
    place(tmp_path, path)
    with pytest.raises(AdapterError) as refusal:
        refuse_foreign_files({"user:ada": {}}, tmp_path)
    assert refusal.value.code == code
    assert path in refusal.value.message and "retry" in refusal.value.message
    refuse_foreign_files({f"path:{path}": {}}, tmp_path)


def test_a_configuration_put_on_our_worker_later_does_not_refuse_it(tmp_path: Path) -> None:
    place(tmp_path, "/etc/slurm/slurm.conf")
    refuse_foreign_files({"unit:slurmd": {}}, tmp_path)


# -- what becomes of the server -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ran", "installed", "others", "needed", "stays", "keeps_running"),
    [
        (True, True, [], False, True, True),  # a server of another user
        (True, True, ["shop"], False, True, True),
        (False, True, [], False, True, False),  # installed and idle before us: stopped again
        (False, True, ["shop"], False, True, True),  # came into use while we ran it
        (False, False, [], False, False, False),  # ours alone
        (False, False, ["shop"], False, True, True),
        (False, False, [], True, True, True),
    ],
)
def test_the_server_goes_only_if_we_installed_it_and_no_one_else_uses_it(
    monkeypatch: pytest.MonkeyPatch,
    ran: bool,
    installed: bool,
    others: list[str],
    needed: bool,
    stays: bool,
    keeps_running: bool,
) -> None:
    monkeypatch.setattr(restore_server, "foreign_databases", lambda _: others)
    monkeypatch.setattr(restore_server, "still_needed", lambda names: list(names) if needed else [])
    units = {"mariadb": {"ActiveState": "active" if ran else "inactive"}}
    database = {"slurm_acct_db": {"present": False, "user": "slurm"}}
    fate = plan_server(units, {"mariadb-server": {"installed": installed}}, database)
    assert (fate.stays, fate.keeps_running, fate.may_start) == (stays, keeps_running, not ran)
    assert bool(fate.reasons) == (not ran and (bool(others) or needed)), (
        "what stays though it was not there is reported"
    )


def test_a_host_without_a_server_has_none_to_keep() -> None:
    assert not plan_server({"slurmd": {}}, {}, {}).stays


def test_what_belongs_to_the_server_is_known_by_name() -> None:
    preinstalled_packages = (
        "mariadb-server",
        "package mysql-common",
        "unit mariadb.service",
        "path /var/lib/mysql",
        "port 3306",
        "mysql",
    )
    ours = ("munge", "package slurmctld", "path /etc/slurm", "port 6817", "path /etc/munge")
    assert all(map(belongs_to_server, preinstalled_packages)) and not any(map(belongs_to_server, ours))


def test_a_package_is_its_owners_if_it_was_there_before_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_packages, "installed_versions", lambda names: dict.fromkeys(names, "1"))
    params: dict[str, Any] = {
        "trees": [{"path": "/x", "package": "munge"}],
        "files": [{}],
        "units": [{"name": "mariadb", "package": "mariadb-server"}],
    }
    ledger = Ledger("controller/slurmdbd", tmp_path / "state")
    ledger.note("package", "munge", {"installed": False})
    ledger.note("package", "mariadb-server", {"installed": True})
    assert foreign_packages.preinstalled_packages(params, ledger) == {"mariadb-server"}


def test_files_that_we_put_into_a_servers_configuration_are_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_packages, "STATE_DIRECTORY", tmp_path / "state")
    ledger = Ledger("controller/slurmdbd", tmp_path / "state")
    ours, theirs = tmp_path / "60-ours.cnf", tmp_path / "50-server.cnf"
    for path in (ours, theirs):
        path.write_text("x")
    ledger.note("path", str(ours), {"kind": "absent"})
    assert foreign_packages.restore_former_files([str(ours), str(theirs)], ledger) == [f"path {ours}"]
    assert (ours.exists(), theirs.exists()) == (False, True)
    assert foreign_packages.restore_former_files([str(ours)], ledger) == []
