"""The state of the host before the adapter's first change.

The ledger is written before each change, so a killed run has noted it too. The first note of a thing is never changed;
later runs only add owners. Two members may share a host: a thing is removed with its last owner. Replaced contents are
kept beside the ledger, readable by root only. The first write also records the state of the whole host, for the
comparison after the last member has left.

Format 2 has the id of the app instance that the host serves (claim.py writes it). Format 1, and the ledger of a role
that ran without an instance, do not.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..app import STATE_DIRECTORY
from .baseline import HostState, read_host_state
from .errors import INTERVENTION, REPAIRABLE, AdapterError
from .facts import utc_time

LEDGER = STATE_DIRECTORY / "ledger.json"
FORMAT = 2

Entries = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Document:
    """A ledger as it is on disk."""

    entries: Entries = field(default_factory=dict)
    baseline: HostState | None = None
    instance: str | None = None


class Ledger:
    """Entries by `kind:name`, each with `before` (state at first sight) and `owners`."""

    def __init__(self, owner: str, directory: Path = STATE_DIRECTORY) -> None:
        self._owner = owner
        self._directory = directory
        self._path = directory / "ledger.json"
        document = read(self._path) or Document()
        self._entries, self.baseline, self.instance = document.entries, document.baseline, document.instance
        self._dirty = False

    def note(self, kind: str, name: str, before: dict[str, Any]) -> None:
        """Note a thing before its change. `before` is stored only by the first note."""
        key = f"{kind}:{name}"
        if key not in self._entries:
            self._entries[key] = {"before": before, "owners": [], "noted_at": utc_time()}
            self._dirty = True
        owners = self._entries[key]["owners"]
        if self._owner not in owners:
            owners.append(self._owner)
            self._dirty = True

    @property
    def entries(self) -> Entries:
        return self._entries

    def has(self, kind: str, name: str) -> bool:
        return f"{kind}:{name}" in self._entries

    def installed_by_us(self, package: str) -> bool:
        """Whether the adapter installed the package; false if the ledger does not have it."""
        entry = self._entries.get(f"package:{package}")
        return entry is not None and not entry["before"]["installed"]

    def keep(self, content: bytes) -> str:
        """Store content before it is replaced. Returns the name of the stored file."""
        digest = hashlib.sha256(content).hexdigest()
        kept = self._directory / "before"
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = kept / digest
        if not target.exists():
            write_atomically(target, content, mode=0o600)
        return digest

    def save(self) -> None:
        if not self._dirty:
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._path.exists():
            self.baseline = read_host_state()
        write(self._path, Document(self._entries, self.baseline, self.instance))
        self._dirty = False


def read(path: Path) -> Document | None:
    """The ledger; None if the file does not exist."""
    try:
        document = json.loads(path.read_text())
        version, instance = document["format"], document.get("instance")
        if version not in (1, FORMAT):
            raise AdapterError(
                "ledger_newer",
                f"{path} on the host has format {version!r}; this version of the adapter reads formats 1 and {FORMAT}."
                " Nothing was changed. Use the version of the adapter that set the host up, or a later one.",
                INTERVENTION,
            )
        if not isinstance(instance, str | None):
            raise TypeError
        return Document(dict(document["entries"]), document.get("baseline"), instance)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise AdapterError(
            "ledger_unreadable",
            f"{path} on the host cannot be read, so the host's former state is unknown. Clean the host by hand, or"
            " have it rebuilt.",
            REPAIRABLE,
        ) from None


def write(path: Path, document: Document) -> None:
    content = {
        "format": FORMAT,
        "instance": document.instance,
        "baseline": document.baseline,
        "entries": dict(sorted(document.entries.items())),
    }
    write_atomically(path, json.dumps(content, indent=1, sort_keys=True).encode(), mode=0o600)


def write_atomically(path: Path, content: bytes, mode: int, uid: int | None = None, gid: int | None = None) -> None:
    """Replace a file in one step. The new file never has a wider mode than `mode`, since it may hold a secret."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)  # of a run that was killed, or a pipe in a directory of a user
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
            if uid is not None or gid is not None:
                os.fchown(handle.fileno(), -1 if uid is None else uid, -1 if gid is None else gid)
            os.fchmod(handle.fileno(), mode)
            handle.flush()
            os.fsync(handle.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
