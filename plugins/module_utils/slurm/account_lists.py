"""Which accounts each partition admits, kept in a file that slurmctld's unit applies after each start.

slurm.conf says of every partition of a shared cluster that it admits no one, so a start is closed until the file is
applied, and stays closed if that fails. The lists are not in slurm.conf, nor in a file that it includes: a change there
changes the digest by which slurmctld and its workers compare their configurations, and would restart daemons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..host.ledger import Ledger, write_atomically
from .accounting_state import PARTITION_NAME
from .commands import LISTS_SCRIPT, run

LISTS = Path("/etc/slurm/account-lists")

Run = Callable[..., tuple[int | None, str, str]]


def update(partition: str, accounts: Sequence[str]) -> str:
    """One line of scontrol's input."""
    if not PARTITION_NAME.fullmatch(partition) or not accounts:
        raise ValueError(f"{partition!r} is not the name of a partition, or its list is empty")
    return f"update PartitionName={partition} AllowAccounts={','.join(accounts)}"


def text_of(lists: Mapping[str, Sequence[str]]) -> str:
    return "".join(f"{update(name, lists[name])}\n" for name in sorted(lists))


def keep(lists: Mapping[str, Sequence[str]], owner: str, path: Path = LISTS) -> bool:
    """Write what the next start of slurmctld applies. Returns whether the file was another one."""
    content = text_of(lists).encode()
    if path.is_file() and path.read_bytes() == content:
        return False
    ledger = Ledger(owner)
    ledger.note("path", str(path), {"kind": "absent"})
    ledger.save()
    write_atomically(path, content, mode=0o644)
    return True


def apply_kept(command: Run = run, script: Path = LISTS_SCRIPT) -> None:
    """Apply the file now. A cluster of one project has none. What came of it is read from slurmctld."""
    if script.is_file():
        command(str(script))
