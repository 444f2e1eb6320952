"""Commands that tests run: an unexpected exit code is shown with the command's output.

The last commands of this process are kept for a post-mortem. Secrets are removed from every file: the values of
variables whose names contain SECRET, TOKEN, PASSWORD or PRIVATE, and everything that looks like a key or a token.
"""

import functools
import os
import re
import shlex
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

Done = TypeVar("Done", bound="subprocess.CompletedProcess[Any]")

TAIL = 6000  # characters of each stream in a message; a post-mortem has all of them
_NAMED_SECRET = re.compile(r"SECRET|TOKEN|PASSWORD|PRIVATE", re.IGNORECASE)
_PATTERNS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"),
    re.compile(r"""(?<=client_secret['"]: ['"])[^'"]+|(?<=operator_token=['"])[^'"]+"""),
)

# The command for work by hand, which has to say why.
EXEC = ("exec", "--reason", "a test")


@dataclass
class Call:
    """One command: the test that ran it, its start, and its result."""

    argv: list[str]
    test: str = field(default_factory=lambda: os.environ.get("PYTEST_CURRENT_TEST", ""))
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    since: float = field(default_factory=time.monotonic)
    seconds: float | None = None
    outcome: str = "still running when this was written"
    stdout: str = ""
    stderr: str = ""

    def end(self, outcome: int | str, stdout: str | bytes | None, stderr: str | bytes | None) -> None:
        self.seconds = time.monotonic() - self.since
        self.outcome = f"exit code {outcome}" if isinstance(outcome, int) else outcome
        self.stdout, self.stderr = _text(stdout), _text(stderr)

    def described(self) -> str:
        lasted = "" if self.seconds is None else f" after {self.seconds:.1f} s"
        return f"$ {shlex.join(self.argv)}\n{self.began:%Y-%m-%dT%H:%M:%SZ} {self.outcome}{lasted}, by {self.test}"


# Of this process, the oldest first. A module with many tests runs a hundred.
CALLS: "deque[Call]" = deque(maxlen=50)
_SECRETS: set[str] = set()


def begin(argv: Iterable[str], variables: Mapping[str, str]) -> Call:
    """Record a command that starts now; `Call.end` completes it."""
    hide(variables)
    call = Call(list(argv))
    CALLS.append(call)
    return call


def hide(variables: Mapping[str, str]) -> None:
    """Remove the secrets among these variables from every file that is written from now on."""
    named = (value for name, value in variables.items() if _NAMED_SECRET.search(name))
    _SECRETS.update(value for value in named if len(value) > 7)


def scrubbed(text: str) -> str:
    """The text without known secrets and without everything that looks like one."""
    for secret in sorted(_SECRETS, key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, "[secret]")
    for pattern in _PATTERNS:
        text = pattern.sub("[secret]", text)
    return text


def recorded(
    run: "Callable[..., subprocess.CompletedProcess[str]]",
) -> "Callable[..., subprocess.CompletedProcess[str]]":
    """Keep the calls of a function that takes variables and then the arguments of `gpuaas-slurm`."""

    @functools.wraps(run)
    def record(variables: Mapping[str, str], *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        call = begin(["gpuaas-slurm", *arguments], variables)
        try:
            done = run(variables, *arguments, **options)
        except subprocess.TimeoutExpired as error:
            call.end(f"no end within {error.timeout:.0f} s", error.stdout, error.stderr)
            raise
        except BaseException as error:
            call.end(f"interrupted by {type(error).__name__}", "", "")
            raise
        call.end(done.returncode, done.stdout, done.stderr)
        return done

    return record


def ends(done: Done, *expected: int, why: str = "") -> Done:
    """Assert that the command ended with one of these exit codes; returns the command."""
    __tracebackhide__ = True
    if done.returncode not in expected:
        codes = " or ".join(map(str, expected))
        raise AssertionError(_shown(done, f"exit code {done.returncode}, expected {codes}", why))
    return done


# Exit codes of a command that did not run: podman's own, not executable, not found.
_DID_NOT_RUN = (125, 126, 127)


def fails(done: Done, why: str = "") -> Done:
    """Assert that the command ran and ended with an exit code of its own other than 0; returns the command."""
    __tracebackhide__ = True
    if done.returncode <= 0 or done.returncode in _DID_NOT_RUN:
        raise AssertionError(_shown(done, f"exit code {done.returncode}, expected a refusal by the command", why))
    return done


def _shown(done: "subprocess.CompletedProcess[Any]", what: str, why: str) -> str:
    argv = [done.args] if isinstance(done.args, str) else [str(one) for one in done.args]
    streams = ((name, _text(one)) for name, one in (("stdout", done.stdout), ("stderr", done.stderr)))
    ended = [f"--- {name}{' (its end)' * (len(one) > TAIL)}\n{one[-TAIL:].rstrip()}" for name, one in streams if one]
    return scrubbed("\n".join([f"{what}: {shlex.join(argv)}", *([why] if why else []), *(ended or ["no output"])]))


def _text(stream: str | bytes | None) -> str:
    return stream.decode(errors="replace") if isinstance(stream, bytes) else stream or ""
