"""Versions of Slurm's packages on a host: what is installed, what its sources offer, and which of that one may move to.

All packages made from Slurm's source have one version and move together; the daemons are restarted one after the other.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterable

from ..app import SOURCE_PACKAGE
from ..host.errors import INTERVENTION, AdapterError
from ..host.packages import ENVIRONMENT
from .join_terms import series

# Debian's version syntax, without the epoch that Slurm's packages do not have; or a series such as 24.11.
VERSION = re.compile(r"[0-9]{2}\.[0-9]{2}(\.[0-9]+(-[A-Za-z0-9.+~]{1,60})?)?")
SERIES = re.compile(r"[0-9]{2}\.[0-9]{2}")


def installed_slurm() -> dict[str, str]:
    """Installed packages that are made from Slurm's source, by name."""
    told = _run("dpkg-query", "--show", "--showformat=${source:Package}\t${Package}\t${db:Status-Status}\t${Version}\n")
    rows = [line.split("\t") for line in told.splitlines()]
    return {row[1]: row[3] for row in rows if len(row) == 4 and row[0] == SOURCE_PACKAGE and row[2] == "installed"}


def offered(package: str, origin: str = "") -> list[str]:
    """Versions that the host's package sources have, or the one at `origin`, newest first."""
    rows = [line.split("|") for line in _run("apt-cache", "madison", package).splitlines()]
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


def check_window(asked: str, now: str, window: dict[str, list[str]]) -> None:
    """Raise what can be told without a look at what is offered."""
    if asked and not VERSION.fullmatch(asked):
        raise _no("version_invalid", f"{asked!r} is neither a package version nor a series such as 24.11")
    if asked and series(now) not in window.get(series(asked), [series(asked)]):
        fits = sorted(name for name, takes in window.items() if series(now) in takes and name >= series(now))
        raise _no(
            "version_outside_window",
            f"Slurm {series(now)} cannot become {series(asked)} in place: state and jobs would be lost. From"
            f" {series(now)} one may move to {', '.join(fits)}; for the rest deploy another cluster",
        )


def choose(asked: str, now: str, offers: list[str], window: dict[str, list[str]]) -> str:
    """The version to move to. Raises what keeps it from being moved to; nothing has been touched then."""
    check_window(asked, now, window)
    fitting = [one for one in offers if series(now) in window.get(series(one), [series(one)])]
    if SERIES.fullmatch(asked):
        fitting = [one for one in fitting if series(one) == asked]
    elif asked:
        fitting = [one for one in fitting if one == asked or one.partition("-")[0] == asked]
    if not fitting and not asked:
        return now  # nothing that fits is offered, so nothing newer is
    if not fitting:
        raise _no(
            "version_not_offered",
            f"no package source of the host has Slurm {asked}; they have {', '.join(offers) or 'none'}",
        )
    newest = fitting[0]
    if compare(newest, now) < 0:
        if not asked:
            return now
        raise _no(
            "version_is_older",
            f"Slurm {newest} is older than {now}, which is installed: rollback returns to what was there before",
        )
    return newest


def _no(code: str, why: str) -> AdapterError:
    return AdapterError(code, f"Nothing was touched: {why}.", INTERVENTION)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    return done.stdout
