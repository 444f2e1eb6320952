"""The access bundle is true: every command in it works as it stands, every path exists, and no secret is in it."""

import json
import shlex

import pytest

from tests.commands import ends
from tests.e2e.cluster import by_hand
from tests.e2e.conftest import Equipped
from tests.platform_process import Doc
from tests.runner_process import COMMAND, answer

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("equipped", independent=True)]


def through_ssh(equipped: Equipped, commands: list[str]) -> list[tuple[int, str]]:
    """Exit code and output of each, typed after the bundle's own ssh command, with the key in an agent."""
    ssh = equipped.cluster.instance()["access"]["ssh"]["command"]
    script = "\n".join(f"{ssh} {shlex.quote(one)} </dev/null 2>&1; printf '\\n<rc %s>\\n' $?" for one in commands)
    done = by_hand(
        equipped.cluster, COMMAND, "exec", "--instance", equipped.cluster.instance_id, "--", "sh", "-c", script
    )
    told = []
    rest = done.stdout
    for _ in commands:
        output, _, rest = rest.partition("\n<rc ")
        code, _, rest = rest.partition(">\n")
        told.append((int(code), output.strip()))
    return told


def works(equipped: Equipped, commands: list[str]) -> dict[str, str]:
    told = through_ssh(equipped, commands)
    for command, (code, output) in zip(commands, told, strict=True):
        assert code == 0, f"{command}: {code} {output}"
    return {command: output for command, (_, output) in zip(commands, told, strict=True)}


def test_every_command_of_the_bundle_works_as_it_is_written(equipped: Equipped) -> None:
    bundle = equipped.cluster.instance()["access"]
    samples: list[Doc] = [*bundle["commands"], *bundle["health"]]
    submit = [bundle["submit"]["batch"], bundle["submit"]["interactive"]]
    told = works(equipped, [*(one["command"] for one in samples), *submit, bundle["logs"]["controller"]])
    assert told[submit[0]].startswith("Submitted batch job ")
    # Srun may have said before that it waits for its node.
    assert told[submit[1]].splitlines()[-1] in equipped.cluster.workers()
    assert "UP" in told["scontrol ping"]
    assert "slurmctld" in told[bundle["logs"]["controller"]]
    equipped.cluster.on("gs-2", *bundle["logs"]["worker"].split())


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
    said = json.dumps(bundle)
    assert len(said.encode()) <= 16 * 1024
    database = cluster.on("gs-1", "sh", "-c", "sed -n 's/^StoragePass=//p' /etc/slurm/slurmdbd.conf")
    secrets = [cluster.on("gs-1", "base64", "--wrap=0", "/etc/munge/munge.key"), database, "PRIVATE KEY"]
    secrets += [
        cluster.variables[name] for name in ("GPUAAS_CLIENT_SECRET", "GPUAAS_OPERATOR_TOKEN", "VAULT_SECRET_ID")
    ]
    assert all(len(secret) > 10 for secret in secrets)
    assert [secret for secret in secrets if secret in said + equipped.said] == []


def test_a_person_reads_it_and_a_program_gets_it_whole(equipped: Equipped) -> None:
    cluster = equipped.cluster
    assert answer(cluster.variables, "access", cluster.instance_id) == cluster.instance()["access"]
    shown = cluster.command("access", cluster.instance_id)
    ends(shown, 0)
    assert cluster.instance()["access"]["ssh"]["command"] in shown.stdout
    assert "$ sinfo" in shown.stdout
