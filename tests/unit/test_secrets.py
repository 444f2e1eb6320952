"""The private ssh-agent: it has the key while our process lives, and no longer."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from runner.act import play_secrets
from runner.act.vault import SecretsError

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def key(tmp_path: Path) -> str:
    made = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(made)], check=True)
    text = made.read_text()
    made.unlink()
    return text


def listed(agent: Path) -> str:
    return subprocess.run(
        ["ssh-add", "-l"], env={"SSH_AUTH_SOCK": str(agent), "PATH": os.environ["PATH"]}, capture_output=True, text=True
    ).stdout


def test_the_agent_holds_the_key_and_no_file_does(tmp_path: Path, key: str) -> None:
    with play_secrets.ssh_agent(tmp_path, key) as agent:
        assert "ED25519" in listed(agent)
        assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["key.pub"]
    assert not listed(agent)


def test_the_error_of_an_invalid_key_does_not_quote_the_key(tmp_path: Path) -> None:
    with pytest.raises(SecretsError) as error, play_secrets.ssh_agent(tmp_path, "canary PRIVATE KEY"):
        pass
    assert "canary" not in str(error.value)


def test_a_slow_agent_is_waited_for(tmp_path: Path, key: str) -> None:
    """A socket can be seen before a process listens on it; a key must not be called invalid because of that."""
    shown, done = tmp_path / "agent.sock", threading.Event()
    with socket.socket(socket.AF_UNIX) as early, ThreadPoolExecutor(1) as aside:
        early.bind(str(shown))
        agent = subprocess.Popen(["sleep", "60"])
        try:
            added = aside.submit(play_secrets._add_key, shown, key, agent)
            assert not done.wait(0.3) and not added.done()
            early.close()
            shown.unlink()
            with play_secrets.ssh_agent(tmp_path, key):
                assert added.result(timeout=10).returncode == 0
        finally:
            agent.kill()
            agent.wait()


# The signal's usual meaning is set by hand: a process started in the background may ignore it.
OWNER = """
import signal, sys, threading
from pathlib import Path
from runner.act import play_secrets
signal.signal(signal.SIGINT, signal.default_int_handler)
with play_secrets.ssh_agent(Path(sys.argv[1]), sys.stdin.read()):
    try:
        print("ready", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        threading.Event().wait()
"""


def owner(directory: Path, key: str) -> "subprocess.Popen[str]":
    started = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert started.stdin and started.stdout
    started.stdin.write(key)
    started.stdin.close()
    assert started.stdout.readline() == "ready\n"
    return started


def test_the_agent_ends_with_a_runner_that_is_killed(tmp_path: Path, key: str) -> None:
    runner = owner(tmp_path, key)
    assert "ED25519" in listed(tmp_path / "agent.sock")
    runner.kill()
    runner.wait()
    deadline = time.monotonic() + 5
    while listed(tmp_path / "agent.sock") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not listed(tmp_path / "agent.sock")


def test_a_ctrl_c_does_not_end_the_agent(tmp_path: Path, key: str) -> None:
    runner = owner(tmp_path, key)
    os.killpg(runner.pid, signal.SIGINT)
    assert runner.stdout and runner.stdout.readline() == "interrupted\n"
    assert "ED25519" in listed(tmp_path / "agent.sock")
    runner.kill()
    runner.wait()


class OneSecret:
    """A Vault that has what it is asked for."""

    def runtime_secret(self, instance_id: UUID, name: str, _step: str) -> str:
        return f"{name} of {instance_id.int}"


def test_a_play_gets_the_secrets_of_its_own_instance_and_of_no_other(tmp_path: Path) -> None:
    with play_secrets.secret_server(tmp_path, OneSecret(), UUID(int=7)) as server:  # type: ignore[arg-type]
        assert play_secrets.fetch_secret(str(server), str(UUID(int=7)), "munge_key") == "munge_key of 7"
        with pytest.raises(SecretsError, match="its own instance only"):
            play_secrets.fetch_secret(str(server), str(UUID(int=8)), "munge_key")
