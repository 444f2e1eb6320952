"""When a host changes its munge key, by the caller's clock, and whether it has done so."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

from ..host.files import find

# The time that a request takes looks like a clock that is ahead. Up to these limits clocks count as equal.
TRUSTED_AHEAD_SECONDS = 10.0
TRUSTED_BEHIND_SECONDS = 1.0


def delay(at: float, here: float, skews: list[float]) -> float:
    """Seconds from now until `at`, a time by the caller's clock. `skews` are measurements of how far ours is ahead.

    A host whose clock agrees with the caller's uses its own clock, so such hosts switch within milliseconds. Another
    host corrects by the smallest measured skew, which includes the least transport time.
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
    """The start of a unit's process, by the host's clock."""
    started = int(state.get("ExecMainStartTimestampMonotonic") or 0) / 1e6
    return round(time.time() - (time.monotonic() - started), 3)
