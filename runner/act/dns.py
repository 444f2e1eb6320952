"""Resolves hosts once, and refuses addresses of the runner's own machine."""

import ipaddress
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from runner.intent.addresses import FAMILY, USE_IPV4, is_dialable
from runner.model.app import App

_LOOKUPS_AT_ONCE = 16


def is_own(address: str) -> bool:
    """Whether the address is one of this machine's. Nothing is sent: a route to oneself starts where it ends."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return bool(ipaddress.ip_address(probe.getsockname()[0]) == ipaddress.ip_address(address))
    except OSError:
        return False  # no way there, so it is not here


@dataclass(frozen=True)
class Refusal:
    """Why a host is not dialled. A passing one may be over at the next try."""

    code: str
    message: str
    passing: bool = False


def settle(tree: dict[str, Any], app: App) -> dict[str, Refusal]:
    """Resolve each host of an inventory once; for each that may not be dialled, why. Such hosts are taken out.

    The address that was checked is dialled, and workers are given the same one for their controller: asked again, by
    us or by a host, the name might mean another machine.
    """
    hosts: dict[str, dict[str, Any]] = tree["all"]["hosts"]
    addresses, refused = look_up({name: variables["ansible_host"] for name, variables in hosts.items()})
    for name in hosts.keys() - addresses.keys() - refused.keys():
        message = (
            f"{hosts[name]['ansible_host']} resolves to no address. Check the name, and the resolver of the runner"
        )
        refused[name] = Refusal("host_unreachable", message, passing=True)
    for name, address in addresses.items():
        hosts[name]["ansible_host"] = address
    for name in refused:
        del hosts[name]
    for group in tree["all"]["children"].values():
        for name in refused:
            group["hosts"].pop(name, None)
        shared = group.get("vars", {})
        controller, address = app.controller_variables
        if address in shared:
            shared[address] = hosts.get(shared[controller], {}).get("ansible_host", "")
    return refused


def look_up(hosts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Refusal]]:
    """Of each host, by its name, the address that was checked; of each that may not be dialled, why.

    Of several addresses the lowest is taken, so that the answer is the same however the resolver orders them.
    """
    addresses: dict[str, str] = {}
    refused: dict[str, Refusal] = {}
    with ThreadPoolExecutor(_LOOKUPS_AT_ONCE) as pool:
        for (name, host), found in zip(hosts.items(), pool.map(_addresses, hosts.values()), strict=True):
            wrong = next((one for one in found if not is_dialable(one) or is_own(one)), None)
            usable = [one for one in found if ":" not in one]
            if wrong:
                message = (
                    f"{host} resolves to {wrong}, which is an address of the runner's machine or a reserved address."
                )
                refused[name] = Refusal("connection_invalid", f"{message} Correct the allocation's connection")
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
