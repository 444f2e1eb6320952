"""What of a command is kept on record: never a secret, and at most a bounded length."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.model.shown_command import COMMAND_BYTES, shown_command, shown_text

SECRET = "hunter2-Geheim"
# A secret that has a word in it by which secrets are often recognized.
PASSWORD = "MyPassw0rd1"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "command",
    [
        f"curl --token {SECRET}",
        f"curl --token={SECRET}",
        f"ansible-playbook --vault-password-file={SECRET} x.yml",
        f"ansible-playbook -e password={SECRET} x.yml",
        f"ansible-playbook -epassword={SECRET} x.yml",
        f"ansible-playbook --extra-vars 'a=1 b={SECRET}' x.yml",
        f'ansible-playbook --extra-vars=\'{{"b": "{SECRET}"}}\' x.yml',
        f"env DB_PASSWORD={SECRET} true",
        f"curl https://ops:{SECRET}@repo.example.org/debian",
        f"curl -u ops:{SECRET} https://repo.example.org",
        f"curl -H 'Authorization: Bearer {SECRET}' https://repo.example.org",
        f"mysql -p{SECRET} --execute status",
        f"sshpass -p {SECRET} ssh host",
        f"sh -c 'export TOKEN={SECRET}; curl --password {SECRET} x'",
        f"sh -c \"bash -c 'TOKEN={SECRET} true'\"",
        f"sh -c 'curl https://ops:{SECRET}@host/x'",
        f"sh -c 'unbalanced \" {SECRET}'",
        f"vault login hvs.{'A' * 30}{SECRET}",
        f"curl {JWT}",
        f"mysql -p{PASSWORD} x",
        f"mysql -psecret-{SECRET} x",
        f"curl -HX-Api-Key:{SECRET} x",
        f'curl -d \'{{"password":"{SECRET}"}}\' x',
        f"curl --data='password={SECRET}' x",
        f'ansible all -m user -a \'{{"password": "{SECRET}"}}\'',
        f"ansible all -m user -a 'name=bob password={SECRET}'",
        f"curl https://repo.example.org/x?token={SECRET}",
        f"redis-cli -a {SECRET}",
        f"sh -c 'echo root:{SECRET} | chpasswd'",
        f'sh -c "mysql --execute \\"SET PASSWORD = \'{SECRET}\'\\""',
        f"ansible-playbook -e=password={SECRET} x.yml",
        f"tool -e{SECRET}",
    ],
)
def test_no_secret_of_a_command_is_kept(command: str) -> None:
    try:
        words = shlex.split(command)
    except ValueError:
        words = ["sh", "-c", command]
    shown = shown_command(words)
    assert not [one for one in (SECRET, PASSWORD, JWT) if one in shown] and "***" in shown


def test_what_tells_what_was_done_is_kept() -> None:
    command = "ansible-playbook -i gpuaas.yml playbooks/drain_worker.yml --limit W -e drain_reason=disk -e @vars.yml"
    shown = shown_command(shlex.split(command))
    assert shown == command.replace("=disk", "=***")
    for whole in (
        "ansible-playbook --ask-become-pass -vvv -b playbooks/observe.yml --limit gs-1,gs-2 --check",
        "ansible -i gpuaas.yml CONTROLLER -m command -a 'systemctl restart slurmctld'",
        "ansible-inventory -i gpuaas.yml --graph",
        "curl https://repo.example.org/debian",
    ):
        assert shown_command(shlex.split(whole)) == whole
    assert shown_text("why https://ops:pw@host and \n more", 80) == "why https://***@host and more"


@given(st.lists(st.text(max_size=300), max_size=20))
def test_any_command_gives_one_bounded_printable_line(words: list[str]) -> None:
    shown = shown_command(words)
    assert shown.isprintable() and len(shown.encode()) <= COMMAND_BYTES
