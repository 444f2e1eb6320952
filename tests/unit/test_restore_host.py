"""A host goes back to the state in its ledger, on a scratch directory instead of a host."""

import getpass
import grp
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.app import STATE_DIRECTORY
from ansible.module_utils.host.files import converge_directories, converge_files, converge_links, note_paths, note_trees
from ansible.module_utils.host.ledger import Ledger, read
from ansible.module_utils.host.restore.entries import entries_to_keep, entries_to_remove, of_kind
from ansible.module_utils.host.restore.homes import homes_of
from ansible.module_utils.host.restore.paths import paths_left, restore_paths
from ansible.module_utils.host.restore.trees import mount_points, paths_to_delete, restore_trees

GROUP = grp.getgrgid(os.getgid()).gr_name


def entry(*owners: str, **before: Any) -> dict[str, Any]:
    return {"owners": list(owners), "before": before}


def test_a_thing_goes_with_its_last_owner_and_not_before() -> None:
    entries = {
        "package:munge": entry("controller/munge", "worker/munge", installed=False),
        "package:slurmd": entry("worker/slurmd", installed=False),
        "unit:slurmd": entry("worker/slurmd", LoadState="not-found"),
    }
    assert sorted(entries_to_remove(entries, "worker")) == ["package:slurmd", "unit:slurmd"]
    rest = entries_to_keep(entries, "worker")
    assert {key: kept["owners"] for key, kept in rest.items()} == {"package:munge": ["controller/munge"]}
    assert sorted(entries_to_remove(rest, "controller")) == ["package:munge"]
    assert of_kind(entries, "package") == {"munge": {"installed": False}, "slurmd": {"installed": False}}


def test_a_component_whose_name_starts_like_another_keeps_its_things() -> None:
    assert entries_to_remove({"path:/a": entry("worker-large/munge")}, "worker") == {}


class Host:
    """A directory that is converged and restored by the real code."""

    def __init__(self, root: Path) -> None:
        self.root = root / "host"
        self.state = root / "state"
        self.root.mkdir()

    def path(self, name: str) -> str:
        return str(self.root / name)

    def converge(
        self, files: dict[str, str], links: dict[str, str], trees: list[str], installed: tuple[str, ...] = ()
    ) -> None:
        mine = {"owner": getpass.getuser(), "group": GROUP}
        wanted: dict[str, Any] = {
            "files": [{"path": self.path(n), "content": text, "mode": "0600", **mine} for n, text in files.items()],
            "links": [{"path": self.path(name), "target": target} for name, target in links.items()],
            "directories": [],
        }
        ledger = Ledger("worker/slurmd", self.state)
        note_paths(ledger, wanted)
        note_trees(ledger, [{"path": self.path(name), "package": "daemon"} for name in trees], installed)
        ledger.save()
        converge_directories(wanted["directories"], dry=False)
        converge_files(wanted["files"], dry=False)
        converge_links(wanted["links"], dry=False)

    def noted(self) -> tuple[dict[str, Any], dict[str, Any]]:
        entries = Ledger("", self.state).entries
        return of_kind(entries, "path"), of_kind(entries, "tree")

    def restore(self, *present: str) -> list[str]:
        """`present` are packages that are still there when trees are restored."""
        paths, trees = self.noted()
        restore_trees(paths_to_delete(trees, {}, None, present))
        restore_paths(paths, self.state / "before")
        return paths_left(paths) + [str(path) for path in paths_to_delete(trees, {}, None, present)]

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


def test_a_foreign_file_in_a_directory_of_ours_is_left_and_named(host: Host) -> None:
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


# -- trees and their packages ---------------------------------------------------------------------------------


def fill(host: Host) -> dict[str, Any]:
    """A directory that was there, with what came in later: whether it is ours is not known."""
    (host.root / "data").mkdir()
    (host.root / "data" / "theirs.ibd").write_text("x")
    host.converge({}, {}, ["data", "log"], installed=())
    (host.root / "data" / "later").mkdir()
    (host.root / "data" / "later" / "table.ibd").write_text("y")
    (host.root / "log").mkdir()
    (host.root / "log" / "a.log").write_text("z")
    return host.picture()


def test_a_tree_is_not_touched_while_its_package_stays(host: Host) -> None:
    full = fill(host)
    assert host.restore("daemon") == []
    assert host.picture() == full


def test_a_tree_of_a_package_that_was_there_before_is_not_touched(host: Host) -> None:
    (host.root / "data").mkdir()
    host.converge({}, {}, ["data"], installed=("daemon",))
    (host.root / "data" / "later").write_text("theirs")
    assert host.restore() == []
    assert (host.root / "data" / "later").read_text() == "theirs"


