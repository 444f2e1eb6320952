"""Reads the ssh keys of hosts with ssh-keyscan. Keys that are pinned at first contact come from here."""

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runner.act import dns
from runner.intent import host_keys
from runner.model.plan import AdapterError

KINDS = "ed25519,ecdsa,rsa"
# For one connection, and for the whole scan: hosts are scanned in parallel.
CONNECT_SECONDS, SCAN_SECONDS = 5, 60


@dataclass(frozen=True)
class ScannedHost:
    address: str
    keys: tuple[str, ...]


def scan(wanted: Mapping[str, tuple[str, int]]) -> tuple[dict[str, ScannedHost], dict[str, AdapterError]]:
    """The keys of each host, or an error, both by name. `wanted` has (host, port) of each name."""
    addresses, refused = dns.resolve({name: host for name, (host, _) in wanted.items()})
    scanned: dict[str, ScannedHost] = {}
    problems = {name: AdapterError(why.code, why.message, host=name) for name, why in refused.items()}
    for port in sorted({port for _, port in wanted.values()}):
        here = {name: addresses[name] for name in wanted if wanted[name][1] == port and name in addresses}
        shown = _run_keyscan(sorted(set(here.values())), port) if here else {}
        scanned |= {name: ScannedHost(address, shown[address]) for name, address in here.items() if shown.get(address)}
    silent = wanted.keys() - scanned.keys() - problems.keys()
    problems |= {name: _no_key_error(name, wanted[name][0], addresses.get(name)) for name in silent}
    return scanned, problems


def _no_key_error(name: str, host: str, address: str | None) -> AdapterError:
    what = "does not show an ssh key that could be pinned" if address else "has a name that resolves to no address"
    message = f"its allocation gives no host_keys, and {host} {what}: check that it is up and runs sshd"
    return AdapterError("host_unreachable", message, "retryable", host=name)


def _run_keyscan(addresses: list[str], port: int) -> dict[str, tuple[str, ...]]:
    """Takes checked addresses and no names: a second look-up might return another machine."""
    command = ["ssh-keyscan", "-T", str(CONNECT_SECONDS), "-t", KINDS, "-p", str(port), "--", *addresses]
    try:
        output = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            timeout=SCAN_SECONDS,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
    except OSError:
        return {}  # ssh-keyscan is not installed
    return parse_keys(output.decode("ascii", errors="replace").splitlines(keepends=True), addresses)


def parse_keys(lines: Iterable[str], addresses: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The keys in ssh-keyscan's output. Hosts wrote part of it, so only whole keys of scanned hosts count."""
    wanted = set(addresses)
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        name, _, key = line.partition(" ")
        address = name[1:].partition("]")[0] if name.startswith("[") else name
        kinds = host_keys.read_keys([key]) if line.endswith("\n") and len(key.split()) == 2 else None
        if kinds and address in wanted:
            found[address] = kinds | found.get(address, {})
    return {address: tuple(f"{kind} {kinds[kind]}" for kind in sorted(kinds)) for address, kinds in found.items()}
