"""Keeps evidence of a failed test in .cache/failed/<test>/, before its hosts and its platform are removed.

Fleets and platforms that are up in this process are registered with `watched`. Pytest reports a failure after a `with`
block was left, so `watched` collects evidence when an exception passes through it; the report hook collects it from
everything that is still up.
With KEEP=1 in the environment the hosts of a failure stay up, and the output has the commands to reach them.
"""

import contextlib
import hashlib
import os
import re
import shutil
import signal
import threading
import traceback
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pytest

from sandbox.platform import process
from tests.commands import CALLS, scrubbed
from tests.platform_process import Platform

README, FAILURE, COMMANDS, PLATFORM_LOG = "README.txt", "failure.txt", "commands.txt", "platform.log"
INDEX = (
    f"{FAILURE}: traceback and captured output; {COMMANDS}: the last gpuaas-slurm and Ansible commands with their"
    " whole output, the latest at the end; one directory for each fleet: hosts/<host>/ (journal, state, logs),"
    f" records/ (what the API has, and the calls it got), {PLATFORM_LOG}"
)


class EvidenceSource(Protocol):
    """A fleet or platform that is up during a test and has evidence of a failure."""

    @property
    def name(self) -> str: ...

    def keep(self, folder: Path) -> list[str]:
        """Write the evidence into the folder, within bounded time; returns the most important lines."""

    def remove(self) -> None: ...

    def access_commands(self) -> list[str]:
        """Commands with which a person can examine it."""


@dataclass
class Failure:
    """The evidence of one test."""

    folder: Path
    parts: list[str] = field(default_factory=list)
    summary: dict[str, list[str]] = field(default_factory=dict)

    def collect_from(self, source: EvidenceSource) -> None:
        """Collect once for each test: the test's own clean-up changes the evidence later."""
        if source.name in self.summary:
            return
        self.summary[source.name] = ["no evidence could be collected"]
        try:
            self.summary[source.name] = source.keep(self.folder / source.name)
        except Exception:  # an error here must not replace the failure of the test
            self.summary[source.name] = ["the post-mortem failed:", *traceback.format_exc().splitlines()]

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        commands = [f"{one.described()}\n--- stdout\n{one.stdout}\n--- stderr\n{one.stderr}" for one in CALLS]
        write(self.folder / COMMANDS, "\n\n".join(commands))
        write(self.folder / FAILURE, "\n\n".join(self.parts))
        summary = [f"\n{name}:\n  " + "\n  ".join(lines) for name, lines in self.summary.items()]
        write(
            self.folder / README, "\n".join([INDEX, *summary, f"\nwritten at {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"])
        )


@dataclass
class State:
    """State of this run of pytest."""

    root: Path
    test: str = ""
    failures: dict[str, Failure] = field(default_factory=dict)
    up: dict[str, EvidenceSource] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    kept_up: dict[str, list[str]] = field(default_factory=dict)

    def collect(self) -> Failure:
        """The failure of the present test, with evidence from everything that is up."""
        if self.test not in self.failures:
            self.failures[self.test] = Failure(self.root / directory_name(self.test))
            shutil.rmtree(self.failures[self.test].folder, ignore_errors=True)
        failure = self.failures[self.test]
        with _no_alarm():
            for source in list(self.up.values()):
                self.failed.add(source.name)
                failure.collect_from(source)
        return failure


# None outside pytest: the benchmark uses fleets too.
_states: list[State] = []


@contextlib.contextmanager
def watched(source: EvidenceSource) -> Iterator[None]:
    """Remove the source at the end of the block, unless KEEP is set and the test failed."""
    state = _states[-1] if _states else None
    try:
        if state:
            state.up[source.name] = source
        try:
            yield
        except (Exception, pytest.fail.Exception):
            if state and state.test:
                state.collect()
            raise
    finally:
        if state:
            del state.up[source.name]
        if state and source.name in state.failed and keep_hosts():
            state.kept_up[source.name] = source.access_commands()
        else:
            source.remove()


def keep_hosts() -> bool:
    """Whether KEEP is set: the hosts of a failure stay up."""
    return os.environ.get("KEEP", "0") not in ("", "0")


def directory_name(nodeid: str) -> str:
    """A readable directory name, different for each test."""
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", nodeid.removeprefix("tests/")).strip("-.")
    if len(plain) <= 120:
        return plain
    return f"{plain[:110]}-{hashlib.sha256(nodeid.encode()).hexdigest()[:8]}"


def write(path: Path, text: str) -> None:
    """Write a file without secrets. Nothing else writes into the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(scrubbed(text))


@contextlib.contextmanager
def _no_alarm() -> Iterator[None]:
    """Suspend the test's time limit while evidence is collected: a timeout here would replace the failure."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)


# -- pytest ------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    _states.append(State(config.rootpath / ".cache" / "failed"))


def pytest_unconfigure() -> None:
    _states.pop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _states[-1].test = item.nodeid
    try:
        return (yield)
    finally:
        _states[-1].test = ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    state = _states[-1]
    if report.failed and (text := report.longreprtext) != scrubbed(text):
        report.longrepr = scrubbed(text)  # what the terminal and the report file show
    platforms = [one for one in getattr(item, "funcargs", {}).values() if isinstance(one, Platform)]
    if report.failed and (state.up or platforms or item.nodeid in state.failures or item.get_closest_marker("e2e")):
        failure = state.collect()
        captured = [f"--- {title}\n{content}" for title, content in report.sections]
        failure.parts.append("\n".join([f"=== {item.nodeid}: {report.when}", report.longreprtext, *captured]))
        try:
            failure.write()
            for platform in platforms[:1]:
                write(failure.folder / PLATFORM_LOG, (platform.state / process.LOG_FILE).read_text(errors="replace"))
            report.sections.append(("post-mortem", _kept(state, failure)))
        except OSError as error:  # must not replace the failure of the test
            report.sections.append(("post-mortem", f"could not be written: {error}"))
    return report


def _kept(state: State, failure: Failure) -> str:
    return f"kept for this failure: {failure.folder.relative_to(state.root.parents[1])}/{README}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    state = _states[-1]
    if state.failures:
        terminalreporter.section("kept for failures")
    for failure in state.failures.values():
        terminalreporter.write_line(_kept(state, failure))
    for name, ways in state.kept_up.items():
        terminalreporter.write_line(f"KEEP: {name} is still up. To get in:")
        for way in ways:
            terminalreporter.write_line(f"  {way}")
