"""A host goes back to what its ledger says it was, on a scratch directory instead of a host."""

import getpass
import grp
import os
from pathlib import Path
from typing import Any

import pytest

from module_utils import restore_packages
from module_utils.converge_files import converge_directories, converge_files, converge_links, note_paths, note_trees
from module_utils.converge_ledger import Ledger
from module_utils.restore_entries import leaving, of_kind, remaining
from module_utils.restore_packages import purge_packages
from module_utils.restore_paths import residue, restore_paths, restore_trees

GROUP = grp.getgrgid(os.getgid()).gr_name


def entry(*owners: str, **before: Any) -> dict[str, Any]:
    return {"owners": list(owners), "before": before}


def test_a_thing_goes_with_its_last_owner_and_not_before() -> None:
    entries = {
        "package:munge": entry("controller/munge", "worker/munge", installed=False),
        "package:slurmd": entry("worker/slurmd", installed=False),
        "unit:slurmd": entry("worker/slurmd", LoadState="not-found"),
    }
    assert sorted(leaving(entries, "worker")) == ["package:slurmd", "unit:slurmd"]
    rest = remaining(entries, "worker")
    assert {key: kept["owners"] for key, kept in rest.items()} == {"package:munge": ["controller/munge"]}
    assert sorted(leaving(rest, "controller")) == ["package:munge"]
    assert of_kind(entries, "package") == {"munge": {"installed": False}, "slurmd": {"installed": False}}


def test_a_component_whose_name_starts_like_another_keeps_its_things() -> None:
    assert leaving({"path:/a": entry("worker-large/munge")}, "worker") == {}


class Host:
    """A directory that is converged and restored by the real code."""

    def __init__(self, root: Path) -> None:
        self.root = root / "host"
        self.state = root / "state"
        self.root.mkdir()

    def path(self, name: str) -> str:
        return str(self.root / name)

    def converge(self, files: dict[str, str], links: dict[str, str], trees: list[str]) -> None:
        mine = {"owner": getpass.getuser(), "group": GROUP}
        wanted: dict[str, Any] = {
            "files": [{"path": self.path(n), "content": text, "mode": "0600", **mine} for n, text in files.items()],
            "links": [{"path": self.path(name), "target": target} for name, target in links.items()],
            "directories": [],
        }
        ledger = Ledger("worker/slurmd", self.state)
        note_paths(ledger, wanted)
        note_trees(ledger, [self.path(name) for name in trees])
        ledger.save()
        converge_directories(wanted["directories"], dry=False)
        converge_files(wanted["files"], dry=False)
        converge_links(wanted["links"], dry=False)

    def noted(self) -> tuple[dict[str, Any], dict[str, Any]]:
        entries = Ledger("", self.state).entries
        return of_kind(entries, "path"), of_kind(entries, "tree")

    def restore(self) -> list[str]:
        paths, trees = self.noted()
        restore_trees(trees)
        restore_paths(paths, self.state / "before")
        return residue(paths, trees)

    def picture(self) -> dict[str, Any]:
        return {
            str(path.relative_to(self.root)): (path.lstat().st_mode, path.is_file() and path.read_text())
            for path in sorted(self.root.rglob("*"))
        }


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_what_we_made_goes_and_what_we_replaced_comes_back(host: Host) -> None:
    (host.root / "etc").mkdir()
    (host.root / "etc" / "conf").write_text("theirs")
    (host.root / "etc" / "conf").chmod(0o640)
    (host.root / "lib.so").symlink_to("old")
    before = host.picture()
    host.converge({"etc/conf": "ours", "etc/unit.d/drop/in": "x"}, {"lib.so": "new", "etc/lib.so": "new"}, [])
    assert host.picture() != before
    assert host.restore() == []
    assert host.picture() == before


def test_a_directory_that_filled_up_is_emptied_down_to_what_was_there(host: Host) -> None:
    (host.root / "state" / "kept").mkdir(parents=True)
    (host.root / "state" / "kept" / "theirs").write_text("x")
    before = host.picture()
    host.converge({}, {}, ["state", "log", "absent"])
    (host.root / "state" / "kept" / "ours").write_text("y")
    (host.root / "state" / "spool").mkdir()
    (host.root / "state" / "spool" / "job").write_text("z")
    (host.root / "log").mkdir()
    (host.root / "log" / "daemon.log").write_text("z")
    assert host.restore() == []
    assert host.picture() == before


def test_a_strangers_file_in_a_directory_of_ours_is_left_and_named(host: Host) -> None:
    host.converge({"etc/ours/conf": "x"}, {}, [])
    (host.root / "etc" / "ours" / "notes").write_text("theirs")
    left = host.restore()
    assert left == [f"path {host.root}/etc", f"path {host.root}/etc/ours"]
    assert (host.root / "etc" / "ours" / "notes").read_text() == "theirs"


def test_restoring_twice_is_restoring_once(host: Host) -> None:
    before = host.picture()
    host.converge({"a/b": "x"}, {}, ["t"])
    assert (host.restore(), host.restore()) == ([], [])
    assert host.picture() == before


@pytest.fixture
def apt(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """apt and dpkg with packages a (brought, but apt would keep it), b (its dependency), c (brought, but needed by
    others by now)."""
    ran: list[list[str]] = []

    def run(command: list[str], _doing: str) -> str:
        ran.append(command)
        if "--simulate" not in command:
            return ""
        if "autoremove" in command:
            return "Purg b [1]\nPurg orphan [1]\n"
        goes = [name for name in command if name in known]
        return "".join(f"Purg {name} [1]\n" for name in [*goes, *(["theirs"] if "c" in goes else [])])

    monkeypatch.setattr(restore_packages, "run_apt", run)
    monkeypatch.setattr(restore_packages, "restore_policy", lambda: None)
    monkeypatch.setattr(restore_packages, "finish_interrupted_install", lambda: None)
    known = {"a": "installed", "b": "installed", "c": "installed", "d": "config-files"}
    monkeypatch.setattr(
        restore_packages, "statuses", lambda names: {name: known[name] for name in names if name in known}
    )
    return ran


def test_packages_we_brought_go_unless_something_needs_them(apt: list[list[str]]) -> None:
    assert purge_packages(["a", "b", "c", "d", "never-came"]) == ["package a", "package b", "package d"]
    assert apt[-1][-4:] == ["purge", "a", "b", "d"]


def test_what_nobody_else_needs_goes_with_one_question(apt: list[list[str]]) -> None:
    assert purge_packages(["a", "b", "d"]) == ["package a", "package b", "package d"]
    assert len(apt) == 2 and "--simulate" in apt[0]


def test_nothing_of_ours_means_that_apt_is_not_even_asked(apt: list[list[str]]) -> None:
    assert purge_packages(["never-came"]) == []
    assert apt == []
