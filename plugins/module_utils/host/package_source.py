"""A package source that a host has for one call only, with what opens it.

Everything lives in a directory under /run that root alone can read, and apt is pointed there by an environment
variable: the host's own sources, pins and credentials are links beside ours, and nothing under /etc changes. The
directory goes with the call, however it ends. A kill that cannot be caught leaves it to the next call, to a clean-up
of the host or to the next boot, whichever comes first.
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
# What apt reads from a directory: the name of that there, and of the setting that says where it is.
PARTS = {
    "sources.list.d": "Dir::Etc::SourceParts",
    "preferences.d": "Dir::Etc::PreferencesParts",
    "auth.conf.d": "Dir::Etc::NetrcParts",
}
# The same for every module that installs.
SOURCE_ARGUMENTS: dict[str, Any] = {
    "source": {
        "type": "dict",
        "options": {
            "uri": {"type": "str"},
            "suite": {"type": "str"},
            "components": {"type": "list", "elements": "str"},
            "signing_key": {"type": "str", "no_log": False},  # the public half
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
    """While this lasts, the app's packages come from that source and no other; without one, from wherever they did."""
    clear_source()
    if source is None:
        yield
        return
    if source.get("denied"):
        raise AdapterError(
            "artifact_denied",
            f"Packages of {TITLE} are missing on the host, and package policy denies them to it ({source['denied']})."
            " Nothing was installed. Have the rule changed, then ask again.",
            INTERVENTION,
        )
    before = {one: signal.signal(one, _end) for one in SIGNALS}
    try:
        ENVIRONMENT["APT_CONFIG"] = str(_lay_out(source, login))
        ours = DIRECTORY / "sources.list.d" / _file("sources")
        alone = ["-o", f"Dir::Etc::SourceList={ours}", "-o", "Dir::Etc::SourceParts=/dev/null"]
        run_apt([*APT, *UPDATE, *alone], f"reading the package source {source['uri']}")
        yield
    finally:
        ENVIRONMENT.pop("APT_CONFIG", None)
        clear_source()
        forget_lists(source["uri"])
        for one, handler in before.items():
            signal.signal(one, handler)


def clear_source() -> None:
    """Nothing of any call, this one or one that was killed."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)


def forget_lists(uri: str) -> None:
    """What apt read from there: without the source it is of no use to anybody."""
    for kept in (LISTS, LISTS / "partial"):
        for path in kept.glob(f"{_as_file_name(uri)}_*"):
            path.unlink(missing_ok=True)


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)  # so that what was laid out is taken away


def _lay_out(source: Source, login: str | None) -> Path:
    """apt's configuration for the call, as a file that says where everything is."""
    DIRECTORY.parent.mkdir(mode=0o711, exist_ok=True)
    DIRECTORY.mkdir(mode=0o711)  # apt reads signing keys as a user of its own; what is secret has a mode of its own
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
    # What was downloaded is not kept: whoever may read the host's cache may not have been allowed the source.
    configuration = DIRECTORY / "apt.conf"
    _write(configuration, f'{settings}APT::Keep-Downloaded-Packages "false";\n'.encode(), 0o644)
    return configuration


def sources_text(source: Source, key: Path) -> str:
    return (
        f"Types: deb\nURIs: {source['uri']}\nSuites: {source['suite']}\nComponents: {' '.join(source['components'])}\n"
        f"Signed-By: {key}\n"
    )


def pins_text(source: Source) -> str:
    """The app from there alone; anything else only where no other source has it. The first pin of a package counts."""
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


def _as_file_name(uri: str) -> str:
    """As apt names what it read: without the scheme, and with an underscore for each slash."""
    bare = uri.partition("://")[2].rstrip("/")
    return bare.replace("_", "%5f").replace("~", "%7e").replace("/", "_")
