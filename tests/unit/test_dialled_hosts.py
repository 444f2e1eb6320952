"""Which hosts the runner dials: never its own machine, never an address that was not checked, and only IPv4."""

import ipaddress
import json
import socket
import subprocess
from typing import Any
from uuid import UUID

import pytest

from runner.act import dns
from runner.act.inventory import build
from runner.slurm.app import SLURM
from tests.unit.worlds import KEY, add, allocation, controller, instance, worker


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def answer(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", answer)


def tree_with(host: str) -> dict[str, Any]:
    own: dict[str, Any] = {"hosts": {"worker-1": {}}}
    return {"all": {"hosts": {"worker-1": {"ansible_host": host}}, "children": {"worker": own, "instance_1": own}}}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "169.254.169.254", "::ffff:127.0.0.1", "0.0.0.0"])
def test_a_name_that_means_ourselves_is_not_dialled(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    resolving(monkeypatch, "192.0.2.7", address)
    tree = tree_with("innocent.example.org")
    refusal = dns.resolve_hosts(tree, SLURM)["worker-1"]
    assert refusal.code == "connection_invalid" and address in refusal.message
    assert tree["all"]["hosts"] == {} and tree["all"]["children"]["worker"]["hosts"] == {}


def own_addresses() -> list[str]:
    listed = subprocess.run(["ip", "-j", "address"], capture_output=True, text=True, check=True).stdout
    found = [one["local"] for link in json.loads(listed) for one in link["addr_info"]]
    return [one for one in found if not ipaddress.ip_address(one).is_link_local]


def test_no_address_of_this_machine_is_dialled() -> None:
    mine = own_addresses()
    assert mine
    for address in mine:
        refusal = dns.resolve_hosts(tree_with(address), SLURM)["worker-1"]
        assert refusal.code == "connection_invalid" and address in refusal.message
    assert not dns.is_own("192.0.2.7")


def test_what_was_checked_is_what_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "192.0.2.7")
    tree = tree_with("innocent.example.org")
    assert dns.resolve_hosts(tree, SLURM) == {}
    assert tree["all"]["hosts"]["worker-1"]["ansible_host"] == "192.0.2.7"


def test_a_name_without_an_address_is_not_dialled_and_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch)
    tree = tree_with("absent.invalid")
    refusal = dns.resolve_hosts(tree, SLURM)["worker-1"]
    assert (refusal.code, refusal.retryable) == ("host_unreachable", True) and tree["all"]["hosts"] == {}


@pytest.mark.parametrize("literal", ["2001:db8::7", "fd00::7", "::ffff:10.0.0.7"])
def test_an_ipv6_address_in_a_record_is_refused_with_the_next_step(literal: str) -> None:
    connection = {"host": literal, "port": 22, "username": "ops", "host_keys": [KEY]}
    tree, problems = build(SLURM, instance(), [controller()], {UUID(int=101): allocation(1, connection=connection)})
    (problem,) = problems.values()
    assert (
        problem.code == "address_family_unsupported" and "give the allocation's connection an IPv4" in problem.message
    )
    assert tree["all"]["hosts"] == {}


def test_a_name_with_ipv6_addresses_only_is_refused_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, "2001:db8::7")
    tree = tree_with("six.example.org")
    refusal = dns.resolve_hosts(tree, SLURM)["worker-1"]
    assert (refusal.code, refusal.retryable) == ("address_family_unsupported", False) and tree["all"]["hosts"] == {}
    assert "IPv4 address" in refusal.message


@pytest.mark.parametrize("answer", [("2001:db8::7", "192.0.2.9", "192.0.2.10"), ("192.0.2.10", "192.0.2.9")])
def test_of_several_addresses_the_same_ipv4_one_is_taken(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    resolving(monkeypatch, *answer)
    tree = tree_with("many.example.org")
    assert dns.resolve_hosts(tree, SLURM) == {} and tree["all"]["hosts"]["worker-1"]["ansible_host"] == "192.0.2.9"


def test_workers_are_given_the_address_of_their_controller_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {UUID(int=100 + number): allocation(number) for number in (1, 2)}
    hosts[UUID(int=101)] = allocation(1, connection={"host": "ctl.example.org", "username": "ops", "host_keys": [KEY]})
    tree, _ = build(SLURM, instance(), [controller(), worker(add(2), 2)], hosts)
    (shared,) = [group["vars"] for group in tree["all"]["children"].values() if "vars" in group]
    assert shared["slurm_controller_addr"] == "ctl.example.org"
    resolving(monkeypatch, "192.0.2.7")
    dns.resolve_hosts(tree, SLURM)
    first = tree["all"]["hosts"][shared["slurm_controller_host"]]
    assert shared["slurm_controller_addr"] == first["ansible_host"] == "192.0.2.7"


def test_without_its_controller_a_worker_is_given_no_address_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tree, _ = build(SLURM, instance(), [controller()], {UUID(int=101): allocation(1)})
    resolving(monkeypatch, "127.0.0.1")
    assert dns.resolve_hosts(tree, SLURM)
    assert [
        group["vars"]["slurm_controller_addr"] for group in tree["all"]["children"].values() if "vars" in group
    ] == [""]
