"""Runs several parts at a time, the longest first. A part can start when its images are built."""

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.suite.parts import ROOT, Part, image
from tests.suite.results import Result, Store, now
from tests.suite.tree import tree_hash

Show = Callable[[str], None]
HEARTBEAT_SECONDS = 60.0
# A part that takes longer is interrupted, and killed if the interrupt does not end it.
PART_SECONDS = 2400.0
CLEAN_UP_SECONDS = 120.0
SHOWN_LINES = 120
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Variables of the caller's shell that would change what a part runs.
_CHANGES_PARTS = ("PYTEST_ADDOPTS", "MOLECULE_", "GPUAAS_")


class Pool:
    """Runs parts in `streams` processes at a time and keeps their results."""

    def __init__(self, store: Store, tree: str, streams: int, show: Show, stop_after: float | None = None) -> None:
        self.store = store
        self.tree = tree
        self.streams = streams
        self.show = show
        self.stop_at = time.monotonic() + stop_after if stop_after else None
        self.results: list[Result] = []
        self.interrupted = False
        self._changed = threading.Condition()
        self._running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        self._stopped = False

    def run(self, parts: Sequence[Part]) -> None:
        """Run the parts. Afterwards `results` has one result for each."""
        waiting = sorted(parts, key=lambda part: (part.kind != "image", -part.seconds))
        self._total = len(parts)
        beat = threading.Thread(target=self._heartbeat, daemon=True)
        beat.start()
        with ThreadPoolExecutor(self.streams) as pool:
            workers = [pool.submit(self._work, waiting) for _ in range(self.streams)]
            while not all(worker.done() for worker in workers):
                try:
                    futures.wait(workers)
                except KeyboardInterrupt:
                    self._interrupt()
            self._stopped = True
        for part in waiting:
            self._not_run(part, "interrupted" if self.interrupted else "the time limit of this run was reached")

    def _work(self, waiting: list[Part]) -> None:
        while part := self._next(waiting):
            try:
                result = self._run(part)
            except Exception as error:  # such as a full disk: this part fails, the others continue
                result = Result(part.name, self.tree, "failed", 0.0, reason=f"its result cannot be read: {error!r}")
                self.show(f"{part.name}: {result.reason}")
            with self._changed:
                self.results.append(result)
                self._changed.notify_all()

    def _next(self, waiting: list[Part]) -> Part | None:
        """The next part that can start; None if no part is left."""
        with self._changed:
            while not self._stopped:
                if self.stop_at and time.monotonic() > self.stop_at:
                    return None
                ended = {one.part: one.ok for one in self.results}
                for part in list(waiting):
                    built = {name: ended.get(name) for name in (image(kind).name for kind in part.images)}
                    if False in built.values():
                        waiting.remove(part)
                        failed = next(name for name, ok in built.items() if ok is False)
                        self._not_run(part, f"{failed} failed")
                    elif all(built.values()):
                        waiting.remove(part)
                        return part
                if not waiting:
                    return None
                self._changed.wait()
            return None

    def _not_run(self, part: Part, reason: str) -> None:
        self.results.append(Result(part.name, self.tree, "not run", 0.0, reason=reason))

    def _run(self, part: Part) -> Result:
        folder = self.store.folder(part.slug)
        with (folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return Result(part.name, self.tree, "failed", 0.0, reason="another run of this part is under way")
            return self._run_alone(part, folder)

    def _run_alone(self, part: Part, folder: Path) -> Result:
        log, usage, report, cost = (folder / name for name in ("output.log", "usage", "report.xml", "cost.json"))
        for old in (usage, report, cost):
            old.unlink(missing_ok=True)
        options = [f"--junitxml={report}"] if part.argv[0] == "pytest" else []
        argv = [sys.executable, "-m", "tests.suite.measure", str(cost), *part.argv, *options]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_CHANGES_PARTS)}
        environment = {**inherited, **part.environment, "GPUAAS_SANDBOX_USAGE": str(usage)}
        began = time.monotonic()
        with log.open("wb") as output:
            with self._changed:
                if self.interrupted:
                    return Result(part.name, self.tree, "not run", 0.0, reason="interrupted")
                process = subprocess.Popen(
                    argv, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )  # fmt: skip
                self._running[part.name] = (process, began)
            reason = _wait(process)
        with self._changed:
            del self._running[part.name]
        code = process.returncode
        result = Result(
            part=part.name,
            # A pass counts for this tree only if no file changed meanwhile; a failure is kept anyway.
            tree=self.tree if code or tree_hash() == self.tree else "",
            status="failed" if code else "passed",
            reason=reason,
            wall=time.monotonic() - began,
            ended_at=now(),
            **{**used(usage, cost), **counted(report)},  # type: ignore[arg-type]
        )
        if options and code == 0 and result.passed == 0:
            result = replace(result, status="failed", reason="it ran no test")
        self.store.save(part.slug, result)
        self._show_result(result, log)
        return result

    def _show_result(self, result: Result, log: Path) -> None:
        done = len(self.results) + 1
        why = f": {result.reason}" if result.reason else ""
        self.show(f"[{done}/{self._total}] {result.part}: {result.status} in {result.wall:.0f} s{why}")
        if not result.ok:
            text = last_lines(log.read_text(errors="replace"))
            self.show(f"\n== output of {result.part} ({log.relative_to(ROOT)})\n{text}== end of {result.part}\n")

    def _heartbeat(self) -> None:
        while not self._stopped:
            time.sleep(HEARTBEAT_SECONDS)
            with self._changed:
                running = sorted(self._running.items(), key=lambda one: one[1][1])
            since = ", ".join(f"{name} ({time.monotonic() - began:.0f} s)" for name, (_, began) in running)
            if since and not self._stopped:
                self.show(f"  running: {since}")

    def _interrupt(self) -> None:
        """Interrupt the running parts, so that they remove their hosts; the second time, kill them."""
        with self._changed:
            again, self.interrupted, self._stopped = self.interrupted, True, True
            self._changed.notify_all()
            for process, _ in self._running.values():
                _kill_group(process) if again else process.send_signal(signal.SIGINT)


