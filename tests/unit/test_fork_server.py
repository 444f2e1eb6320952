"""A process of the fork server behaves like one that was started in the usual way."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import fork_server
from tests.platform_process import ROOT
from tests.runner_process import gpuaas_slurm, own_processes

SETTINGS = {"GPUAAS_BASE_URL": "http://127.0.0.1:9", "GPUAAS_PROJECT_ID": "no project", "GPUAAS_OPERATOR_TOKEN": "x"}


def show() -> int:
    """Print everything that a process gets at its start."""
    before = os.umask(0o077)
    shown = {
        "environment": {k: v for k, v in os.environ.items() if k not in ("PYTEST_CURRENT_TEST", "LC_CTYPE")},
        "arguments": sys.argv[1:],
        "directory": str(Path.cwd()),
        "umask": before,
        "stdin": sys.stdin.read(),
        "terminals": [stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "encodings": [(stream.encoding, stream.errors) for stream in (sys.stdout, sys.stderr)],
        "signals": [str(signal.getsignal(one)) for one in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)],
        "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "temporary": tempfile.gettempdir(),
        "zone": time.tzname,
        "threads": threading.active_count(),
        "child": subprocess.run(
            ["sh", "-c", "echo $GIVEN; exit 3"], capture_output=True, text=True, check=False
        ).stdout,
    }
    sys.stdout.write(json.dumps(shown))
    sys.stderr.write("and an error")
    return 7


def hang() -> None:
    child = subprocess.Popen(["sleep", "600"])
    sys.stdout.write(f"begun {child.pid}")
    sys.stdout.flush()
    child.wait()


def print_name() -> None:
    sys.stdout.write(sys.argv[1] * 10000)


def die() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_forked_process_gets_the_same_start_as_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {"PATH": os.environ["PATH"], "GIVEN": "yes", "TMPDIR": str(tmp_path), "TZ": "Asia/Tokyo"}
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from {__name__} import show; sys.exit(show())"
    usual = subprocess.run(
        [sys.executable, "-c", code, "a", "b c"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    forked = fork_server.run(show, ["show", "a", "b c"], environment, 60)
    assert usual.returncode == 7, usual.stderr
    assert json.loads(forked.stdout) == json.loads(usual.stdout)
    assert (forked.returncode, forked.stderr) == (usual.returncode, usual.stderr)


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("no-such-command",), ("get", "instances"), ("run", "--json")],
    ids=" ".join,
)
def test_output_and_exit_code_are_the_same_either_way(arguments: tuple[str, ...]) -> None:
    """Among them are wrong settings and a wrong argument."""
    usual, forked = (gpuaas_slurm(SETTINGS, *arguments, own_process=own) for own in (True, False))
    assert (forked.returncode, forked.stdout, forked.stderr) == (usual.returncode, usual.stdout, usual.stderr)
    assert forked.args == usual.args


def test_settings_come_from_the_call_and_never_from_the_fork_servers_start(tmp_path: Path) -> None:
    ended = []
    for name in ("one", "two"):
        (tmp_path / name).write_text(f'base_url = "{name}"\nproject_id = "{name}"\n')
        ended.append(gpuaas_slurm({"GPUAAS_CONFIG": str(tmp_path / name)}, "status"))
    ended.append(gpuaas_slurm({}, "status"))
    assert [one.returncode for one in ended] == [2, 2, 2]
    found = ["found `o`" in ended[0].stderr, "found `t`" in ended[1].stderr, "is not set" in ended[2].stderr]
    assert found == [True] * 3


def test_a_signal_that_ends_the_process_is_its_exit_code() -> None:
    assert fork_server.run(die, ["die"], os.environ, 60).returncode == -signal.SIGTERM


def test_a_timeout_ends_the_whole_group_and_keeps_the_output() -> None:
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        fork_server.run(hang, ["hang"], os.environ, 2)
    begun, child = str(caught.value.output).split()
    assert begun == "begun"
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child}/exe").exists():
        assert time.monotonic() < deadline, "the process that it had started lives on"
        time.sleep(0.05)


def test_processes_of_many_threads_keep_their_output_apart() -> None:
    with ThreadPoolExecutor(8) as pool:
        ended = list(
            pool.map(lambda name: fork_server.run(print_name, ["x", name], os.environ, 60), "abcdefghijklmnop")
        )
    assert [one.stdout for one in ended] == [name * 10000 for name in "abcdefghijklmnop"]


def test_own_processes_starts_every_command_as_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "run", lambda *_: pytest.fail("forked"))
    with own_processes():
        assert gpuaas_slurm({}, "--help").returncode == 0
    with pytest.raises(pytest.fail.Exception, match="forked"):
        gpuaas_slurm({}, "--help")