def tree(**more: Any) -> dict[str, Any]:
    return {"kind": "directory", "mode": "0755", "uid": 0, "gid": 0, "entries": [], **more}


@pytest.mark.parametrize(
    ("packages", "baseline", "present", "goes"),
    [
        ({"mariadb-server": {"installed": False}}, None, (), True),
        ({"mariadb-server": {"installed": False}}, None, ("mariadb-server",), False),
        ({"mariadb-server": {"installed": True}}, None, (), False),
        ({}, {"package": ["bash"]}, (), True),
        ({}, {"package": ["bash", "mariadb-server"]}, (), False),
        ({}, None, (), False),
    ],
)
def test_a_tree_of_an_older_ledger_goes_only_with_a_package_we_brought(
    packages: dict[str, Any], baseline: Any, present: tuple[str, ...], goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ansible.module_utils.host.restore.trees.new_entries", lambda path, _: [path / "later"])
    found = paths_to_delete({"/var/lib/mysql": tree()}, packages, baseline, present)
    assert found == ([Path("/var/lib/mysql/later")] if goes else [])


def test_a_tree_of_unknown_origin_is_kept(host: Host) -> None:
    path = host.root / "unknown"
    path.mkdir()
    assert paths_to_delete({str(path): {"kind": "absent"}}, {}, {"package": []}, ()) == []


LEDGERS = Path(__file__).parent / "fixtures" / "notes" / "a605804"


@pytest.mark.parametrize(
    "path", sorted(LEDGERS.glob("*/ledger_*.json")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_ledgers_of_an_earlier_release_give_up_nothing_that_may_be_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages were there before: of all trees only what our own daemons made may go, and no home."""
    ledger = read(path)
    assert ledger
    entries, baseline = ledger.entries, ledger.baseline
    trees = of_kind(entries, "tree")
    filled = {name: [Path(name) / "foreign", Path(name) / "node_state"] for name in trees}
    monkeypatch.setattr("ansible.module_utils.host.restore.trees.new_entries", lambda tree, _: filled[str(tree)])
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    monkeypatch.setattr(Path, "iterdir", lambda tree: iter(filled[str(tree)]))
    gone = {str(one) for one in paths_to_delete(trees, of_kind(entries, "package"), baseline, ())}
    of_ours = {f"{STATE_DIRECTORY}/slurm/foreign", f"{STATE_DIRECTORY}/slurm/node_state"}
    assert gone <= of_ours | {"/var/lib/slurm/slurmctld/node_state"}
    assert all(made for home, made in homes_of({}, trees).items() if home.startswith("/home/"))
    users = {f"/home/{name}" for name, before in of_kind(entries, "user").items() if not before["present"]}
    assert set(homes_of({}, trees)) == users


def test_where_slurm_stays_only_what_our_daemon_made_goes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    state = host.root / "slurmctld"
    state.mkdir()
    (state / "node_state").write_text("of an earlier time")
    noted = {str(state): tree(entries=["node_state"], package="slurmctld", package_installed=True)}
    monkeypatch.setattr(
        "ansible.module_utils.host.restore.trees.DAEMON_FILES",
        {str(state): ("node_state*", "job_state*", "hash.[0-9]")},
    )
    for name in ("job_state", "job_state.old", "node_state.old"):
        (state / name).write_text("ours")
    (state / "hash.1").mkdir()
    (state / "notes.txt").write_text("theirs")
    restore_trees(paths_to_delete(noted, {}, None, ["slurmctld"]))
    assert sorted(one.name for one in state.iterdir()) == ["node_state", "notes.txt"]
    assert paths_to_delete(noted, {}, None, ["slurmctld"]) == []


def test_nothing_is_deleted_where_something_is_mounted(host: Host) -> None:
    full = fill(host)
    _, trees = host.noted()
    going = paths_to_delete(trees, {}, None, ())
    assert restore_trees(going, mounts=[host.root / "data" / "later" / "disk", host.root / "log"]) == []
    assert host.picture() == full


def test_mount_points_are_read_with_their_odd_characters(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(
        b"36 35 98:0 / /mnt/a\\040b rw - ext3 /dev/x rw\n37 35 98:0 / /mnt/\xc3\xa9 rw - ext3 /dev/y rw\n"
    )
    assert list(mount_points(table)) == [Path("/mnt/a b"), Path("/mnt/\u00e9")]
