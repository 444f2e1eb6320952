"""A daemon told to start anew. Whoever asks watches it: they know what it has to do before it counts as up."""

from __future__ import annotations

import subprocess


def restart(unit: str) -> None:
    """Not blocking: a start that hangs is noticed by the caller's clock."""
    for command in (("reset-failed", unit), ("--no-block", "restart", unit)):
        subprocess.run(["systemctl", *command], capture_output=True, check=False, timeout=60)
