"""What was on the host before we first touched it.

The ledger is written before each change, so that a run killed in the middle has still noted it. The first
note of a thing stands for ever; later runs only add who asked. Two members may share a host: a thing may go
when its last owner goes. Contents we replace are kept beside the ledger, readable by root alone. The first time it is
written it gets a picture of the whole host, to compare with when the last of us has left.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from .adapter_error import REPAIRABLE, AdapterError
from .host_baseline import Picture, take

STATE_DIRECTORY = Path("/var/lib/gpuaas-slurm")


class Ledger:
    """Entries by `kind:name`, each with `before` (state at first sight) and `owners`."""

    def __init__(self, owner: str, directory: Path = STATE_DIRECTORY) -> None:
        self._owner = owner
        self._directory = directory
        self._path = directory / "ledger.json"
        self._entries, self.baseline = read(self._path)
        self._dirty = False

    def note(self, kind: str, name: str, before: dict[str, Any]) -> None:
        """Remember a thing we are about to make ours. `before` counts only at the first note."""
        key = f"{kind}:{name}"
        if key not in self._entries:
            self._entries[key] = {"before": before, "owners": [], "noted_at": _now()}
            self._dirty = True
        owners = self._entries[key]["owners"]
        if self._owner not in owners:
            owners.append(self._owner)
            self._dirty = True

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        return self._entries

    def knows(self, kind: str, name: str) -> bool:
        return f"{kind}:{name}" in self._entries

    def brought(self, package: str) -> bool:
        """Whether we installed the package. One that the ledger does not know we did not."""
        entry = self._entries.get(f"package:{package}")
        return entry is not None and not entry["before"]["installed"]

    def keep(self, content: bytes) -> str:
        """Keep content that is about to be replaced; returns the name it is kept under."""
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
            self.baseline = take()
        write(self._path, self._entries, self.baseline)
        self._dirty = False


def read(path: Path) -> tuple[dict[str, dict[str, Any]], Picture | None]:
    """Entries, and what the host was like before all of them; without a ledger, neither."""
    try:
        document = json.loads(path.read_text())
        return dict(document["entries"]), document.get("baseline")
    except FileNotFoundError:
        return {}, None
    except (ValueError, KeyError, TypeError):
        raise AdapterError(
            "ledger_unreadable",
            f"{path} on the host cannot be read, so what was there before is not known. Clean the host by hand or"
            " give it back to be rebuilt.",
            REPAIRABLE,
        ) from None


def write(path: Path, entries: dict[str, dict[str, Any]], baseline: Picture | None) -> None:
    document = {"format": 1, "baseline": baseline, "entries": dict(sorted(entries.items()))}
    write_atomically(path, json.dumps(document, indent=1, sort_keys=True).encode(), mode=0o600)


def write_atomically(path: Path, content: bytes, mode: int, uid: int | None = None, gid: int | None = None) -> None:
    """Readers see the old file or the new one; a secret never has a wider mode, not for a moment."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
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


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
