"""Commands that show that a service works, as opposed to runs."""

from __future__ import annotations

import subprocess
from typing import Any

from .errors import REPAIRABLE, AdapterError
from .units import restart


def prove(proofs: list[dict[str, Any]], units: list[dict[str, Any]]) -> list[str]:
    """Restart the units if a proof fails, and fail only if it fails again; gives what changed.

    A daemon may have started with other files than are there now, whatever the times of these files are.
    """
    try:
        _try(proofs)
    except AdapterError:
        for unit in units:
            restart(unit)
        _try(proofs)
        return [f"unit {unit['name']} restarted" for unit in units]
    return []


def _try(proofs: list[dict[str, Any]]) -> None:
    for proof in proofs:
        done = subprocess.run(
            proof["argv"], input=proof["stdin"] or "", capture_output=True, text=True, timeout=30, check=False
        )
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise AdapterError(
                proof["code"], f"{proof['message']} ({said[-1] if said else 'no reason given'})", REPAIRABLE
            )
