"""Versions of Slurm's packages on a host: installed, offered by its sources, and allowed as a target.

All packages of Slurm's source have one version and move together; the daemons are restarted one after the other.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterable

from ..app import SOURCE_PACKAGE
from ..host.errors import INTERVENTION, AdapterError
from ..host.packages import ENVIRONMENT, query_packages
from .join_terms import series

# Debian's version syntax, without the epoch that Slurm's packages do not have; or a series such as 24.11.
VERSION = re.compile(r"[0-9]{2}\.[0-9]{2}(\.[0-9]+(-[A-Za-z0-9.+~]{1,60})?)?")
SERIES = re.compile(r"[0-9]{2}\.[0-9]{2}")


def installed_slurm() -> dict[str, str]:
    """Installed packages of Slurm's source, with their versions."""
    rows = query_packages(("source:Package", "Package", "db:Status-Status", "Version"))
    return {
        name: version for source, name, status, version in rows if (source, status) == (SOURCE_PACKAGE, "installed")
    }


def offered(package: str, origin: str = "") -> list[str]:
    """Versions that the host's package sources have, or the source at `origin`, newest first."""
    command = ["apt-cache", "madison", package]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT).stdout
    rows = [line.split("|") for line in answer.splitlines()]
    found = {row[1].strip() for row in rows if len(row) == 3 and _is_from(row[2].strip(), origin)}
    return sorted(found, key=functools.cmp_to_key(compare), reverse=True)


def _is_from(row: str, origin: str) -> bool:
    return row.startswith(origin) and not row.endswith("Sources")


def compare(one: str, other: str) -> int:
    """-1, 0 or 1 by dpkg's own rules."""
    for sign, result in (("lt", -1), ("gt", 1)):
        done = subprocess.run(["dpkg", "--compare-versions", one, sign, other], check=False)
        if done.returncode == 0:
            return result
    return 0


def oldest(versions: Iterable[str]) -> str | None:
    return min(versions, key=functools.cmp_to_key(compare), default=None)


def check_window(requested: str, now: str, window: dict[str, list[str]]) -> None:
    """Raise an error if the version is invalid or cannot be reached in place."""
    if requested and not VERSION.fullmatch(requested):
        raise _refused("version_invalid", f"{requested!r} is neither a package version nor a series such as 24.11")
    if requested and series(now) not in window.get(series(requested), [series(requested)]):
        fits = sorted(name for name, takes in window.items() if series(now) in takes and name >= series(now))
        raise _refused(
            "version_outside_window",
            f"Slurm {series(now)} cannot be upgraded to {series(requested)} in place: state and jobs would be lost."
            f" From {series(now)} a move to {', '.join(fits)} is possible; for others deploy another cluster",
        )


def choose(requested: str, now: str, offers: list[str], window: dict[str, list[str]]) -> str:
    """The version to move to. Raises the reason why there is none. Changes nothing."""
    check_window(requested, now, window)
    fitting = [one for one in offers if series(now) in window.get(series(one), [series(one)])]
    if SERIES.fullmatch(requested):
        fitting = [one for one in fitting if series(one) == requested]
    elif requested:
        fitting = [one for one in fitting if one == requested or one.partition("-")[0] == requested]
    if not fitting and not requested:
        return now  # no source offers an allowed version
    if not fitting:
        raise _refused(
            "version_not_offered",
            f"no package source of the host has Slurm {requested}; available: {', '.join(offers) or 'none'}",
        )
    newest = fitting[0]
    if compare(newest, now) < 0:
        if not requested:
            return now
        raise _refused(
            "version_is_older",
            f"Slurm {newest} is older than the installed {now}; use rollback to return to an older version",
        )
    return newest


def _refused(code: str, why: str) -> AdapterError:
    return AdapterError(code, f"Nothing was changed: {why}.", INTERVENTION)
