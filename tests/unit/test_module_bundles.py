"""Ansible finds every module by ansible.cfg and sends it to hosts with all that it imports."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each module answers to wrong arguments. It checks them first, so none of them does anything here.

    The modules run in the interpreter of this test, in isolated mode: without the project's tree on its path.
    """
    directory = tmp_path_factory.mktemp("by-hand")
    isolated = directory / "python"
    isolated.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    isolated.chmod(0o755)
    tasks = [{"name": name, name: {"no_such_argument": 1}, "ignore_errors": True} for name in MODULES]
    variables = {"ansible_connection": "local", "ansible_python_interpreter": str(isolated)}
    play = {"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": tasks}
    (directory / "play.yml").write_text(yaml.safe_dump([play]))
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    command = [str(BIN / "ansible-playbook"), "-i", "localhost,", "play.yml"]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(re.findall(r"^TASK \[(\w+)\] \*+\n(.*?)\n\n", done.stdout, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_starts_from_what_ansible_sends(name: str, answers: dict[str, str]) -> None:
    assert re.search(r"Unsupported parameters for|missing required arguments:", answers[name]), answers[name]
