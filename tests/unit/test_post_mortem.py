"""The evidence of a failed test in .cache/failed, tested with pytest itself and a stand-in for a fleet."""

import os
import subprocess
from pathlib import Path

import pytest

from tests import commands
from tests.commands import ends, fails, recorded, scrubbed
from tests.post_mortem import directory_name

pytest_plugins = "pytester"

WITNESS = """
import time
from pathlib import Path
import pytest
from tests.commands import begin
from tests.post_mortem import watched

pytestmark = pytest.mark.e2e

class Fleet:
    name = "fleet-1"
    def keep(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "looked").write_text("while it was up" if not Path("removed").exists() else "too late")
        return ["gs-1: slurmd failed"]
    def remove(self):
        Path("removed").touch()
    def access_commands(self):
        return ["sandbox exec gs-1"]

@pytest.fixture(scope="module")
def fleet():
    with watched(Fleet()) as made:
        {setup}
        yield made
        {teardown}

def test_steps(fleet):
    secret = {{"GPUAAS_CLIENT_SECRET": "hush-hush-hush", "GPUAAS_PROJECT_ID": "project-1"}}
    begin(["gpuaas-slurm", "run", "hush-hush-hush"], secret).end(1, "", "slurmd does not start")
    {call}

def test_that_passes(fleet): pass
"""
FOLDER = Path(".cache/failed/test_it.py-test_steps")


def run(
    pytester: pytest.Pytester, call: str = "pass", setup: str = "pass", teardown: str = "pass", limited: bool = False
) -> str:
    pytester.makeini("[pytest]\nmarkers = e2e: hosts")
    pytester.makepyfile(test_it=WITNESS.format(call=call, setup=setup, teardown=teardown))
    # A time limit is an alarm of the whole process, so that a run with one needs its own.
    start = pytester.runpytest_subprocess if limited else pytester.runpytest_inprocess
    return start("-q", "-p", "tests.post_mortem").stdout.str()


@pytest.fixture(autouse=True)
def importable(pytester: pytest.Pytester, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(pytestconfig.rootpath))
    monkeypatch.delenv("KEEP", raising=False)


def kept(pytester: pytest.Pytester, name: str, folder: Path = FOLDER) -> str:
    return (pytester.path / folder / name).read_text()


def test_a_failed_call_keeps_evidence_its_commands_and_its_traceback(pytester: pytest.Pytester) -> None:
    output = run(pytester, call="assert secret == 7, 'hush-hush-hush'")
    assert output.count(f"kept for this failure: {FOLDER}/") == 2
    assert kept(pytester, "fleet-1/looked") == "while it was up"
    readme = kept(pytester, "README.txt")
    assert readme.splitlines()[0].startswith("failure.txt: ") and "gs-1: slurmd failed" in readme
    assert "assert secret == 7" in kept(pytester, "failure.txt")
    ran = kept(pytester, "commands.txt")
    assert "$ gpuaas-slurm run" in ran and "exit code 1" in ran and "slurmd does not start" in ran
    everything = [path.read_text() for path in (pytester.path / FOLDER).rglob("*") if path.is_file()]
    assert not [text for text in everything if "hush-hush-hush" in text]
    assert (pytester.path / "removed").exists()


def test_evidence_of_a_failed_fixture_is_collected_before_its_teardown(pytester: pytest.Pytester) -> None:
    run(pytester, setup="assert False, 'the deploy failed'")
    assert kept(pytester, "fleet-1/looked") == "while it was up"
    assert "the deploy failed" in kept(pytester, "failure.txt")


def test_evidence_of_a_failed_teardown_is_collected_before_the_fleet_is_removed(pytester: pytest.Pytester) -> None:
    run(pytester, teardown="assert False, 'a call was not in the contract'")
    folder = FOLDER.with_name("test_it.py-test_that_passes")
    assert kept(pytester, "fleet-1/looked", folder) == "while it was up"
    assert "a call was not in the contract" in kept(pytester, "failure.txt", folder)


def test_a_timeout_is_a_failure_like_any_other(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import pytest\ndef pytest_collection_modifyitems(items):\n"
                          "    items[0].add_marker(pytest.mark.timeout(1, method='signal'))")  # fmt: skip
    output = run(pytester, call="time.sleep(60)", limited=True)
    assert "1 failed, 1 passed" in output
    assert kept(pytester, "fleet-1/looked") == "while it was up"
    assert "Timeout" in kept(pytester, "failure.txt")


