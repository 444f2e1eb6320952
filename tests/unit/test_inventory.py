"""The API's answer becomes an inventory only after it was checked."""

import json
import re
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.act import inventory
from runner.act.inventory import build
from runner.intent.connection import read_target
from runner.intent.errors import IntentError
from runner.slurm import cluster_config
from runner.slurm.app import SLURM
from runner.slurm.cluster_config import read_config
from tests.unit.worlds import KEY, add, allocation, controller, instance, worker

ALLOCATIONS = {UUID(int=100 + number): allocation(number) for number in range(1, 5)}


def connection(**changes: Any) -> dict[str, Any]:
    return {"host": "10.0.0.9", "port": 22, "username": "ops", "host_keys": [KEY]} | changes


def test_a_member_is_a_host_in_the_groups_of_its_component_and_instance() -> None:
    joining = worker(add(2), 2)
    tree, problems = build(SLURM, instance(), [controller(), joining], ALLOCATIONS)
    assert problems == {}
    hosts, groups = tree["all"]["hosts"], tree["all"]["children"]
    name = f"worker-{joining.id.hex[:8]}"
    assert set(hosts) == {"controller-c0000000", name}
    assert hosts[name]["ansible_host"] == "10.0.0.2"
    assert list(groups["worker"]["hosts"]) == [name]
    shared = groups["instance_00000000_0000_0000_0000_000000000007"]
    assert set(shared["hosts"]) == set(hosts)
    assert shared["vars"]["slurm_controller_addr"] == "10.0.0.1"
    assert shared["vars"]["slurm_controller_host"] == "controller-c0000000"


def test_the_same_input_gives_the_same_inventory_in_whatever_order_it_came() -> None:
    members = [controller(), *(worker(add(2), 2) for _ in range(3))]
    one, _ = build(SLURM, instance(), members, ALLOCATIONS)
    other, _ = build(SLURM, instance(), members[::-1], ALLOCATIONS)
    assert json.dumps(one) == json.dumps(other)


def test_same_node_placement_gives_two_hosts_with_one_address() -> None:
    tree, _ = build(SLURM, instance(), [controller(), worker(add(1), 1)], ALLOCATIONS)
    assert [host["ansible_host"] for host in tree["all"]["hosts"].values()] == ["10.0.0.1", "10.0.0.1"]


def test_the_hosts_key_is_pinned_and_no_other_is_accepted() -> None:
    tree, _ = build(SLURM, instance(), [controller()], ALLOCATIONS)
    options = tree["all"]["hosts"]["controller-c0000000"]["ansible_ssh_common_args"]
    assert KEY in options
    assert "StrictHostKeyChecking=yes" in options
    assert "UserKnownHostsFile=/dev/null" in options


def test_a_member_that_cannot_be_reached_as_recorded_is_left_out_with_the_reason() -> None:
    bad = {**ALLOCATIONS, UUID(int=102): allocation(2, status="released")}
    joining = worker(add(2), 2)
    tree, problems = build(SLURM, instance(), [controller(), joining], bad)
    assert list(tree["all"]["hosts"]) == ["controller-c0000000"]
    assert problems[joining.id].code == "allocation_not_active"


@pytest.mark.parametrize(
    "host",
    [
        "-oProxyCommand=touch /tmp/x",
        "host name",
        "host;reboot",
        "{{ lookup('pipe', 'id') }}",
        "127.0.0.1",
        "::1",
        "localhost",
        "169.254.169.254",
        "0.0.0.0",
        "999.1.1.1",
        "a/b",
        "",
        "a\nb",
        "fd00::1%{{ lookup('pipe', 'id') }}",
        "fd00::1%eth0\nExecStartPre=/bin/evil",
        None,
        42,
    ],
)
def test_an_invalid_host_name_is_an_error(host: Any) -> None:
    with pytest.raises(IntentError, match="host") as error:
        read_target(allocation(1, connection=connection(host=host)), controller())
    assert error.value.code == "connection_invalid"


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 0},
        {"port": 70000},
        {"port": "22 -oX=y"},
        {"port": True},
        {"username": "root -l"},
        {"username": "{{ x }}"},
        {"username": ""},
        {"host_keys": ["ssh-ed25519 not*base64"]},
        {"host_keys": [KEY + "\nevil"], "username": "Ops"},
        {"host_keys": ["ssh-ed25519 " + "A" * 68, "ssh-dss AAAA"]},
    ],
)
def test_a_connection_with_a_wrong_field_is_an_error(changes: Any) -> None:
    with pytest.raises(IntentError) as error:
        read_target(allocation(1, connection=connection(**changes)), controller())
    assert error.value.code == "connection_invalid"


SAFE_OPTION = re.compile(r"[A-Za-z0-9 _.,:/=+'@-]*")


@given(st.fixed_dictionaries({name: st.text() | st.integers() | st.none() for name in ("host", "port", "username")}))
def test_whatever_the_connection_holds_only_plain_text_reaches_ssh(fields: dict[str, Any]) -> None:
    try:
        variables = inventory.host_vars(controller(), allocation(1, connection=connection(**fields)))
    except IntentError:
        return
    assert not variables["ansible_host"].startswith("-")
    for value in variables.values():
        assert not isinstance(value, str) or SAFE_OPTION.fullmatch(value)


@given(st.dictionaries(st.text(), st.text() | st.integers(), max_size=3))
def test_whatever_config_holds_each_setting_stays_on_its_line(settings: dict[str, Any]) -> None:
    try:
        config = read_config(instance(config={"slurm": settings}))
    except IntentError:
        return
    for key, value in config.slurm.items():
        assert key.isalnum() and key.isascii()
        assert not set(str(value)) & set("\n\r#{}\"'\\ $`")
        assert key.lower() in cluster_config.CHOOSABLE
