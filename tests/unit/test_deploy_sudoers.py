"""The sudoers file allows what Ansible does to become root, and nothing else."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from ansible.plugins.loader import become_loader, shell_loader

FILE = Path(__file__).resolve().parents[2] / "deploy" / "sudoers.d" / "gpuaas-slurm"


def rule() -> tuple[str, "re.Pattern[str]"]:
    (line,) = [line for line in FILE.read_text().splitlines() if line.startswith("ops ALL=")]
    found = re.fullmatch(r"ops ALL=\(root\) NOPASSWD: NOSETENV: (\S+) (\^.*\$)", line)
    assert found
    return found[1], re.compile(found[2])


def asked_by_ansible() -> list[str]:
    """The arguments sudo gets from Ansible's own become plugin when a module is piped in."""
    plugin, shell = become_loader.get("sudo"), shell_loader.get("sh")
    plugin.set_options()
    shell.executable = "/bin/sh"  # as the ssh connection has it
    return shlex.split(plugin.build_become_command("/usr/bin/python3", shell))


def test_what_ansible_asks_of_sudo_is_what_is_allowed() -> None:
    command_line = asked_by_ansible()
    command, arguments = rule()
    start = command_line.index(command)
    assert command_line[:start] == ["sudo", "-H", "-S", "-n", "-u", "root"]
    assert arguments.fullmatch(" ".join(command_line[start + 1 :]))


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "-c id",
        "-c echo BECOME-SUCCESS-x ; /usr/bin/python3",
        f"-c echo BECOME-SUCCESS-{'a' * 32} ; /usr/bin/python3 -c 'import os'",
        f"-c echo BECOME-SUCCESS-{'a' * 32} ; /usr/bin/python3\nreboot",
        f"-c echo BECOME-SUCCESS-{'a' * 31}; ; /usr/bin/python3",
        f"-c echo BECOME-SUCCESS-{'a' * 32} ; /tmp/python3",
    ],
)
def test_anything_else_is_not(arguments: str) -> None:
    assert not rule()[1].fullmatch(arguments)


def test_sudo_itself_accepts_the_file() -> None:
    subprocess.run(["/usr/sbin/visudo", "-cf", str(FILE)], check=True)


def test_pipelining_is_on_so_that_no_other_command_is_needed() -> None:
    assert re.search(r"^pipelining = True$", (FILE.parents[2] / "ansible.cfg").read_text(), re.M)
