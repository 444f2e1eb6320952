"""Whom we may dial: never ourselves, whatever an allocation's record says or a name resolves to.

What is said of a host comes from an API, and what its name means from DNS. Neither may lead the key that opens
machines to the machine that holds it, nor to addresses that mean something else on every machine.
"""

import ipaddress
import re
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

HOSTNAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*", re.I | re.A
)
_PLAIN = re.compile(r"[A-Za-z0-9.:-]{1,253}")
# The C library reads all of these as numbers of an address: 2130706433, 0x7f000001 and 127.0x1 are 127.0.0.1.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.I)
_OURSELVES = re.compile(r"(.*\.)?localhost(\.localdomain)?|ip6-(localhost|loopback)|.*\.localdomain", re.I)
_LOOKUPS_AT_ONCE = 16
# Slurm's daemons are given IPv4 addresses only: see docs/decisions/0017.
FAMILY = "address_family_unsupported"
USE_IPV4 = "Clusters are built over IPv4: give the allocation's connection an IPv4 address, or a name that has one"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_dialable(host: str) -> bool:
    """Whether a record may name this host at all: by its spelling alone, nothing is looked up."""
    if not _PLAIN.fullmatch(host):  # an IPv6 zone could hold anything, a template too
        return False
    try:
        return _is_somebody(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not HOSTNAME.fullmatch(host) or _OURSELVES.fullmatch(host):
        return False
    # The last label of a name is never a number: that would be an address written to be misread.
    return not _NUMBER.fullmatch(host.rpartition(".")[2])


def is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _is_somebody(address: Address) -> bool:
    """Whether an address can be another machine's."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or _translated(address)
        if inner is not None and not _is_somebody(inner):
            return False
        if address.is_site_local or address in _COMPATIBLE:
            return False
    elif address in _THIS_NETWORK or address.is_reserved:
        return False
    return not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified)


_THIS_NETWORK = ipaddress.ip_network("0.0.0.0/8")
_COMPATIBLE = ipaddress.ip_network("::/96")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def _translated(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None


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


def settle(tree: dict[str, Any]) -> dict[str, Refusal]:
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
        if "slurm_controller_addr" in shared:
            controller = hosts.get(shared["slurm_controller_host"], {})
            shared["slurm_controller_addr"] = controller.get("ansible_host", "")
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
