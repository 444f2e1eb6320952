"""Decisions of the modules converge_host, host_units and mend_host, on a host in memory or in a directory."""

import functools
import getpass
import grp
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host.errors import AdapterError
from ansible.module_utils.host.ledger import Document, Ledger

from plugins.modules import converge_host, host_units, mend_host

MINE = {"owner": getpass.getuser(), "group": grp.getgrgid(os.getgid()).gr_name}


# -- converge_host ---------------------------------------------------------------------------------------------------


class Converged:
    """Files and the ledger are real, in a directory. Packages and services are not converged."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.state = root / "host", root / "state"
        self.root.mkdir()
        monkeypatch.setattr(converge_host, "Ledger", functools.partial(Ledger, directory=self.state))
        monkeypatch.setattr(converge_host, "preinstalled_packages", lambda *_: {"mariadb-server"})
        monkeypatch.setattr(converge_host, "converge_packages", self.packages)
        monkeypatch.setattr(converge_host, "installed_versions", lambda names: dict.fromkeys(names, "1"))
        monkeypatch.setattr(converge_host, "converge_services", lambda *_: ["unit slurmd started"])
        monkeypatch.setattr(converge_host, "run_proofs", lambda *_: ["proof"])
        monkeypatch.setattr(converge_host, "clear_source", lambda: None)
        monkeypatch.setattr(converge_host, "note_units", lambda ledger, _units: ledger.note("unit", "slurmd", {}))
        monkeypatch.setattr(converge_host, "show", lambda names: {name: {"ActiveState": "active"} for name in names})
        self.at_install: list[str] = []

    def packages(self, _names: list[str], ledger: Ledger, _dry: bool, _source: Any) -> list[str]:
        self.at_install = sorted(ledger.entries)
        return []

    def file(self, name: str, package: str | None = None) -> dict[str, Any]:
        return {**MINE, "path": str(self.root / name), "content": name, "mode": "0644", "package": package}

    def run(self, dry: bool = False, **more: Any) -> tuple[list[str], dict[str, Any]]:
        paths = ("directories", "files", "retired", "links", "trees")
        several = ("packages", "minimums", *paths, "databases", "units", "proofs")
        params: dict[str, Any] = {name: [] for name in several}
        params |= {"owner": "worker/slurmd", "declared_users": None, "ssh_keys": {}, "digests": {}}
        return converge_host.converge(params | {"source": None, "source_login": None} | more, dry)


@pytest.fixture
def converged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Converged:
    return Converged(tmp_path, monkeypatch)


def test_paths_are_noted_before_packages_could_create_them(converged: Converged) -> None:
    changes, seen = converged.run(files=[converged.file("a")], digests={"a": str(converged.root / "a")})
    assert changes == [f"file {converged.root / 'a'}", "unit slurmd started", "proof"]
    assert converged.at_install == [f"path:{converged.root / 'a'}", "unit:slurmd"]
    assert seen["digests"]["a"].startswith("sha256:")
    assert Ledger("x", converged.state).has("path", str(converged.root / "a"))


def test_configuration_of_a_package_that_was_there_before_is_left_to_its_owner(converged: Converged) -> None:
    files = [converged.file("theirs", package="mariadb-server"), converged.file("ours", package="slurmd")]
    changes, _ = converged.run(files=files)
    assert f"file {converged.root / 'theirs'}" not in changes
    assert [path.name for path in converged.root.iterdir()] == ["ours"]


def test_a_dry_run_of_a_role_writes_neither_files_nor_the_ledger(converged: Converged) -> None:
    changes, _ = converged.run(dry=True, files=[converged.file("a")], proofs=[{"argv": ["unmunge"]}])
    assert f"file {converged.root / 'a'}" in changes
    assert list(converged.root.iterdir()) == [] and not converged.state.exists() and "proof" not in changes


# -- host_units ------------------------------------------------------------------------------------------------------


def units_of(monkeypatch: pytest.MonkeyPatch, databases: list[str], **before: str) -> dict[str, str]:
    entries = {f"unit:{name}": {"owners": [], "before": {"ActiveState": state}} for name, state in before.items()}
    monkeypatch.setattr(host_units, "read", lambda _path: Document(entries))
    monkeypatch.setattr(host_units, "foreign_databases", lambda _noted: databases)
    return host_units.others()


def test_units_of_others_are_those_that_ran_before_and_a_shared_database(monkeypatch: pytest.MonkeyPatch) -> None:
    assert units_of(monkeypatch, [], munge="inactive", mariadb="inactive") == {}
    assert list(units_of(monkeypatch, [], munge="active", slurmd="failed")) == ["munge"]
    assert "wiki" in units_of(monkeypatch, ["wiki"], mariadb="inactive")["mariadb"]


@pytest.mark.parametrize("since", [None, 90])
def test_a_unit_is_restarted_by_the_controllers_time_or_by_its_age(
    monkeypatch: pytest.MonkeyPatch, since: int | None
) -> None:
    ages: list[float | None] = []

    def restart_older(_units: Any, seconds: float | None, _dry: bool) -> list[str]:
        ages.append(seconds)
        return ["x"]

    monkeypatch.setattr(host_units, "others", dict)
    monkeypatch.setattr(host_units, "stop_in_order", lambda *_: ([], {}))
    monkeypatch.setattr(host_units, "restart_older", restart_older)
    started = {"ExecMainStartTimestampMonotonic": str(int(time.monotonic() * 1e6)), "ActiveState": "active"}
    monkeypatch.setattr(host_units, "show", lambda names: dict.fromkeys(names, started))
    at = (datetime.now(UTC) - timedelta(seconds=since or 0)).isoformat()
    params = {"stop": [], "restart": [{"name": "slurmd"}], "since": at if since else None, "younger_than": 7.0}
    result = host_units.run(params, dry=False)
    assert ages == [pytest.approx(since or 7.0, abs=30)]
    assert result["elapsed"] == (pytest.approx(since, abs=30) if since else None)
    assert result["started"]["slurmd"] == pytest.approx(time.time(), abs=30)
    assert (result["changes"], result["units"]) == (["x"], {"slurmd": "active"})


def test_a_time_that_cannot_be_read_restarts_nothing() -> None:
    with pytest.raises(AdapterError) as refused:
        host_units.run({"stop": [], "restart": [], "since": "yesterday", "younger_than": None}, dry=False)
    assert refused.value.code == "moment_invalid"


# -- mend_host -------------------------------------------------------------------------------------------------------


class Mended:
    """Units of a worker, each with its ActiveState and whether it starts at boot."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **units: tuple[str, str]) -> None:
        self.units = {name: {"ActiveState": now, "UnitFileState": boot} for name, (now, boot) in units.items()}
        self.done: list[str] = []
        self.starts = True
        entries: dict[str, Any] = {f"unit:{name}": {"owners": ["worker/x"], "before": {}} for name in units}
        entries["unit:slurmctld"] = {"owners": ["controller/slurmctld"], "before": {}}
        monkeypatch.setattr(mend_host, "read", lambda _path: Document(entries))
        monkeypatch.setattr(mend_host, "show", lambda names: {name: self.units[name] for name in names})
        monkeypatch.setattr(mend_host, "state_of", lambda name: self.units[name])
        monkeypatch.setattr(mend_host, "request", self.request)
        monkeypatch.setattr(mend_host, "journal", lambda *_: ["cannot bind"])
        monkeypatch.setattr(mend_host, "install_interrupted", lambda: False)
        monkeypatch.setattr(mend_host, "restore_policy", lambda: self.done.append("policy"))
        monkeypatch.setattr(mend_host, "finish_interrupted_install", lambda: self.done.append("packages"))

    def request(self, verb: str, name: str) -> None:
        self.done.append(f"{verb} {name}")
        if self.starts:
            self.units[name]["ActiveState"] = "active"


