"""What a run needs on disk is gone after it; what a killed one left is removed by the next, and nothing else is."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

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


def test_a_directory_is_private_and_removed_at_the_end(temporary: Path) -> None:
    with pytest.raises(RuntimeError), scratch() as directory:
        assert directory.parent == temporary and directory.stat().st_mode & 0o077 == 0
        (directory / "file").write_text("anything")
        raise RuntimeError
    assert list(temporary.iterdir()) == []


def test_the_directory_of_a_killed_runner_is_removed_and_one_in_use_is_kept(
    temporary: Path, another: "subprocess.Popen[str]"
) -> None:
    theirs = place(another)
    with scratch() as ours:
        sweep()
        assert theirs.is_dir() and ours.is_dir()
        another.kill()
        another.wait()
        assert (theirs / "artifacts" / "stdout").exists()
        with capture_logs() as logged:
            sweep()
        assert [(line["event"], line["directory"]) for line in logged] == [
            ("removed what a killed runner left", str(theirs))
        ]
        assert list(temporary.iterdir()) == [ours]


def test_the_play_of_a_killed_runner_is_ended_and_others_go_on(
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
            with capture_logs() as logged:
                sweep()
            ended = [line["process"] for line in logged if line["event"] == "ended a process that a play left"]
            assert ended == [plays[0].pid]
            assert plays[0].wait(10) == -signal.SIGKILL
            assert [play.poll() for play in plays[1:]] == [None, None]
        finally:
            for play in plays:
                play.kill()
                play.wait()


def test_other_files_in_the_temporary_directory_are_left_alone(
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
def test_directories_of_another_user_are_left_alone(temporary: Path) -> None:
    theirs = temporary / f"{PREFIX}theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    sweep()
    assert theirs.is_dir()


def test_a_directory_removed_before_it_was_locked_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_ssh_master_of_a_killed_runner_is_ended(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = temporary / f"{PREFIX}dead"
    (left / "cp").mkdir(parents=True)
    (left / "cp" / "0a1b2c").touch()
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command))
    sweep()
    assert commands == [["ssh", "-O", "exit", "-S", str(left / "cp" / "0a1b2c"), "-q", "gone"]]
    assert not left.exists()
