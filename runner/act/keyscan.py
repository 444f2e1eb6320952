"""Reads the ssh keys that hosts show. The edge of pinning at first sight: what is seen here is trusted from then on."""

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runner.act import dns
from runner.intent import host_keys
from runner.model.plan import AdapterError

KINDS = "ed25519,ecdsa,rsa"
# Of one connection, and of all of them together: hosts are asked at the same time.
PATIENCE_SECONDS, LONGEST_SECONDS = 5, 60


@dataclass(frozen=True)
class Seen:
    address: str
    keys: tuple[str, ...]


def scan(wanted: Mapping[str, tuple[str, int]]) -> tuple[dict[str, Seen], dict[str, AdapterError]]:
    """Of each host by its name, which is at (host, port): what it shows, or why that is not known."""
    addresses, refused = dns.look_up({name: host for name, (host, _) in wanted.items()})
    seen: dict[str, Seen] = {}
    problems = {name: AdapterError(why.code, why.message, host=name) for name, why in refused.items()}
    for port in sorted({port for _, port in wanted.values()}):
        here = {name: addresses[name] for name in wanted if wanted[name][1] == port and name in addresses}
        shown = _ask(sorted(set(here.values())), port) if here else {}
        seen |= {name: Seen(address, shown[address]) for name, address in here.items() if shown.get(address)}
    silent = wanted.keys() - seen.keys() - problems.keys()
    problems |= {name: _silent(name, wanted[name][0], addresses.get(name)) for name in silent}
    return seen, problems


def _silent(name: str, host: str, address: str | None) -> AdapterError:
    what = "does not show an ssh key that could be pinned" if address else "has a name that resolves to no address"
    message = f"its allocation gives no host_keys, and {host} {what}: check that it is up and runs sshd"
    return AdapterError("host_unreachable", message, "retryable", host=name)


def _ask(addresses: list[str], port: int) -> dict[str, tuple[str, ...]]:
    """Addresses only, each checked: a name asked again might mean another machine."""
    command = ["ssh-keyscan", "-T", str(PATIENCE_SECONDS), "-t", KINDS, "-p", str(port), "--", *addresses]
    try:
        output = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            timeout=LONGEST_SECONDS,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as late:
        output = late.stdout or b""
    except OSError:
        return {}  # without ssh there is no play either
    return read(output.decode("ascii", errors="replace").splitlines(keepends=True), addresses)


def read(lines: Iterable[str], addresses: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """ssh-keyscan's answer. Hosts wrote part of it: what is not a whole, plain key of one we asked is left out."""
    asked = set(addresses)
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        name, _, key = line.partition(" ")
        address = name[1:].partition("]")[0] if name.startswith("[") else name
        kinds = host_keys.read_keys([key]) if line.endswith("\n") and len(key.split()) == 2 else None
        if kinds and address in asked:
            found[address] = kinds | found.get(address, {})
    return {address: tuple(f"{kind} {kinds[kind]}" for kind in sorted(kinds)) for address, kinds in found.items()}
