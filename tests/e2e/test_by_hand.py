"""A person with Ansible's own commands sees and reaches what the runner sees and reaches."""

import json
from typing import Any

import pytest

from runner.act import inventory, package_policy
from runner.model.platform import Allocation, AppInstance, Member
from runner.slurm.app import SLURM
from tests.commands import EXEC, ends, fails
from tests.e2e.cluster import Cluster, by_hand, in_vault
from tests.e2e.conftest import Deployed
from tests.platform_process import Doc
from tests.runner_process import COMMAND

pytestmark = [pytest.mark.e2e, pytest.mark.scenario("deployed", independent=True)]


def expected(cluster: Cluster) -> dict[str, Any]:
    """The runner's own inventory of one instance, from what the API reports now. Without exec, policy was not asked."""
    allocations = cluster.api.get(f"/projects/{cluster.variables['GPUAAS_PROJECT_ID']}/allocations").json()["items"]
    records = [Allocation.model_validate(one) for one in allocations]
    members = [Member.model_validate(one) for one in cluster.members()]
    tree, problems = inventory.build(
        SLURM,
        AppInstance.model_validate(cluster.instance()),
        members,
        {one.id: one for one in records},
        terms={SLURM.package_source_variables[0]: {"denied": package_policy.NOT_ASKED}},
    )
    assert problems == {}
    return dict(tree["all"])


def plain(value: Any) -> Any:
    """Without Ansible's marks for text from outside, which it will not take for a template."""
    if isinstance(value, dict):
        return (
            value["__ansible_unsafe"] if set(value) == {"__ansible_unsafe"} else {k: plain(v) for k, v in value.items()}
        )
    return value


def test_the_inventory_plugin_lists_the_hosts_and_variables_the_runner_uses(deployed: Deployed) -> None:
    done = by_hand(deployed.split, "ansible-inventory", "-i", "gpuaas.yml", "--list")
    ends(done, 0)
    listed: Doc = json.loads(done.stdout)
    hosts: Doc = listed["_meta"]["hostvars"]
    names = set()
    for one in (deployed.split, deployed.same_node):
        tree = expected(one)
        group = next(name for name in tree["children"] if name.startswith("instance_"))
        shared = tree["children"][group]["vars"]
        names |= set(tree["hosts"])
        assert set(listed[group]["hosts"]) == set(tree["hosts"])
        for name, variables in tree["hosts"].items():
            # ansible_local is the one fact that Ansible makes a variable whatever is set; nothing here reads it.
            assert plain(hosts[name]) == {**shared, **variables, "ansible_local": {}}
    assert set(hosts) == names
    assert set(listed["controller"]["hosts"]) | set(listed["worker"]["hosts"]) == names


def test_the_graph_groups_members_by_component_and_by_instance(deployed: Deployed) -> None:
    done = by_hand(deployed.split, "ansible-inventory", "-i", "gpuaas.yml", "--graph")
    ends(done, 0)
    for one in (deployed.split, deployed.same_node):
        assert f"@instance_{one.instance_id.replace('-', '_')}:" in done.stdout
        for member in one.members():
            assert done.stdout.count(f"{member['component_key']}-{member['id'][:8]}") == 2


def test_the_inventory_holds_no_secret(deployed: Deployed) -> None:
    one = deployed.split
    done = by_hand(one, "ansible-inventory", "-i", "gpuaas.yml", "--list")
    munge_key = one.on(one.controller_host, "base64", "--wrap=0", "/etc/munge/munge.key")
    secrets = [munge_key, "PRIVATE KEY"]
    secrets += [one.variables[name] for name in ("GPUAAS_CLIENT_SECRET", "GPUAAS_OPERATOR_TOKEN", "VAULT_SECRET_ID")]
    assert [secret for secret in secrets if secret in done.stdout + done.stderr] == []


def test_a_person_runs_a_playbook_with_the_instances_key_and_nothing_else(deployed: Deployed) -> None:
    one = deployed.split
    group = f"instance_{one.instance_id.replace('-', '_')}"
    play = ("ansible-playbook", "-i", "gpuaas.yml", "playbooks/observe.yml", "--limit", group)
    done = by_hand(one, COMMAND, *EXEC, "--instance", one.instance_id, "--", *play)
    ends(done, 0)
    assert f"controller-{one.controller()['id'][:8]}" in done.stdout
    assert "failed=0" in done.stdout
    assert "ok=0" not in done.stdout


def test_exec_passes_the_commands_exit_code_through(cluster: Cluster) -> None:
    ends(
        by_hand(
            cluster,
            COMMAND,
            *EXEC,
            "--instance",
            cluster.instance_id,
            "--",
            "sh",
            "-c",
            "exit 7",
        ),
        7,
    )


def test_a_jwt_key_deleted_in_vault_is_replaced_and_earlier_tokens_are_refused(
    deployed: Deployed,
) -> None:
    """As docs/usage/rotation.md has it. The last test here, since it restarts daemons."""
    one = deployed.same_node
    host, before = one.controller_host, in_vault(one)
    slurmd = one.process(host, "slurmd")
    token = one.on(host, "scontrol", "token")
    assert one.on(host, "env", token, "squeue", "--noheader") == ""
    in_vault(one, {name: secret for name, secret in before.items() if name != "jwt_key"})
    play = ("ansible-playbook", "-i", "gpuaas.yml", "playbooks/deploy.yml", "--limit")
    controller = f"controller-{one.controller()['id'][:8]}"
    done = by_hand(one, COMMAND, *EXEC, "--instance", one.instance_id, "--", *play, controller)
    ends(done, 0)
    after = in_vault(one)
    assert {name for name in after if after[name] != before[name]} == {"jwt_key"}
    assert one.on(host, "base64", "--wrap=0", "/etc/slurm/jwt_hs256.key") == after["jwt_key"]
    assert not [secret for secret in after.values() if secret in done.stdout + done.stderr]
    for command in (["squeue"], ["sacctmgr", "list", "cluster"]):
        fails(one.fleet.exec(host, ["env", token, *command]), why="signed with the former key")
        ends(one.fleet.exec(host, ["env", one.on(host, "scontrol", "token"), *command]), 0)
    assert one.process(host, "slurmd") == slurmd
