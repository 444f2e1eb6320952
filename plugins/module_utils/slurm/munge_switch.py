"""When a host changes its key, by a clock that may not be its own, and whether it has. No Slurm, no Ansible."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

from ..host.files import find

# A request takes a while to arrive, which looks like a clock that is ahead. So much of it is the way and not the clock.
TRUSTED_AHEAD_SECONDS = 10.0
TRUSTED_BEHIND_SECONDS = 1.0


def delay(at: float, here: float, skews: list[float]) -> float:
    """Seconds from now until `at`, a moment by the caller's clock. `skews` is how far ahead ours was seen to be.

    Hosts whose clocks agree with the caller's go by their own, and so change within milliseconds of each other. One
    whose clock is off goes by what it is off, which is never less than the smallest that was seen.
    """
    skew = min(skews)
    agrees = -TRUSTED_BEHIND_SECONDS <= skew <= TRUSTED_AHEAD_SECONDS
    return max(0.0, at + (0.0 if agrees else skew) - here)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def is_live(path: Path, key: bytes) -> bool:
    found = find(path)
    return found.kind == "file" and found.digest == digest_of(key)


def started_at(state: Mapping[str, str]) -> float:
    """The moment a unit's process began, on the host's own clock."""
    started = int(state.get("ExecMainStartTimestampMonotonic") or 0) / 1e6
    return round(time.time() - (time.monotonic() - started), 3)
