"""Debian packages: installed without starting anything, and without touching what is already there."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from ..app import NAME, STATE_DIRECTORY
from .errors import INTERVENTION, RETRYABLE, AdapterError
from .ledger import Ledger

POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_ASIDE = Path(f"/usr/sbin/policy-rc.d.before-{NAME}")
POLICY_MARK = f"{NAME}: no service starts while packages are installed"
POLICY_TEXT = f"#!/bin/sh\n# {POLICY_MARK}\nexit 101\n"
ENVIRONMENT = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", "APT_LISTCHANGES_FRONTEND": "none"}
LOCK_SECONDS = 120
APT = ("apt-get", "--quiet", "--yes", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}", "-o", "Dpkg::Use-Pty=0")
# What conflicts with ours is somebody else's and is never removed for it.
INSTALL = ("install", "--no-install-recommends", "--no-remove", "-o", "Dpkg::Options::=--force-confold")

# An index that could not be fetched is an error, not a warning; and descriptions in other languages help nobody.
UPDATE = (
    "update",
    "-o",
    "APT::Update::Error-Mode=any",
    "-o",
    "Acquire::Languages=none",
    "-o",
    "APT::Get::List-Cleanup=0",
)
DENIED = re.compile(r"\b(401 +Unauthorized|403 +Forbidden)")
UNTRUSTED = re.compile(r"NO_PUBKEY|BADSIG|EXPKEYSIG|Missing key|could ?n[o']t be verified")
INDEX_STAMP = STATE_DIRECTORY / "package-index-fetched"
INDEX_SECONDS = 900


def installed_versions(names: list[str]) -> dict[str, str]:
    if not names:
        return {}
    done = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${Package}\t${db:Status-Status}\t${Version}\n", *names],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {row[0]: row[2] for row in rows if len(row) == 3 and row[1] == "installed"}


def converge_packages(
    names: list[str], ledger: Ledger, dry: bool, source: AbstractContextManager[None] | None = None
) -> list[str]:
    """Install what is missing, from `source` if there is one. A package index is fetched only if something is."""
    if not dry:
        restore_policy()
    present = installed_versions(names)
    missing = [name for name in names if name not in present]
    for name in present:
        ledger.note("package", name, {"installed": True, "version": present[name]})
    if not missing or dry:
        return [f"package {name}" for name in missing]
    finish_interrupted_install()
    with source or nullcontext():
        _install(missing, ledger)
    return [f"package {name}" for name in missing]


def _install(missing: list[str], ledger: Ledger) -> None:
    refresh_index()
    # What comes along as a dependency is ours as well, and is noted before it is there. What is merely upgraded is not.
    planned = _would_install(missing)
    there = installed_versions(planned)
    for name in planned:
        if name not in there:
            ledger.note("package", name, {"installed": False})
    ledger.save()
    with services_held():
        run_apt([*APT, *INSTALL, *missing], f"installing {', '.join(missing)}")


@contextmanager
def services_held() -> Iterator[None]:
    """While this lasts, packages do not start their services: a daemon must not run before its configuration."""
    if POLICY.exists():
        POLICY.replace(POLICY_ASIDE)
    POLICY.write_text(POLICY_TEXT)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        restore_policy()


def restore_policy() -> None:
    """Undo services_held, also the one of a run that was killed: the mark in the file tells that it is ours."""
    if POLICY.exists() and POLICY_MARK in POLICY.read_text(errors="replace"):
        POLICY.unlink()
    if POLICY_ASIDE.exists() and not POLICY.exists():
        POLICY_ASIDE.replace(POLICY)


def explain(output: str, doing: str) -> AdapterError:
    """apt's own last error line, and whether trying again can help."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [line for line in lines if line.startswith(("E:", "dpkg: error"))]
    said = errors[-1] if errors else (lines[-1] if lines else "apt said nothing")
    if "No space left on device" in output or "You don't have enough free space" in output:
        said = f"The host ran out of disk {doing}. Free space there, then retry."
        return AdapterError("disk_full", said, INTERVENTION)
    if denied := DENIED.search(output):
        return AdapterError(
            "package_source_denied",
            f"A package source answered {' '.join(denied[1].split())} ({doing}): its credential is wrong or has"
            " expired. It is tried again with a new one; if that does not help, have the credential corrected.",
            RETRYABLE,
        )
    if UNTRUSTED.search(output):
        return AdapterError(
            "package_source_untrusted",
            f"A package source is not signed with the key that belongs to it ({doing}), so nothing was taken from it."
            " Have the source or its key corrected, then ask again.",
            INTERVENTION,
        )
    if "Unable to locate package" in output or "has no installation candidate" in output:
        return AdapterError(
            "package_not_found",
            f"{said} ({doing}). Give the host a package source that has it, then retry.",
            INTERVENTION,
        )
    if "remove is disabled" in output:
        return AdapterError(
            "package_conflict",
            f"Packages of the host would have to be removed ({doing}), and they are not ours to remove. Remove what"
            " conflicts if nobody needs it, or use another host, then retry.",
            INTERVENTION,
        )
    if "Could not get lock" in output:
        return AdapterError(
            "package_lock_busy",
            f"Another package run held the host's lock for {LOCK_SECONDS} s ({doing}). It is tried again.",
            RETRYABLE,
        )
    return AdapterError(
        "package_install_failed",
        f"{said} ({doing}). Check the host's package sources and network, then retry.",
        RETRYABLE,
    )


def refresh_index() -> None:
    """Roles run one after the other on a host; the first one's index is good for the rest of the run."""
    try:
        age = time.time() - INDEX_STAMP.stat().st_mtime
    except FileNotFoundError:
        age = INDEX_SECONDS
    if 0 <= age < INDEX_SECONDS:
        return
    run_apt([*APT, *UPDATE], "refreshing the package index")
    INDEX_STAMP.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    INDEX_STAMP.touch()


def _would_install(names: list[str]) -> list[str]:
    output = run_apt([*APT, "--simulate", *INSTALL, *names], f"planning {', '.join(names)}")
    return [line.split()[1] for line in output.splitlines() if line.startswith("Inst ")]


def install_interrupted() -> bool:
    audit = subprocess.run(["dpkg", "--audit"], capture_output=True, text=True, check=False, env=ENVIRONMENT)
    return bool(audit.stdout.strip()) or any(Path("/var/lib/dpkg/updates").iterdir())


def finish_interrupted_install() -> None:
    """A run killed inside dpkg leaves packages half configured, and apt refuses everything until that is done."""
    if install_interrupted():
        with services_held():
            run_apt(["dpkg", "--configure", "-a", "--force-confold"], "finishing an interrupted install")


def run_apt(command: list[str], doing: str) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=1200,
            check=False,
            env=ENVIRONMENT,
        )
    except subprocess.TimeoutExpired:
        raise AdapterError(
            "package_install_timeout", f"apt was not done after 20 minutes ({doing}). It is tried again.", RETRYABLE
        ) from None
    if done.returncode != 0:
        raise explain(done.stdout, doing)
    return done.stdout
