"""Resolves hosts once, and refuses addresses of the runner's own machine."""

import ipaddress
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from runner.intent.addresses import FAMILY, USE_IPV4, is_allowed
from runner.model.app import App

_LOOKUPS_AT_ONCE = 16


def is_own(address: str) -> bool:
    """Whether the address is one of this machine's: then it is also the source of the route to it. Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return bool(ipaddress.ip_address(probe.getsockname()[0]) == ipaddress.ip_address(address))
    except OSError:
        return False  # there is no route, so the address is not local


@dataclass(frozen=True)
class Refusal:
    """Why no connection is made to a host."""

    code: str
    message: str
    retryable: bool = False


def resolve_hosts(tree: dict[str, Any], app: App) -> dict[str, Refusal]:
    """Replace each host name of an inventory by its address; remove and return the hosts that are refused.

    Plays connect to the address that was checked, and members get the same one for their lead: a second look-up, by the
    runner or by a host, might return another machine.
    """
    hosts: dict[str, dict[str, Any]] = tree["all"]["hosts"]
    addresses, refused = resolve({name: variables["ansible_host"] for name, variables in hosts.items()})
    for name in hosts.keys() - addresses.keys() - refused.keys():
        message = f"{hosts[name]['ansible_host']} resolves to no address. Check the name, and the runner's resolver"
        refused[name] = Refusal("host_unreachable", message, retryable=True)
    for name, address in addresses.items():
        hosts[name]["ansible_host"] = address
    for name in refused:
        del hosts[name]
    for group in tree["all"]["children"].values():
        for name in refused:
            group["hosts"].pop(name, None)
        shared = group.get("vars", {})
        lead, address = app.lead_variables
        if address in shared:
            shared[address] = hosts.get(shared[lead], {}).get("ansible_host", "")
    return refused


def resolve(hosts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Refusal]]:
    """The checked address of each host, and the hosts that are refused, both by name.

    The lowest of several addresses is used, so that the order of the resolver's answer does not matter.
    """
    addresses: dict[str, str] = {}
    refused: dict[str, Refusal] = {}
    with ThreadPoolExecutor(_LOOKUPS_AT_ONCE) as pool:
        for (name, host), found in zip(hosts.items(), pool.map(_addresses, hosts.values()), strict=True):
            forbidden = next((one for one in found if not is_allowed(one) or is_own(one)), None)
            usable = [one for one in found if ":" not in one]
            if forbidden:
                problem = f"resolves to {forbidden}, which is an address of the runner's machine or a reserved address"
                message = f"{host} {problem}. Correct the allocation's connection"
                refused[name] = Refusal("connection_invalid", message)
            elif usable:
                addresses[name] = min(usable, key=ipaddress.ip_address)
            elif found:
                refused[name] = Refusal(FAMILY, f"{host} has IPv6 addresses only, such as {found[0]}. {USE_IPV4}")
    return addresses, refused


def _addresses(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
