"""Packages that we brought, taken away again with what came along, and nothing that anybody else needs."""

from __future__ import annotations

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


def statuses(names: Iterable[str]) -> dict[str, str]:
    """dpkg's word for each package it knows anything of: installed, config-files, half-installed, ..."""
    listed = sorted(names)
    if not listed:
        return {}
    done = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Package}\t${db:Status-Status}\n", *listed],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[1] != "not-installed"}


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
    for name in sorted(ours - free):
        # It keeps all that could serve a need, as gawk beside the mawk that was there. So each is tried.
        if _goes_alone(free | {name}, ours):
            free.add(name)
    return free


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