def test_a_repair_starts_units_that_should_run_and_munge_first(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Mended(monkeypatch, a=("failed", "enabled"), munge=("inactive", "enabled"), slurmd=("active", "enabled"))
    result = mend_host.mend("worker", 0.0, dry=False)
    assert host.done == ["start munge", "start a"], "a unit that runs, and one of another member, is left alone"
    assert result["changes"] == ["unit munge started", "unit a started"]
    assert set(result["units"].values()) == {"active"}


def test_a_repair_does_not_start_the_slurmd_of_a_removed_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Mended(monkeypatch, slurmd=("inactive", "disabled"))
    result = mend_host.mend("worker", 0.0, dry=False)
    assert (host.done, result["changes"]) == ([], [])
    assert "a removal of the worker was under way" in result["found"][0]


def test_a_unit_that_does_not_start_is_an_error_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Mended(monkeypatch, slurmd=("failed", "enabled"))
    host.starts = False
    with pytest.raises(AdapterError) as refused:
        mend_host.mend("worker", 0.0, dry=False)
    assert refused.value.code == "unit_failed" and "cannot bind" in refused.value.message


@pytest.mark.parametrize("dry", [False, True])
def test_a_repair_finishes_an_interrupted_package_run(monkeypatch: pytest.MonkeyPatch, dry: bool) -> None:
    host = Mended(monkeypatch)
    monkeypatch.setattr(mend_host, "install_interrupted", lambda: True)
    result = mend_host.mend("worker", 0.0, dry=dry)
    assert host.done == ([] if dry else ["policy", "packages"])
    assert result["changes"] == ["interrupted package run finished"]
