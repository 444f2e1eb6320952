"""A package source, with its login, that a host has for one call only.

Its files are in a directory under /run that only root can read, and an environment variable points apt there. The
host's own sources, pins and credentials are links in it; nothing under /etc changes. The directory is deleted at the
end of the call. After SIGKILL the next call, a clean-up of the host or a reboot deletes it.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..app import NAME, RUN_DIRECTORY, SOURCE_PACKAGE, TITLE
from .errors import INTERVENTION, AdapterError
from .packages import APT, ENVIRONMENT, UPDATE, run_apt

DIRECTORY = RUN_DIRECTORY / "source"
APT_DIRECTORY = Path("/etc/apt")
LISTS = Path("/var/lib/apt/lists")
# Directories that apt reads, and the setting with the path of each.
PARTS = {
    "sources.list.d": "Dir::Etc::SourceParts",
    "preferences.d": "Dir::Etc::PreferencesParts",
    "auth.conf.d": "Dir::Etc::NetrcParts",
}
# Arguments of every module that installs packages.
SOURCE_ARGUMENTS: dict[str, Any] = {
    "source": {
        "type": "dict",
        "options": {
            "uri": {"type": "str"},
            "suite": {"type": "str"},
            "components": {"type": "list", "elements": "str"},
            "signing_key": {"type": "str", "no_log": False},  # a public key
            "private": {"type": "bool"},
            "denied": {"type": "str"},
        },
    },
    "source_login": {"type": "str", "no_log": True},
}
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

Source = dict[str, Any]


@contextmanager
def package_source(source: Source | None, login: str | None) -> Iterator[None]:
    """Install the app's packages from this source only; without a source, from the host's own sources."""
    clear_source()
    if source is None:
        yield
        return
    if source.get("denied"):
        raise AdapterError(
            "artifact_denied",
            f"The host lacks packages of {TITLE}, and package policy denies their installation ({source['denied']})."
            " Nothing was installed. Have the rule changed, then retry.",
            INTERVENTION,
        )
    before = {one: signal.signal(one, _exit) for one in SIGNALS}
    try:
        ENVIRONMENT["APT_CONFIG"] = str(_write_apt_files(source, login))
        ours = DIRECTORY / "sources.list.d" / _file("sources")
        alone = ["-o", f"Dir::Etc::SourceList={ours}", "-o", "Dir::Etc::SourceParts=/dev/null"]
        run_apt([*APT, *UPDATE, *alone], f"reading the package source {source['uri']}")
        yield
    finally:
        ENVIRONMENT.pop("APT_CONFIG", None)
        clear_source()
        delete_lists(source["uri"])
        for one, handler in before.items():
            signal.signal(one, handler)


def clear_source() -> None:
    """Delete the files of this call and of calls that were killed."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)


def delete_lists(uri: str) -> None:
    """Delete the package lists of the source, which are useless without it."""
    for kept in (LISTS, LISTS / "partial"):
        for path in kept.glob(f"{_apt_file_name(uri)}_*"):
            path.unlink(missing_ok=True)


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)  # runs the clean-up in package_source


def _write_apt_files(source: Source, login: str | None) -> Path:
    """Write the directory for apt. Returns its configuration file, which has the paths of the others."""
    DIRECTORY.parent.mkdir(mode=0o711, exist_ok=True)
    DIRECTORY.mkdir(mode=0o711)  # apt reads signing keys as another user; secret files have a mode of their own
    for name in PARTS:
        (DIRECTORY / name).mkdir(mode=0o755)
        for path in sorted((APT_DIRECTORY / name).glob("*")):
            (DIRECTORY / name / path.name).symlink_to(path)
    key = DIRECTORY / "key.gpg"
    _write(key, base64.b64decode(source["signing_key"]), 0o644)
    _write(DIRECTORY / "sources.list.d" / _file("sources"), sources_text(source, key).encode(), 0o644)
    _write(DIRECTORY / "preferences.d" / _file("pref"), pins_text(source).encode(), 0o644)
    if login is not None:
        _write(DIRECTORY / "auth.conf.d" / _file("conf"), login_text(source, login).encode(), 0o600)
    settings = "".join(f'{setting} "{DIRECTORY / name}";\n' for name, setting in PARTS.items())
    # Downloads are not kept: users who can read the host's cache may have no access to the source.
    configuration = DIRECTORY / "apt.conf"
    _write(configuration, f'{settings}APT::Keep-Downloaded-Packages "false";\n'.encode(), 0o644)
    return configuration


def sources_text(source: Source, key: Path) -> str:
    return (
        f"Types: deb\nURIs: {source['uri']}\nSuites: {source['suite']}\nComponents: {' '.join(source['components'])}\n"
        f"Signed-By: {key}\n"
    )


def pins_text(source: Source) -> str:
    """The app's packages from the source only; others only if no other source has them. The first pin counts."""
    site = f'origin "{urlsplit(source["uri"]).hostname}"'
    pins = ((f"src:{SOURCE_PACKAGE}", site, 990), (f"src:{SOURCE_PACKAGE}", "version *", -1), ("*", site, 1))
    return "\n".join(f"Package: {what}\nPin: {pin}\nPin-Priority: {priority}\n" for what, pin, priority in pins)


def login_text(source: Source, login: str) -> str:
    user, _, password = login.partition(":")
    return f"machine {source['uri'].rstrip('/')}/ login {user} password {password}\n"


def _file(suffix: str) -> str:
    return f"00-{NAME}.{suffix}"


def _write(path: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as handle:
        os.fchmod(descriptor, mode)
        handle.write(content)


def _apt_file_name(uri: str) -> str:
    """The name that apt gives to lists of this source: without the scheme, an underscore for each slash."""
    bare = uri.partition("://")[2].rstrip("/")
    return bare.replace("_", "%5f").replace("~", "%7e").replace("/", "_")
