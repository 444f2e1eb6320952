"""What a run needs on disk is gone after it; what a killed one left is removed by the next, and nothing else is."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.act.scratch import PREFIX, scratch, sweep

pytestmark = pytest.mark.timeout(30)

HOLDER = """
import sys
from runner.act.scratch import scratch
with scratch() as directory:
    (directory / "artifacts").mkdir()
    (directory / "artifacts" / "stdout").write_text("TASK")
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def another() -> Iterator["subprocess.Popen[str]"]:
    """A runner with a directory of its own."""
    started = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    yield started
    started.kill()
    started.communicate()


def place(runner: "subprocess.Popen[str]") -> Path:
    assert runner.stdout
    return Path(runner.stdout.readline().strip())


def test_a_directory_is_closed_to_others_and_gone_afterwards(temporary: Path) -> None:
    with pytest.raises(RuntimeError), scratch() as directory:
        assert directory.parent == temporary and directory.stat().st_mode & 0o077 == 0
        (directory / "file").write_text("anything")
        raise RuntimeError
    assert list(temporary.iterdir()) == []


def test_what_a_killed_runner_left_is_swept_and_what_a_living_one_uses_is_not(
    temporary: Path, another: "subprocess.Popen[str]"
) -> None:
    theirs = place(another)
    with scratch() as ours:
        sweep()
        assert theirs.is_dir() and ours.is_dir()
        another.kill()
        another.wait()
        assert (theirs / "artifacts" / "stdout").exists()
        sweep()
        assert list(temporary.iterdir()) == [ours]


def test_the_play_of_a_killed_runner_is_ended_and_that_of_a_living_one_is_not(
    temporary: Path, another: "subprocess.Popen[str]"
) -> None:
    theirs = place(another)
    with scratch() as ours:
        plays = [
            subprocess.Popen(["sleep", "600"], env={"ANSIBLE_HOME": f"{directory}/home"}, start_new_session=True)
            for directory in (theirs, ours, f"{theirs}-not")
        ]
        try:
            sweep()
            assert [play.poll() for play in plays] == [None, None, None]
            another.kill()
            another.wait()
            sweep()
            assert plays[0].wait(10) == -signal.SIGKILL
            assert [play.poll() for play in plays[1:]] == [None, None]
        finally:
            for play in plays:
                play.kill()
                play.wait()


def test_what_others_have_in_the_same_place_is_left_alone(
    temporary: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").write_text("precious")
    (temporary / "gpuaas-slurm-image-1").mkdir()
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
    (temporary / f"{PREFIX}file").write_text("not a directory")
    kept = sorted(one.name for one in temporary.iterdir())
    sweep()
    assert sorted(one.name for one in temporary.iterdir()) == kept
    assert (elsewhere / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_what_another_user_left_is_for_that_user_to_sweep(temporary: Path) -> None:
    theirs = temporary / f"{PREFIX}theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    sweep()
    assert theirs.is_dir()


def test_a_directory_swept_before_it_was_locked_is_made_anew(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = tempfile.mkdtemp
    made: list[str] = []

    def raced(*arguments: str, **options: str) -> str:
        made.append(make(*arguments, **options))
        if len(made) == 1:
            sweep()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", raced)
    with scratch() as directory:
        assert directory.is_dir() and len(made) == 2


def test_an_ssh_master_of_a_killed_runner_is_told_to_end(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = temporary / f"{PREFIX}dead"
    (left / "cp").mkdir(parents=True)
    (left / "cp" / "0a1b2c").touch()
    told: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: told.append(command))
    sweep()
    assert told == [["ssh", "-O", "exit", "-S", str(left / "cp" / "0a1b2c"), "-q", "gone"]]
    assert not left.exists()
