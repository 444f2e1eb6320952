"""Remove the packages that the adapter installed, with their dependencies, and none that other packages need."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import AdapterError
from ..packages import APT, finish_interrupted_install, query_packages, restore_policy, run_apt

# A recommendation of another package does not keep a package: it was not installed before either.
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
_DEPENDENCIES = ("Package", "db:Status-Status", "Provides", "Pre-Depends", "Depends")


def statuses(names: Iterable[str]) -> dict[str, str]:
    """The status of each package that dpkg lists: installed, config-files, half-installed, ..."""
    listed = sorted(names)
    rows = query_packages(("Package", "db:Status-Status"), *listed) if listed else []
    return {name: status for name, status in rows if status != "not-installed"}


def still_needed(names: Iterable[str]) -> list[str]:
    """Packages of the adapter that other packages on the host depend on."""
    installed = [name for name, status in statuses(names).items() if status == "installed"]
    return sorted(set(installed) - _removable(installed)) if installed else []


def repair_packages(ours: Iterable[str]) -> dict[str, str]:
    """Finish or undo an interrupted install, without which apt answers no query. Returns the packages' statuses."""
    restore_policy()
    found = statuses(ours)
    if not found:
        return {}
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


def purge_packages(ours: Iterable[str]) -> list[str]:
    found = repair_packages(ours)
    installed = [name for name, status in found.items() if status == "installed"]
    free = _removable(installed) if installed else set()
    wanted = sorted(name for name, status in found.items() if status != "installed" or name in free)
    if wanted:
        run_apt([*APT, "purge", *wanted], f"removing {', '.join(wanted)}")
    return [f"package {name}" for name in wanted]


def _removable(installed: Iterable[str]) -> set[str]:
    """Packages whose removal neither removes nor installs any other package."""
    ours = set(installed)
    if _goes_alone(ours, ours):
        return ours
    # Other packages need some of them. autoremove lists the rest, once all are marked as not requested.
    run_apt(["apt-mark", "auto", *sorted(ours)], "marking packages as no longer requested")
    free = _unneeded() & ours
    for name in sorted(ours - free - _certainly_needed(ours)):
        # autoremove keeps alternatives too, as gawk beside an older mawk. So each of the others is tried.
        if _goes_alone(free | {name}, ours):
            free.add(name)
    return free


def _certainly_needed(ours: set[str]) -> set[str]:
    """Packages of ours that a package of others depends on, directly or through ours, without an alternative.

    One call of dpkg-query replaces a simulation by apt for each package, which takes seconds on a busy host.
    """
    provided: set[str] = set()
    depends: dict[str, list[list[str]]] = {}
    for name, status, provides, *dependencies in query_packages(_DEPENDENCIES):
        if status == "installed":
            provided.update(_names(provides))
            depends[name] = [_names(one) for one in ",".join(dependencies).split(",")]
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
    output = run_apt([*APT, "--simulate", "purge", *sorted(names)], "simulating a removal")
    lines = [line.split() for line in output.splitlines() if line.startswith(("Purg ", "Remv ", "Inst "))]
    return all(line[0] != "Inst" and line[1].partition(":")[0] in ours for line in lines)


def _unneeded() -> set[str]:
    output = run_apt([*APT, "--simulate", *UNNEEDED], "listing packages that are not needed")
    return {line.split()[1] for line in output.splitlines() if line.startswith(("Purg ", "Remv "))}
