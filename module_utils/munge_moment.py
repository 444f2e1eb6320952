"""When a host changes its key, by a clock that may not be its own, and whether it has. No Slurm, no Ansible."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from pathlib import Path

from .converge_files import find

# A request takes a moment to arrive, so a difference below this is the way and not the clock.
TRUSTED_SKEW_SECONDS = 5.0


def delay(at: float, reference: float, here: float) -> float:
    """Seconds from now until `at`.

    Hosts whose clocks agree with the caller's go by their own, and so change within milliseconds of each other. A
    clock that is off is left out of it: such a host counts from the request, and is late by the time that took.
    """
    off = abs(here - reference) > TRUSTED_SKEW_SECONDS
    return max(0.0, at - (reference if off else here))


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def is_live(path: Path, key: bytes) -> bool:
    found = find(path)
    return found.kind == "file" and found.digest == digest_of(key)


def started_at(state: Mapping[str, str]) -> float:
    """The moment a unit's process began, on the host's own clock."""
    started = int(state.get("ExecMainStartTimestampMonotonic") or 0) / 1e6
    return round(time.time() - (time.monotonic() - started), 3)
