"""The access bundle is true: every command in it works as it stands, every path exists, and no secret is in it."""

import json
import shlex
import tempfile
from pathlib import Path

import pytest

from tests.commands import EXEC, ends
from tests.e2e.cluster import by_hand
from tests.e2e.conftest import Equipped
from tests.platform_process import Doc
from tests.runner_process import COMMAND, answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("equipped", independent=True)]


def through_ssh(equipped: Equipped, commands: list[str], *, trusted: bool = True) -> list[tuple[int, str]]:
    """Exit code and output of each, typed after the bundle's own ssh line, with the key in an agent.

    The bundle's known_hosts line is in a file of the test's own, in place of the file of the person who runs the tests.
    """
    ssh = equipped.cluster.instance()["access"]["ssh"]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "known_hosts"
        file.write_text(f"{ssh['known_hosts']}\n" if trusted else "")
        line = ssh["command"].replace("ssh ", f"ssh -o UserKnownHostsFile={file} -o GlobalKnownHostsFile=/dev/null ", 1)
        script = "\n".join(f"{line} {shlex.quote(one)} </dev/null 2>&1; printf '\\n<rc %s>\\n' $?" for one in commands)
        instance = equipped.cluster.instance_id
        done = by_hand(equipped.cluster, COMMAND, *EXEC, "--instance", instance, "--", "sh", "-c", script)
    results = []
    rest = done.stdout
    for _ in commands:
        output, _, rest = rest.partition("\n<rc ")
        code, _, rest = rest.partition(">\n")
        results.append((int(code), output.strip()))
    return results


def works(equipped: Equipped, commands: list[str]) -> dict[str, str]:
    results = through_ssh(equipped, commands)
    for command, (code, output) in zip(commands, results, strict=True):
        assert code == 0, f"{command}: {code} {output}"
    return {command: output for command, (_, output) in zip(commands, results, strict=True)}


def test_every_command_of_the_bundle_works_as_it_is_written(equipped: Equipped) -> None:
    bundle = equipped.cluster.instance()["access"]
    samples: list[Doc] = [*bundle["commands"], *bundle["health"]]
    submit = [bundle["submit"]["batch"], bundle["submit"]["interactive"]]
    outputs = works(equipped, [*(one["command"] for one in samples), *submit, f"sudo {bundle['logs']['controller']}"])
    assert outputs[submit[0]].startswith("Submitted batch job ")
    # Srun may have printed before that it waits for its node.
    assert outputs[submit[1]].splitlines()[-1] in equipped.cluster.workers()
    assert "UP" in outputs["scontrol ping"]
    assert "slurmctld" in outputs[f"sudo {bundle['logs']['controller']}"]
    equipped.cluster.on("gs-2", *bundle["logs"]["worker"].split())


def test_the_ssh_line_refuses_a_host_that_is_not_in_known_hosts(equipped: Equipped) -> None:
    ((code, output),) = through_ssh(equipped, ["true"], trusted=False)
    assert code == 255 and "Host key verification failed" in output


def test_its_examples_are_what_this_cluster_answers(equipped: Equipped) -> None:
    bundle = equipped.cluster.instance()["access"]
    output = {one["command"].split()[0]: one["output"] for one in bundle["commands"][:1] + bundle["health"][:1]}
    assert "gs-2" in output["sinfo"]
    assert "Slurmctld(primary) at gs-1 is UP" in output["scontrol"]
    assert "gpu:a100:4" in next(one["output"] for one in bundle["commands"] if "Gres" in one["command"])


def test_every_path_of_the_bundle_exists(equipped: Equipped) -> None:
    paths = equipped.cluster.instance()["access"]["paths"]
    works(equipped, [f"sudo test -e {path}" for path in paths["controller"].values()])
    equipped.cluster.on("gs-2", "ls", "--directory", *paths["worker"].values())


def test_its_hosts_and_ports_are_where_the_cluster_is(equipped: Equipped) -> None:
    bundle = equipped.cluster.instance()["access"]
    addresses = {host.name: host.address for host in equipped.cluster.fleet.hosts()}
    assert bundle["controller"] == {"hostname": "gs-1", "host": addresses["gs-1"], "port": 22, "username": "ops"}
    serving = sorted(host for host, one in equipped.cluster.workers().items() if one["status"] == "ready")
    assert [(one["hostname"], one["host"]) for one in bundle["workers"]] == [
        (name, addresses[name]) for name in serving
    ]
    listening = equipped.cluster.on("gs-1", "sh", "-c", "cat /proc/net/tcp /proc/net/tcp6")
    assert f":{bundle['ports']['slurmctld']:04X} " in listening
    assert bundle["submit"]["users"] == [
        {"name": "ada", "uid": 2001, "account": "physics"},
        {"name": "ben", "uid": 2002, "account": "default"},
    ]


def test_no_secret_is_in_the_bundle(equipped: Equipped) -> None:
    cluster = equipped.cluster
    bundle = cluster.instance()["access"]
    text = json.dumps(bundle)
    assert len(text.encode()) <= 16 * 1024
    database = cluster.on("gs-1", "sh", "-c", "sed -n 's/^StoragePass=//p' /etc/slurm/slurmdbd.conf")
    secrets = [cluster.on("gs-1", "base64", "--wrap=0", "/etc/munge/munge.key"), database, "PRIVATE KEY"]
    secrets += [
        cluster.variables[name] for name in ("GPUAAS_CLIENT_SECRET", "GPUAAS_OPERATOR_TOKEN", "VAULT_SECRET_ID")
    ]
    assert all(len(secret) > 10 for secret in secrets)
    assert [secret for secret in secrets if secret in text + equipped.log] == []


def test_a_person_reads_it_and_a_program_gets_it_whole(equipped: Equipped) -> None:
    cluster = equipped.cluster
    assert answer(cluster.variables, "access", cluster.instance_id) == cluster.instance()["access"]
    shown = cluster.command("access", cluster.instance_id)
    ends(shown, 0)
    ssh = cluster.instance()["access"]["ssh"]
    assert ssh["command"] in shown.stdout.split("\n  ") and ssh["known_hosts"] in shown.stdout
    assert "$ sinfo" in shown.stdout
