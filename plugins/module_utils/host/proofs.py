"""Commands that show that a service works; that its process runs is not enough."""

from __future__ import annotations

import subprocess
from typing import Any

from .errors import REPAIRABLE, AdapterError, last_line
from .units import restart


def run_proofs(proofs: list[dict[str, Any]], units: list[dict[str, Any]]) -> list[str]:
    """Restart the units if a command fails, and raise an error only if it fails again. Returns what changed.

    A daemon may have started with other files than the current ones although their times look older.
    """
    try:
        _run(proofs)
    except AdapterError:
        for unit in units:
            restart(unit)
        _run(proofs)
        return [f"unit {unit['name']} restarted" for unit in units]
    return []


def _run(proofs: list[dict[str, Any]]) -> None:
    for proof in proofs:
        done = subprocess.run(
            proof["argv"], input=proof["stdin"] or "", capture_output=True, text=True, timeout=30, check=False
        )
        if done.returncode != 0:
            reason = last_line(done.stderr or done.stdout)
            raise AdapterError(proof["code"], f"{proof['message']} ({reason})", REPAIRABLE)
