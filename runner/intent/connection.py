"""Reads an allocation's connection strictly: host, user, and the key that the host must show."""

import re
from dataclasses import dataclass

from runner.intent import host_keys
from runner.intent.addresses import FAMILY, USE_IPV4, is_allowed, is_ipv6
from runner.intent.errors import IntentError
from runner.model.platform import Allocation, Member

_USERNAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True)
class Target:
    """Where to connect, as which user, and the one key that the host must show."""

    host: str
    port: int
    username: str
    key_type: str
    key_body: str


def read_target(allocation: Allocation, member: Member) -> Target:
    """The member's host with its key; IntentError if the records cannot be used."""
    host, port, username = read_address(allocation)
    return Target(host, port, username, *host_keys.key_of(allocation, member))


def read_address(allocation: Allocation) -> tuple[str, int, str]:
    """Host, port and user of the allocation's connection; IntentError names the wrong field."""
    raw = allocation.connection or {}
    host = raw.get("host")
    if not isinstance(host, str) or not is_allowed(host):
        raise _invalid(allocation, f"host {host!r} is not a host name or an address that may be used")
    if is_ipv6(host):
        raise IntentError(FAMILY, f"allocation {allocation.id}: host {host} is an IPv6 address. {USE_IPV4}")
    port = raw.get("port", 22)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        raise _invalid(allocation, f"port {port!r} is not a port number (1 to 65535)")
    username = raw.get("username")
    if not isinstance(username, str) or not _USERNAME.fullmatch(username):
        raise _invalid(allocation, f"username {username!r} is not a Unix user name")
    return host, port, username


def _invalid(allocation: Allocation, what: str) -> IntentError:
    return IntentError("connection_invalid", f"allocation {allocation.id}: {what}. Correct the allocation's connection")


def ssh_options(target: Target, alias: str) -> list[str]:
    """Options that accept one host key only. A command prints the key, so there is no known_hosts file to keep."""
    return [
        "-o UserKnownHostsFile=/dev/null -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes",
        f"-o HostKeyAlias={alias} -o HostKeyAlgorithms={_algorithms(target.key_type)}",
        f"-o KnownHostsCommand='/bin/echo {alias} {target.key_type} {target.key_body}'",
    ]


def _algorithms(key_type: str) -> str:
    return "rsa-sha2-512,rsa-sha2-256" if key_type == "ssh-rsa" else key_type
