"""Which hosts the runner may connect to: never its own machine, and no reserved address.

Host names come from an API and addresses from DNS. Neither may make the runner use its ssh key on its own machine, or
on an address that means another machine everywhere, such as a link-local one.
"""

import ipaddress
import re

HOSTNAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*", re.I | re.A
)
_PLAIN = re.compile(r"[A-Za-z0-9.:-]{1,253}")
# The C library reads these as parts of an address: 2130706433, 0x7f000001 and 127.0x1 are 127.0.0.1.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.I)
_LOCALHOST = re.compile(r"(.*\.)?localhost(\.localdomain)?|ip6-(localhost|loopback)|.*\.localdomain", re.I)
# Hosts get IPv4 addresses only: see docs/decisions/0017.
FAMILY = "address_family_unsupported"
USE_IPV4 = "Clusters are built over IPv4: give the allocation's connection an IPv4 address, or a name that has one"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_allowed(host: str) -> bool:
    """Whether the runner may connect to this name or address. Nothing is looked up."""
    if not _PLAIN.fullmatch(host):  # an IPv6 zone could contain anything, such as a template
        return False
    try:
        return _is_unicast(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not HOSTNAME.fullmatch(host) or _LOCALHOST.fullmatch(host):
        return False
    # The last label of a host name is never a number: that would be a disguised address.
    return not _NUMBER.fullmatch(host.rpartition(".")[2])


def is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _is_unicast(address: Address) -> bool:
    """Whether an address can be the address of another machine."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or _translated(address)
        if inner is not None and not _is_unicast(inner):
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
