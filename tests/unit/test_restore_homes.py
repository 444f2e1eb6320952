"""Homes on a host that goes back to its former state: they stay unless a person asks, and only ours may go."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.host.restore.homes import clear_homes, homes_of


def homes(root: Path, *names: str) -> dict[str, bool]:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "thesis.tex").write_text("three years")
    return {str(root / name): True for name in names}


def test_homes_stay_and_are_listed(tmp_path: Path) -> None:
    found = homes(tmp_path, "ada", "ben")
    changes, left = clear_homes(found, remove=False)
    assert changes == [] and [one.partition(":")[0] for one in left] == sorted(found)
    assert (tmp_path / "ada" / "thesis.tex").exists()


def test_asked_to_homes_that_we_made_go_and_others_are_named_with_the_reason(tmp_path: Path) -> None:
    found = homes(tmp_path, "ada", "ben", "cleo", "dan")
    found[str(tmp_path / "ben")] = False
    (tmp_path / "dan" / "thesis.tex").unlink()
    (tmp_path / "dan").rmdir()
    (tmp_path / "dan").symlink_to(tmp_path / "ben")
    mounts = [tmp_path / "cleo" / "project"]
    changes, left = clear_homes(found, remove=True, root=tmp_path, mounts=mounts)
    assert changes == [f"home {tmp_path}/ada"]
    assert left == [
        f"{tmp_path}/ben: it was there before the user was created",
        f"{tmp_path}/cleo: a file system is mounted there",
        f"{tmp_path}/dan: it is a link",
    ]
    assert [(tmp_path / name / "thesis.tex").exists() for name in ("ada", "ben", "cleo")] == [False, True, True]


def test_a_home_on_another_file_system_is_never_deleted() -> None:
    other = Path("/dev/shm")
    if other.stat().st_dev == Path("/").stat().st_dev:
        pytest.skip("/dev/shm is on the root file system here")
    with tempfile.TemporaryDirectory(dir=other) as directory:
        found = homes(Path(directory), "ada")
        changes, left = clear_homes(found, remove=True, mounts=[])
        assert (changes, left) == ([], [f"{directory}/ada: it is on another file system"])
        assert Path(directory, "ada", "thesis.tex").exists()


def test_homes_are_read_from_ledgers_of_both_kinds() -> None:
    old: dict[str, dict[str, Any]] = {
        "/home/ada": {"kind": "absent"},
        "/home/ben": {"kind": "directory", "entries": []},
        "/var/lib/mysql": {"kind": "absent"},
    }
    assert homes_of({"/home/cleo": {"kind": "absent"}}, old) == {
        "/home/ada": True,
        "/home/ben": False,
        "/home/cleo": True,
    }
