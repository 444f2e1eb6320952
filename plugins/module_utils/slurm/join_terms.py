"""Conditions of a controller for a host that joins as a worker. Pure.

Slurm's own errors about them do not name the cause ("Zero Bytes were transmitted"), or there is none: a newer slurmd
tries without limit. So they are checked before the join.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..host.errors import INTERVENTION, AdapterError


def series(version: str) -> str:
    """The part of a version that decides compatibility: 22.05 of 22.05.8-4+deb12u3."""
    return ".".join(version.split(".")[:2])


def check_join_terms(found: Mapping[str, Any], terms: Mapping[str, Any], max_skew_seconds: float) -> None:
    """Raise the reason why the host cannot join. `found` is the host's probe, `terms` are the controller's values."""
    _check_version(str(found["slurm_version"]), terms)
    _check_clock(found["skew"] - terms["skew"], max_skew_seconds)
    _check_user(found["users"].get("slurm"), terms["slurm_user"])


def _check_version(worker: str, terms: Mapping[str, Any]) -> None:
    controller = series(terms["slurm_version"])
    accepted = terms["accepts"].get(controller, [controller])
    if series(worker) not in accepted:
        raise AdapterError(
            "version_incompatible",
            f"The host would run Slurm {series(worker)}, but a controller of {controller} accepts only"
            f" {', '.join(accepted)}. Allocate a host whose system has one of these.",
            INTERVENTION,
        )


def _check_clock(skew: float, limit: float) -> None:
    if abs(skew) > limit:
        raise AdapterError(
            "clock_skew",
            f"The host's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the controller's, and munge"
            " refuses credentials of such hosts. Correct its time service, then retry.",
            INTERVENTION,
        )


def _check_user(present: Mapping[str, int] | None, wanted: Mapping[str, int] | None) -> None:
    if present and wanted and dict(present) != dict(wanted):
        raise AdapterError(
            "uid_mismatch",
            f"User slurm has uid {present['uid']} and gid {present['gid']} on the host, but {wanted['uid']} and"
            f" {wanted['gid']} on the controller. Change the ids on the host, or use a clean host.",
            INTERVENTION,
        )
