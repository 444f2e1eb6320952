"""pytest runs this inside the copied tree: all tests once as they are, then for each change those that reach it."""

import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import Phase, settings

from tests.mutants import trampoline

KILLED, SURVIVED, UNREACHED = "killed", "survived", "no test reaches it"
SECONDS = 20  # beyond this, and what its tests took as they are, a change has made something endless


class Runner:
    def __init__(self, changes: list[dict[str, str]], results: Path, workers: int) -> None:
        self._changes = changes
        self._results = results
        self._workers = workers
        self._took: dict[str, float] = {}
        self._reaching: dict[tuple[str, str], list[pytest.Item]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._run_unchanged(session.items)
        verdicts = self._run_changed()
        self._results.write_text(json.dumps(verdicts))
        return True

    def _run_unchanged(self, items: Sequence[pytest.Item]) -> None:
        for item, following in zip(items, [*items[1:], None], strict=True):
            trampoline.reached.clear()
            begun = time.monotonic()
            reports = runtestprotocol(item, log=False, nextitem=following)
            self._took[item.nodeid] = time.monotonic() - begun
            failed = next((report for report in reports if report.failed), None)
            if failed:
                pytest.exit(f"{item.nodeid} fails without any change:\n{failed.longreprtext}", returncode=2)
            for function in trampoline.reached:
                self._reaching.setdefault(function, []).append(item)

    def _run_changed(self) -> list[str]:
        verdicts = [UNREACHED] * len(self._changes)
        running: dict[int, tuple[int, float]] = {}
        for number, change in enumerate(self._changes):
            items = self._reaching.get((change["file"], change["reached_as"]), [])
            if not items:
                continue
            while len(running) >= self._workers:
                self._wait(running, verdicts)
            items = sorted(items, key=lambda item: self._took[item.nodeid])
            until = time.monotonic() + SECONDS + 10 * sum(self._took[item.nodeid] for item in items)
            running[self._start(change, items)] = (number, until)
            self._show(number, verdicts)
        while running:
            self._wait(running, verdicts)
        self._show(len(self._changes), verdicts)
        return verdicts

    def _start(self, change: dict[str, str], items: Sequence[pytest.Item]) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 0
        try:
            trampoline.active = (change["file"], change["name"])
            for item, following in zip(items, [*items[1:], None], strict=True):
                if any(report.failed for report in runtestprotocol(item, log=False, nextitem=following)):
                    code = 1
                    break
        except BaseException:  # whatever a change does to the tests, it was noticed
            code = 1
        finally:
            os._exit(code)

    def _wait(self, running: dict[int, tuple[int, float]], verdicts: list[str]) -> None:
        """For one of them to end. One that takes too long is ended, and counts as killed."""
        while True:
            for pid, (number, until) in list(running.items()):
                late = time.monotonic() > until
                if late:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, 0 if late else os.WNOHANG)
                if ended:
                    del running[pid]
                    verdicts[number] = SURVIVED if status == 0 else KILLED
                    if status == 0:
                        _say("  survives: {file}::{function}: {before} -> {after}".format(**self._changes[number]))
                    return
            time.sleep(0.01)

    def _show(self, number: int, verdicts: list[str]) -> None:
        if number % 25 and number != len(self._changes):
            return
        left = sum(verdict == SURVIVED for verdict in verdicts)
        _say(f"  {number} of {len(self._changes)} changes, {left} survive so far")


def _say(line: str) -> None:
    """Past pytest, which keeps what tests print."""
    os.write(2, f"{line}\n".encode())


def pytest_configure(config: Any) -> None:
    # The same examples each time, and no search for a smaller one: that it fails is enough.
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
    settings.load_profile("mutants")
    given = json.loads(Path(os.environ["MUTANTS_CHANGES"]).read_text())
    workers = int(os.environ["MUTANTS_WORKERS"])
    config.pluginmanager.register(Runner(given, Path(os.environ["MUTANTS_RESULTS"]), workers))
