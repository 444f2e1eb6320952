"""Packages that we brought, taken away again with what came along, and nothing that anybody else needs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable

from ..errors import AdapterError
from ..packages import APT, ENVIRONMENT, finish_interrupted_install, restore_policy, run_apt

# A package that some other one merely recommends was not there before us either.
UNNEEDED = (
    "autoremove",
    "--purge",
    "-o",
    "APT::AutoRemove::RecommendsImportant=false",
    "-o",
    "APT::AutoRemove::SuggestsImportant=false",
)


# Of a package in a dependency: without its version, architecture and build profile.
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*")
_INSTALLED = "${Package}\t${db:Status-Status}\t${Provides}\t${Pre-Depends}, ${Depends}\n"


def statuses(names: Iterable[str]) -> dict[str, str]:
    """dpkg's word for each package it knows anything of: installed, config-files, half-installed, ..."""
    listed = sorted(names)
    if not listed:
        return {}
    rows = _query("${Package}\t${db:Status-Status}\n", *listed)
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[1] != "not-installed"}


def _query(fields: str, *names: str) -> list[list[str]]:
    command = ["dpkg-query", "--show", f"--showformat={fields}", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    return [line.split("\t") for line in done.stdout.splitlines()]


def still_needed(names: Iterable[str]) -> list[str]:
    """Of packages that we brought, those that something else on the host has come to depend on."""
    installed = [name for name, status in statuses(names).items() if status == "installed"]
    return sorted(set(installed) - _removable(installed)) if installed else []


def settle_packages(ours: Iterable[str]) -> dict[str, str]:
    """Finish or undo what a killed run left, before apt is asked anything. Gives the packages' statuses."""
    restore_policy()
    found = statuses(ours)
    return _settle(found) if found else {}


def purge_packages(ours: Iterable[str]) -> list[str]:
    found = settle_packages(ours)
    installed = [name for name, status in found.items() if status == "installed"]
    free = _removable(installed) if installed else set()
    wanted = sorted(name for name, status in found.items() if status != "installed" or name in free)
    if wanted:
        run_apt([*APT, "purge", *wanted], f"removing {', '.join(wanted)}")
    return [f"package {name}" for name in wanted]


def _removable(installed: Iterable[str]) -> set[str]:
    """Those that can go without anybody else's package going, or another coming, because of it."""
    ours = set(installed)
    if _goes_alone(ours, ours):
        return ours
    # Somebody needs some of them. apt knows which are not needed, once it knows that they were not asked for.
    run_apt(["apt-mark", "auto", *sorted(ours)], "marking packages as no longer asked for")
    free = _unneeded() & ours
    for name in sorted(ours - free - _certainly_needed(ours)):
        # It keeps all that could serve a need, as gawk beside the mawk that was there. So each of those is tried.
        if _goes_alone(free | {name}, ours):
            free.add(name)
    return free


def _certainly_needed(ours: set[str]) -> set[str]:
    """Of our packages, those that a package of others depends on, directly or through ours, with no alternative.

    One question to dpkg, where each of them would cost a question to apt that takes seconds on a busy host.
    """
    provided: set[str] = set()
    depends: dict[str, list[list[str]]] = {}
    for name, status, provides, dependencies in (row for row in _query(_INSTALLED) if len(row) == 4):
        if status == "installed":
            provided.update(_names(provides))
            depends[name] = [_names(one) for one in dependencies.split(",")]
    found: set[str] = set()
    left = [name for name in depends if name not in ours]
    while left:
        only = {names[0] for names in depends.get(left.pop(), []) if len(names) == 1}
        new = (only & ours) - provided - found
        found |= new
        left += new
    return found


def _names(alternatives: str) -> list[str]:
    """Package names of a list such as `a (>= 1) | b:any` or `a, b (= 2)`."""
    return [match[0] for part in re.split(r"[|,]", alternatives) if (match := _NAME.match(part.strip()))]


def _goes_alone(names: set[str], ours: set[str]) -> bool:
    output = run_apt([*APT, "--simulate", "purge", *sorted(names)], "asking what would go along")
    lines = [line.split() for line in output.splitlines() if line.startswith(("Purg ", "Remv ", "Inst "))]
    return all(line[0] != "Inst" and line[1].partition(":")[0] in ours for line in lines)


def _unneeded() -> set[str]:
    output = run_apt([*APT, "--simulate", *UNNEEDED], "asking what is no longer needed")
    return {line.split()[1] for line in output.splitlines() if line.startswith(("Purg ", "Remv "))}


def _settle(found: dict[str, str]) -> dict[str, str]:
    """An install that was cut off is finished first; what cannot be finished is taken out by force."""
    try:
        finish_interrupted_install()
    except AdapterError:
        broken = [name for name, status in found.items() if status not in ("installed", "config-files")]
        if not broken:
            raise
        force = ["dpkg", "--purge", "--force-remove-reinstreq", "--force-depends", *sorted(broken)]
        run_apt(force, "removing half-installed packages")
        finish_interrupted_install()
    return statuses(found)
