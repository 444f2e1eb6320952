"""A run: ticks of every instance of the project, each in its own thread, so that none waits for another."""

import concurrent.futures
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import UUID

from runner import log
from runner.act.scratch import sweep
from runner.loop.instance import tick_instance
from runner.loop.process_lock import ProcessLock
from runner.loop.schedule import Schedule
from runner.loop.shared import OnProgress, Shared, Signals, Summary
from runner.model.app import App
from runner.model.errors import PlatformError
from runner.model.platform import AppInstance, InstanceStatus
from runner.platform.client import Client
from runner.settings import Settings

# Threads are started on demand and mostly wait for a play. A setting bounds how many work at once.
MAX_THREADS = 1_000
# How long a signal or a stalled play may stay unnoticed.
LOOK_SECONDS = 1.0


def select_instances(client: Client, settings: Settings, only: UUID | None = None) -> list[AppInstance]:
    """The instances of this app, in the scope of these settings, that are not deleted."""
    found = [client.instance(only)] if only else client.instances(app_slug=settings.app_slug)
    selected = []
    for instance in found:
        if not settings.scope.has_instance(instance) or instance.app_slug != settings.app_slug:
            log.get(app_instance_id=instance.id).warning("instance of another project or app ignored")
        elif instance.status != InstanceStatus.DELETED:
            selected.append(instance)
    return selected


def run(
    client: Client,
    settings: Settings,
    app: App,
    *,
    only: UUID | None = None,
    forever: bool = False,
    signals: Signals | None = None,
    on_progress: OnProgress | None = None,
    process_lock: ProcessLock | None = None,
) -> Summary:
    """Tick every instance, or `only` one, until the work is done; with `forever`, until a signal comes.

    `on_progress` is called for each event of a member while its play runs. Raises PlatformError if the first list of
    instances cannot be read; a later list is read again in the next pass.
    """
    shared = Shared(settings, app, signals or Signals(), on_progress, client.meter, client.tracer)
    with ThreadPoolExecutor(MAX_THREADS) as pool:
        return _Run(client, shared, pool, only, forever, process_lock).run()


class _Run:
    """Begins ticks and waits for them. It works in one thread; each tick has its own."""

    def __init__(
        self,
        client: Client,
        shared: Shared,
        pool: ThreadPoolExecutor,
        only: UUID | None,
        forever: bool,
        process_lock: ProcessLock | None,
    ) -> None:
        self._client = client
        self._shared = shared
        self._pool = pool
        self._only = only
        self._forever = forever
        self._process_lock = process_lock
        self._schedule = Schedule(shared.settings.watch_seconds, forever=forever)
        self._ticks: dict[Future[Summary], UUID] = {}
        self._ticked: set[UUID] = set()
        self._first = True
        self._total = Summary()

    def run(self) -> Summary:
        """Pass after pass until the run is over or a signal comes; then wait for the ticks that are under way."""
        stop = self._shared.signals.stop
        while not stop.is_set():
            if self._schedule.is_pass_due(time.monotonic()):
                self._pass()
            if self._schedule.is_over:
                break
            if self._schedule.is_ending:
                self._shared.plays.stop_stalled(requested=False)
            self._wait(min(LOOK_SECONDS, self._schedule.seconds_to_pass(time.monotonic())))
        while self._ticks:
            # The next run begins when this one has ended, so a play that hangs would keep every instance waiting.
            self._shared.plays.stop_stalled(requested=True)
            self._wait(LOOK_SECONDS)
        self._total.instances = len(self._ticked)
        return self._total

    def _pass(self) -> None:
        """Read the instances, and begin a tick of each that has none under way."""
        read_at = time.monotonic()
        self._schedule.begin_pass(read_at)
        if self._only and self._schedule.is_under_way(self._only):
            return
        sweep()
        try:
            instances = select_instances(self._client, self._shared.settings, self._only)
        except PlatformError as error:
            if self._first and not self._forever:
                raise
            log.get().error("tick could not start", error_code=error.code, problem=str(error))
            self._total.problems += [str(error)] if self._forever else []
            return
        self._shared.meter.passed(instances)
        if self._process_lock:
            self._process_lock.require(instances)
        only_requested = self._schedule.is_ending and not self._first
        for one in self._schedule.begin(instances, first=self._first):
            self._ticked.add(one.id)
            tick = partial(
                self._tick,
                one,
                read_at=read_at,
                on_work_found=partial(self._schedule.work_found, one.id),
                only_requested=only_requested,
            )
            self._ticks[self._pool.submit(tick)] = one.id
        self._first = False

    def _tick(self, instance: AppInstance, **terms: Any) -> Summary:
        began = time.monotonic()
        summary = tick_instance(self._client, self._shared, instance, **terms)
        self._shared.meter.tick_ended(time.monotonic() - began, failed=bool(summary.problems))
        return summary

    def _wait(self, seconds: float) -> None:
        """Wait until a tick ends, a signal comes, or the time is over."""
        if not self._ticks:
            self._shared.signals.stop.wait(seconds)
            return
        done, _ = concurrent.futures.wait(self._ticks, seconds, concurrent.futures.FIRST_COMPLETED)
        for tick in done:
            self._schedule.end(self._ticks.pop(tick))
            self._total.add(tick.result())