def test_a_run_replaces_the_folder_of_the_test_that_failed_and_no_other(pytester: pytest.Pytester) -> None:
    for name in (FOLDER, FOLDER.with_name("other")):
        (pytester.path / name).mkdir(parents=True)
        (pytester.path / name / "old").touch()
    run(pytester, call="assert False")
    assert not (pytester.path / FOLDER / "old").exists()
    assert (pytester.path / FOLDER.with_name("other") / "old").exists()


def test_a_run_without_failures_leaves_nothing(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEP", "1")
    output = run(pytester)
    assert "2 passed" in output and "kept" not in output and "KEEP" not in output
    assert not (pytester.path / ".cache").exists() and (pytester.path / "removed").exists()


@pytest.mark.parametrize(("call", "setup"), [("assert False", "pass"), ("pass", "assert False")])
def test_keep_leaves_the_fleet_of_a_failure_up_and_prints_the_commands(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, call: str, setup: str
) -> None:
    monkeypatch.setenv("KEEP", "1")
    output = run(pytester, call=call, setup=setup)
    assert "KEEP: fleet-1 is still up" in output and "  sandbox exec gs-1" in output
    assert not (pytester.path / "removed").exists()


def test_the_folder_is_named_after_the_test() -> None:
    name = directory_name("tests/e2e/test_bulk.py::test_each[bookworm-gs-1]")
    assert name == "e2e-test_bulk.py-test_each-bookworm-gs-1"
    long = [directory_name(f"tests/unit/test_x.py::test_y[{'../' * 100}{end}]") for end in "ab"]
    assert len(set(long)) == 2 and all(len(one) < 130 and "/" not in one for one in long)


# -- commands ----------------------------------------------------------------------------------------------------


def ran(code: int, stdout: str = "", stderr: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.CompletedProcess(["gpuaas-slurm", "run"], code, stdout, stderr)


def test_an_exit_code_that_differs_is_shown_with_the_command_and_its_output() -> None:
    ok = ran(0)
    assert ends(ok, 0) is ok and ends(ran(1), 0, 1).returncode == 1 and fails(ran(2)).returncode == 2
    with pytest.raises(AssertionError) as failed:
        ends(ran(1, "out\n", "x" * 9999 + "no munge\n"), 0, why="all is well")
    message = str(failed.value)
    assert message.startswith("exit code 1, expected 0: gpuaas-slurm run\nall is well\n--- stdout\nout\n")
    assert message.endswith("no munge") and len(message) < 7000
    with pytest.raises(
        AssertionError, match="exit code 0, expected a refusal by the command: gpuaas-slurm run\nno output"
    ):
        fails(ok)
    for did_not_run in (125, 127, -9):
        with pytest.raises(AssertionError, match="expected a refusal by the command"):
            fails(ran(did_not_run))


def test_every_call_is_recorded_with_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "_SECRETS", set())
    monkeypatch.setattr(commands, "CALLS", type(commands.CALLS)(maxlen=2))

    def command(variables: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
        if "hang" in arguments:
            raise subprocess.TimeoutExpired("gpuaas-slurm", 300, b"so far", b"and no further")
        return ran(1, "out", "err")

    record = recorded(command)
    record({}, "status")
    record({"GPUAAS_OPERATOR_TOKEN": "a-long-token"}, "run", "a-long-token")
    with pytest.raises(subprocess.TimeoutExpired):
        record({}, "hang")
    first, second = commands.CALLS
    assert (first.argv, first.outcome, first.stderr) == (["gpuaas-slurm", "run", "a-long-token"], "exit code 1", "err")
    assert os.environ["PYTEST_CURRENT_TEST"] == first.test and "[secret]" in scrubbed(first.described())
    assert (second.outcome, second.stdout, second.stderr) == ("no end within 300 s", "so far", "and no further")


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN OPENSSH PRIVATE KEY-----\nfound\n-----END OPENSSH PRIVATE KEY-----",
        "SLURM_JWT=eyJhbGciOiJIUzI1NiJ9.found.found",
        "{'key_id': 'k', 'client_secret': 'found'}",
    ],
)
def test_text_that_looks_like_a_secret_is_not_written(text: str) -> None:
    assert "found" not in scrubbed(f"before {text} after") and scrubbed(f"{text} after").endswith(" after")
