"""An allocation's connection, read strictly: whom we connect to, as whom, and the key the host must show."""

import re
from dataclasses import dataclass

from runner.intent import host_keys
from runner.intent.addresses import FAMILY, USE_IPV4, is_dialable, is_ipv6
from runner.intent.errors import IntentError
from runner.model.platform import Allocation, Member

_USERNAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True)
class Target:
    """Where and as whom to connect, and the one key the host must show."""

    host: str
    port: int
    username: str
    key_type: str
    key_body: str


def read_target(allocation: Allocation, member: Member) -> Target:
    """Where the member is and the key it must show, or IntentError with what is wrong."""
    host, port, username = read_address(allocation)
    return Target(host, port, username, *host_keys.key_of(allocation, member))


def read_address(allocation: Allocation) -> tuple[str, int, str]:
    """The allocation's connection, or IntentError with the field that is wrong."""
    raw = allocation.connection or {}
    host = raw.get("host")
    if not isinstance(host, str) or not is_dialable(host):
        raise _bad(allocation, f"host {host!r} is not a host name or an address that may be used")
    if is_ipv6(host):
        raise IntentError(FAMILY, f"allocation {allocation.id}: host {host} is an IPv6 address. {USE_IPV4}")
    port = raw.get("port", 22)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        raise _bad(allocation, f"port {port!r} is not a port number (1 to 65535)")
    username = raw.get("username")
    if not isinstance(username, str) or not _USERNAME.fullmatch(username):
        raise _bad(allocation, f"username {username!r} is not a Unix user name")
    return host, port, username


def _bad(allocation: Allocation, what: str) -> IntentError:
    return IntentError("connection_invalid", f"allocation {allocation.id}: {what}. Correct the allocation's connection")


def ssh_options(target: Target, alias: str) -> list[str]:
    """The one key the host must show is given by a command that prints it: there is no known_hosts to keep or lose."""
    return [
        "-o UserKnownHostsFile=/dev/null -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes",
        f"-o HostKeyAlias={alias} -o HostKeyAlgorithms={_algorithms(target.key_type)}",
        f"-o KnownHostsCommand='/bin/echo {alias} {target.key_type} {target.key_body}'",
    ]


def _algorithms(key_type: str) -> str:
    return "rsa-sha2-512,rsa-sha2-256" if key_type == "ssh-rsa" else key_type
