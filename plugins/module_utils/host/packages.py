"""Install Debian packages without starting services and without changing packages that are installed already."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from ..app import NAME, STATE_DIRECTORY
from .errors import INTERVENTION, RETRYABLE, AdapterError, last_line
from .ledger import Ledger

POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_ASIDE = Path(f"/usr/sbin/policy-rc.d.before-{NAME}")
POLICY_MARK = f"{NAME}: no service starts while packages are installed"
POLICY_TEXT = f"#!/bin/sh\n# {POLICY_MARK}\nexit 101\n"
ENVIRONMENT = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", "APT_LISTCHANGES_FRONTEND": "none"}
LOCK_SECONDS = 120
APT = ("apt-get", "--quiet", "--yes", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}", "-o", "Dpkg::Use-Pty=0")
# A package that conflicts belongs to others and is never removed.
INSTALL = ("install", "--no-install-recommends", "--no-remove", "-o", "Dpkg::Options::=--force-confold")

# An index that could not be fetched is an error, not a warning. Translated descriptions are not needed.
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


def query_packages(fields: tuple[str, ...], *names: str) -> list[list[str]]:
    """These fields of dpkg for each of the packages, or for all that dpkg lists; a row for each package."""
    form = "\t".join(f"${{{field}}}" for field in fields) + "\n"
    command = ["dpkg-query", "--show", f"--showformat={form}", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == len(fields)]


def installed_versions(names: list[str]) -> dict[str, str]:
    rows = query_packages(("Package", "db:Status-Status", "Version"), *names) if names else []
    return {name: version for name, status, version in rows if status == "installed"}


MINIMUM_OPTIONS: dict[str, Any] = {
    "package": {"type": "str", "required": True},
    "version": {"type": "str", "required": True},
    "code": {"type": "str", "required": True},
    "message": {"type": "str", "required": True},
    "refuse": {"type": "bool", "default": True},
}


def is_below(version: str | None, minimum: str) -> bool:
    """Whether a version is older than the minimum by Debian's rules. One that is not known is."""
    if not version or not minimum:
        return True
    command = ["dpkg", "--compare-versions", version, "ge", minimum]
    return subprocess.run(command, capture_output=True, check=False, env=ENVIRONMENT).returncode != 0


def check_minimums(minimums: list[dict[str, Any]]) -> list[str]:
    """Packages that are older than they must be, or of an unknown version; those that must not be raise the error."""
    installed, below = installed_versions([one["package"] for one in minimums]), []
    for one in minimums:
        version = installed.get(one["package"])
        if not is_below(version, one["version"]):
            continue
        if one["refuse"]:
            found = f"{one['package']} is {version or 'of an unknown version'}, needed is {one['version'] or 'unknown'}"
            raise AdapterError(one["code"], f"{found}. {one['message']}", INTERVENTION)
        below.append(one["package"])
    return below


def converge_packages(
    names: list[str], ledger: Ledger, dry: bool, source: AbstractContextManager[None] | None = None
) -> list[str]:
    """Install the missing packages, from `source` if it is given. Fetches a package index only if one is missing."""
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
    # New dependencies are noted too, before they are installed. Packages that are only upgraded are not.
    try:
        planned = _would_install(missing)
    except AdapterError:
        # The next try is to see sources that were mended meanwhile.
        INDEX_STAMP.unlink(missing_ok=True)
        raise
    there = installed_versions(planned)
    for name in planned:
        if name not in there:
            ledger.note("package", name, {"installed": False})
    ledger.save()
    with services_held():
        run_apt([*APT, *INSTALL, *missing], f"installing {', '.join(missing)}")


@contextmanager
def services_held() -> Iterator[None]:
    """Keep packages from starting their services: a daemon must not run before its configuration is in place."""
    if POLICY.exists():
        POLICY.replace(POLICY_ASIDE)
    POLICY.write_text(POLICY_TEXT)
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        restore_policy()


def restore_policy() -> None:
    """Undo services_held, also of a run that was killed. The mark in the file shows that the adapter wrote it."""
    if POLICY.exists() and POLICY_MARK in POLICY.read_text(errors="replace"):
        POLICY.unlink()
    if POLICY_ASIDE.exists() and not POLICY.exists():
        POLICY_ASIDE.replace(POLICY)


def explain(output: str, doing: str) -> AdapterError:
    """An error with the last error line of apt, and a class that says whether a retry helps."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [line for line in lines if line.startswith(("E:", "dpkg: error"))]
    reason = errors[-1] if errors else last_line(output, "apt printed nothing")
    if "No space left on device" in output or "You don't have enough free space" in output:
        message = f"No space left on the host while {doing}. Free space there, then retry."
        return AdapterError("disk_full", message, INTERVENTION)
    if denied := DENIED.search(output):
        return AdapterError(
            "package_source_denied",
            f"A package source answered {' '.join(denied[1].split())} ({doing}): its credential is wrong or has"
            " expired. The adapter retries with a new one; if the error stays, have the credential corrected.",
            RETRYABLE,
        )
    if UNTRUSTED.search(output):
        return AdapterError(
            "package_source_untrusted",
            f"A package source is not signed with its configured key ({doing}), so nothing was installed from it."
            " Have the source or its key corrected, then retry.",
            INTERVENTION,
        )
    if "Unable to locate package" in output or "has no installation candidate" in output:
        return AdapterError(
            "package_not_found",
            f"{reason} ({doing}). Give the host a package source that has it, then retry.",
            INTERVENTION,
        )
    if "remove is disabled" in output:
        return AdapterError(
            "package_conflict",
            f"apt would have to remove packages of the host ({doing}), which the adapter never does. Remove the"
            " conflicting packages if they are not needed, or use another host, then retry.",
            INTERVENTION,
        )
    if "Could not get lock" in output:
        return AdapterError(
            "package_lock_busy",
            f"Another package run held the host's lock for {LOCK_SECONDS} s ({doing}). The adapter retries.",
            RETRYABLE,
        )
    return AdapterError(
        "package_install_failed",
        f"{reason} ({doing}). Check the host's package sources and network, then retry.",
        RETRYABLE,
    )


def refresh_index() -> None:
    """Fetch the package index, unless an earlier role of the same run has fetched it."""
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
    """A run that was killed inside dpkg leaves packages half configured, and apt refuses to work until they are."""
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
            "package_install_timeout", f"apt did not end within 20 minutes ({doing}). The adapter retries.", RETRYABLE
        ) from None
    if done.returncode != 0:
        raise explain(done.stdout, doing)
    return done.stdout
