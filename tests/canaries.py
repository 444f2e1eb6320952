"""Planted secrets, and a search for them in every place where they must not be.

The search looks for the beginning of each secret, in every form in which it may be written, because a message that was
cut short leaks a secret as well.
"""

import base64
import binascii
import contextlib
import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

from runner.settings import SECRET_VARIABLES
from tests.commands import ends

Found = dict[str, list[str]]
Execute = Callable[[list[str], str], "subprocess.CompletedProcess[str]"]

YOUNG = 25  # checks of a new process, which may still become another program
# Without a line break, for grep; long enough to occur nowhere else by chance.
_PIECE = re.compile(rb"[^\n\0]{16,24}")


def forms(secret: bytes) -> set[bytes]:
    """The secret in plain, hex, URL, JSON, Python and base64 form; base64 also at any offset in a longer text."""
    found = {secret, secret.hex().encode(), secret.hex().upper().encode(), repr(secret)[2:-1].encode()}
    found |= {quote_from_bytes(secret, safe=safe).encode() for safe in ("", "/")}
    for text in (secret.decode("latin-1"), secret.decode(errors="replace")):
        found |= {text.encode(), *(json.dumps(text, ensure_ascii=plain)[1:-1].encode() for plain in (True, False))}
    for before, spoilt in ((0, 0), (1, 2), (2, 3)):
        padded = bytes(before) + secret
        whole = padded[: len(padded) // 3 * 3]
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            found.add(encode(whole)[spoilt:])
    return found


def unique_part(value: str) -> str:
    """The part of a secret that no other has: all keys of a kind, and all tokens, begin alike."""
    if "PRIVATE KEY" in value:
        return max(value.splitlines()[2:-1] or [value.partition("KEY-----")[2]], key=len)
    return value.rpartition(".")[2] if value.count(".") == 2 else value


class Canaries:
    """Secrets by kind; a kind has several after a rotation."""

    def __init__(self) -> None:
        self.pieces: dict[str, set[bytes]] = {}

    def plant(self, kind: str, value: str) -> str:
        secrets = [unique_part(value).encode()]
        with contextlib.suppress(binascii.Error, ValueError):
            secrets.append(base64.b64decode(value, validate=True))
        pieces = {piece[0] for one in secrets for form in forms(one) if (piece := _PIECE.search(form))}
        assert pieces, f"{kind} is too short to be recognised"
        self.pieces.setdefault(kind, set()).update(pieces)
        return value

    def seen_in(self, content: bytes | str) -> set[str]:
        """The kinds of secrets that the content holds."""
        held = content.encode(errors="surrogateescape") if isinstance(content, str) else content
        return {kind for kind, pieces in self.pieces.items() if any(piece in held for piece in pieces)}

    def on_disk(self, execute: Execute, *roots: str) -> Found:
        """Files that hold a secret, by kind. Without roots: the whole system except programs, and the journal."""
        asked = json.dumps({kind: sorted(piece.hex() for piece in pieces) for kind, pieces in self.pieces.items()})
        done = execute(["python3", "-c", SEARCH, *roots], asked)
        ends(done, 0)
        found: Found = json.loads(done.stdout)
        return found

    def in_calls(self, calls: Iterable[Mapping[str, Any]]) -> list[str]:
        """Bodies of API calls that hold a secret, except calls whose purpose is to carry it. Calls to Vault and the
        answers of planted faults do not count."""
        return [
            f"{kind} in the {what} of {call['method']} {call['path']}"
            for call in calls
            if not call["path"].startswith("/v1/")
            for what in ("query", "body", *([] if call["fault"] else ["answer"]))
            for kind in self.seen_in(call[what])
            if not call["path"].endswith(BELONGS.get((kind, what), "nowhere"))
        ]

    def plant_from(self, calls: Iterable[Mapping[str, Any]]) -> None:
        """Plant the secrets that the platform and Vault created during the test."""
        for call in calls:
            for end, *keys in HANDED_OUT:
                if call["path"].endswith(end) and call["status"] < 300:
                    value: Any = json.loads(call["answer"])
                    for key in keys:
                        value = value[key]
                    self.plant(keys[-1], value)


# Calls whose purpose is to carry a secret: kind and direction, and the end of the path.
BELONGS = {
    ("client_secret", "body"): "/auth/service-account/token",
    ("access_token", "answer"): "/auth/service-account/token",
    ("wrapping_token", "answer"): "/deliveries",
}
HANDED_OUT = (
    ("/auth/service-account/token", "access_token"),
    ("/deliveries", "wrapping_token"),
    ("/v1/auth/approle/login", "auth", "client_token"),
    ("/v1/sys/wrapping/unwrap", "data", "private_key"),
)

# Runs on the machine with the files. The secrets come by stdin and go to grep by stdin, so that no file has them.
SEARCH = r"""
import json, os, subprocess, sys
asked = {kind: [bytes.fromhex(one) for one in pieces] for kind, pieces in json.load(sys.stdin).items()}
patterns = b"\n".join(piece for pieces in asked.values() for piece in pieces) + b"\n"
found = {}
def note(place, content):
    for kind in asked:
        if any(piece in content for piece in asked[kind]):
            found.setdefault(kind, []).append(place)
def grep(options, places, **more):
    command = ["grep", "--text", "--fixed-strings", "--no-messages", "--file=-", *options, *places]
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, input=patterns, env=environment, stdout=subprocess.PIPE, **more).stdout
def grep_output(place, command):
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        file = running.stdout.fileno()
        note(place, grep(["--no-filename"], [f"/dev/fd/{file}"], pass_fds=[file]))
roots = sys.argv[1:]
if not roots:
    programs = ("proc", "sys", "usr", "boot", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
    roots = [f"/{name}" for name in os.listdir("/") if name not in programs] + ["/usr/local"]
    journal = ["journalctl", "--no-pager", "--quiet", "--output=export"]
    grep_output("the journal", journal)
for path in grep(["--recursive", "--devices=skip", "--files-with-matches", "--null"], roots).split(b"\0")[:-1]:
    with open(path, "rb") as file:
        note(os.fsdecode(path), file.read())
packed = ["find", *roots, "-name", "*.gz", "-type", "f"]
for path in subprocess.run(packed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.splitlines():
    grep_output(path, ["zcat", path])
for root in roots:
    for here, folders, names in os.walk(root):
        for name in folders + names:
            note(os.path.join(here, name), os.fsencode(name))
print(json.dumps({kind: sorted(places) for kind, places in found.items()}))
"""


def privately(variables: Mapping[str, str], settings: Path, home: Path) -> dict[str, str]:
    """The same settings with secrets in a file, as a service has them, and with all files written under `home`."""
    secret = {name: value for name, value in variables.items() if name in SECRET_VARIABLES}
    lines = (f"{name.removeprefix('GPUAAS_').lower()} = {json.dumps(value)}\n" for name, value in secret.items())
    settings.write_text("".join(lines))
    for name in ("tmp", "state", "work"):
        (home / name).mkdir()
    return {
        **{name: value for name, value in variables.items() if name not in secret},
        "GPUAAS_CONFIG": str(settings),
        "GPUAAS_STATE_DIRECTORY": str(home / "state"),
        "GPUAAS_LOG_LEVEL": "debug",
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
    }


def here(argv: list[str], stdin: str) -> "subprocess.CompletedProcess[str]":
    """Execute the search on this machine."""
    return subprocess.run([sys.executable, *argv[1:]], input=stdin, capture_output=True, text=True, check=False)


class Watcher:
    """Reads arguments and environments of all processes, and files of some directories, all the time.

    Processes of container hosts are processes of this machine as well. A new process is read several times, because it
    may still become another program.
    """

    def __init__(self, *directories: Path) -> None:
        self.seen: dict[bytes, str] = {}
        self._directories = directories
        self._looks: dict[str, int] = {}
        self._files: set[tuple[str, int, int]] = set()
        self._done = threading.Event()
        self._to_the_end = False
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watcher":
        # Processes that run already count as old.
        self._look_around()
        self._looks = dict.fromkeys(self._looks, YOUNG)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def leaks(self, canaries: Canaries) -> list[str]:
        """Secrets that were seen, by kind and place; fails if the watcher stopped early."""
        assert self._to_the_end or self._thread.is_alive()
        return sorted(f"{kind} in {where}" for held, where in self.seen.items() for kind in canaries.seen_in(held))

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self._look_around()
        self._to_the_end = True

    def _look_around(self) -> None:
        processes = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - much faster
        self._looks = {name: self._looks.get(name, -1) + 1 for name in processes}
        for process, looks in self._looks.items():
            # Old ones in turn: they change seldom, and there are many.
            if looks < YOUNG or looks % YOUNG == int(process) % YOUNG:
                self._look_at(process)
        for directory in self._directories:
            self._read_new(directory)

    def _look_at(self, process: str) -> None:
        with contextlib.suppress(OSError):
            arguments = Path(f"/proc/{process}/cmdline").read_bytes()
            where = f"process {process} ({arguments[:200].replace(bytes(1), b' ').decode(errors='replace')})"
            self.seen.setdefault(arguments, f"the arguments of {where}")
            self.seen.setdefault(Path(f"/proc/{process}/environ").read_bytes(), f"the environment of {where}")

    def _read_new(self, directory: Path) -> None:
        for folder, _, names in os.walk(directory):
            for path in (Path(folder, name) for name in names):
                with contextlib.suppress(OSError):
                    status = path.lstat()
                    version = (str(path), status.st_mtime_ns, status.st_size)
                    if stat.S_ISREG(status.st_mode) and version not in self._files:
                        self._files.add(version)
                        self.seen.setdefault(path.read_bytes(), f"the file {path}")