def last_lines(output: str) -> str:
    """The end of a part's output, without colours: it names the failure, and a log that is cut has room for it."""
    lines = _COLOURS.sub("", output).splitlines()
    left = len(lines) - SHOWN_LINES
    left_out = [f"({left} lines before these are in the file)"] if left > 0 else []
    return "".join(f"{line}\n" for line in [*left_out, *lines[-SHOWN_LINES:]])


def _wait(process: "subprocess.Popen[bytes]") -> str:
    """Wait for a part within bounds; returns why it had to be ended, or an empty text."""
    try:
        process.wait(PART_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(CLEAN_UP_SECONDS)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            process.wait()
        return f"no end within {PART_SECONDS:.0f} s"
    return ""


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def used(usage: Path, cost: Path) -> dict[str, float]:
    """CPU time of the part's processes and hosts, and the number of hosts and clusters that it made."""
    lines = [json.loads(line) for line in usage.read_text().splitlines()] if usage.exists() else []
    own = json.loads(cost.read_text())["cpu"] if cost.exists() else 0.0
    return {
        "cpu": own + sum(line.get("host_cpu", 0.0) for line in lines),
        "hosts": sum(line.get("host", 0) for line in lines),
        "clusters": sum(line.get("cluster", 0) for line in lines),
    }


def counted(report: Path) -> dict[str, int | dict[str, str]]:
    """Numbers of passed, failed and skipped tests, and why each was skipped, from pytest's report."""
    if not report.exists():
        return {}
    suite = ET.parse(report).getroot().find("testsuite")
    if suite is None:
        return {}
    total, bad, skipped = (
        sum(int(suite.get(name, "0")) for name in names) for names in (("tests",), ("failures", "errors"), ("skipped",))
    )
    skips = {
        case.get("name", ""): skip.get("message", "")
        for case in suite.iter("testcase")
        for skip in case.iter("skipped")
    }
    return {"passed": max(0, total - bad - skipped), "failed": bad, "skipped": skipped, "skips": skips}
