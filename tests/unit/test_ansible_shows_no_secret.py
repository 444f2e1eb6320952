"""No setting that a person may give Ansible shows a secret."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner import log
from runner.cli import commands

ROOT = Path(__file__).resolve().parents[2]
LOOKUP = "{{ lookup('runtime_secret', 'munge_key', instance='00000000-0000-0000-0000-000000000005') }}"


def test_an_ansible_that_would_show_or_keep_secrets_gets_none(tmp_path: Path) -> None:
    def ask(**more: str) -> str:
        done = subprocess.run(
            [str(Path(sys.executable).parent / "ansible"), "localhost", "-m", "debug", "-a", f"msg={LOOKUP}"],
            env={**os.environ, "ANSIBLE_HOME": str(tmp_path), "GPUAAS_SECRETS_SOCKET": str(tmp_path / "none"), **more},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0
        return done.stdout + done.stderr

    # Usually the socket is asked, and there is none.
    assert "No such file" in ask()
    for output in (ask(ANSIBLE_DEBUG="1"), ask(ANSIBLE_KEEP_REMOTE_FILES="1")):
        assert "runtime secret withheld" in output and "No such file" not in output


def test_what_a_person_has_exported_for_ansible_does_not_reach_the_runners_plays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUAAS_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("GPUAAS_PROJECT_ID", "00000000-0000-0000-0000-000000000001")
    for name in ("ANSIBLE_DEBUG", "ANSIBLE_KEEP_REMOTE_FILES", "ANSIBLE_LOG_PATH", "ANSIBLE_STDOUT_CALLBACK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(log, "configure", lambda _: None)
    commands.load()
    assert [name for name in os.environ if name.startswith("ANSIBLE_")] == []
