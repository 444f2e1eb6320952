"""What a controller asks of a host that wants to join as a worker. Pure.

Slurm's own words about these are useless to whoever reads them at night ("Zero Bytes were transmitted"), or do
not come at all: a newer slurmd tries for ever. So they are checked before the join, and named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..host.errors import INTERVENTION, AdapterError


def series(version: str) -> str:
    """The part of a version that decides what works together: 22.05 of 22.05.8-4+deb12u3."""
    return ".".join(version.split(".")[:2])


def judge_terms(found: Mapping[str, Any], asked: Mapping[str, Any], max_skew_seconds: float) -> None:
    """Raise what keeps the host out. `found` is the host's probe, `asked` what the controller has."""
    _check_version(str(found["slurm_version"]), asked)
    _check_clock(found["skew"] - asked["skew"], max_skew_seconds)
    _check_user(found["users"].get("slurm"), asked["slurm_user"])


def _check_version(worker: str, asked: Mapping[str, Any]) -> None:
    controller = series(asked["slurm_version"])
    taken = asked["accepts"].get(controller, [controller])
    if series(worker) not in taken:
        raise AdapterError(
            "version_incompatible",
            f"The host would run Slurm {series(worker)}, and a controller of {controller} takes {', '.join(taken)}"
            " only. Allocate a host with a system whose Slurm fits.",
            INTERVENTION,
        )


def _check_clock(skew: float, limit: float) -> None:
    if abs(skew) > limit:
        raise AdapterError(
            "clock_skew",
            f"The host's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the controller's, and munge"
            " refuses credentials of such hosts. Put its time service right, then retry.",
            INTERVENTION,
        )


def _check_user(present: Mapping[str, int] | None, wanted: Mapping[str, int] | None) -> None:
    if present and wanted and dict(present) != dict(wanted):
        raise AdapterError(
            "uid_mismatch",
            f"User slurm has uid {present['uid']} and gid {present['gid']} on the host, and {wanted['uid']} and"
            f" {wanted['gid']} on the controller. Renumber it there, or use a clean host.",
            INTERVENTION,
        )
