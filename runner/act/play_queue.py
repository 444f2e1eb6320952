"""Admits plays within bounds on their number and their memory, requested work first.

A play that has sent no event for a while is stalled. It no longer counts against the bound on plays, so that hosts that
hang do not keep others waiting. Together plays never exceed twice the bound: the oldest stalled one is stopped then.

A play on many hosts leaves memory for a small play at each place that is still free. So memory for one small play per
place is enough for plays that work. Where stalled plays use up the memory, the oldest of them is stopped.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from runner.telemetry.meter import PlayCounts

# Memory of an ansible-playbook process and of each of its forks, measured as proportional set size, rounded up.
PLAY_MB, FORK_MB = 70, 28
# An add of one member: its host and that of the lead.
SMALL_PLAY_MB = PLAY_MB + 2 * FORK_MB
# How often a play that waits looks whether another one has stalled meanwhile.
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Bounds:
    plays: int
    forks: int
    memory_mb: int
    stall_seconds: float

    def forks_for(self, hosts: int, free_mb: int, free_places: int) -> int:
        """How many hosts a play works on at once, if `free_places` are left for other plays beside it."""
        own_mb = free_mb - free_places * SMALL_PLAY_MB
        return max(1, min(self.forks, hosts, (own_mb - PLAY_MB) // FORK_MB))


@dataclass(eq=False)
class PlaySlot:
    """The place of one play, first in the queue and then among those that run."""

    requested: bool
    hosts: int
    number: int = 0
    forks: int = 1  # set when it starts
    clock: Callable[[], float] = time.monotonic
    last_event: float | None = None  # None while it waits
    is_to_stop: bool = False  # because others wait for its place, or the run ends
    waited: bool = False

    def record_event(self) -> None:
        self.last_event = self.clock()

    @property
    def megabytes(self) -> int:
        return PLAY_MB + FORK_MB * self.forks

    @property
    def order(self) -> tuple[bool, int]:
        """Requested work first, then in the order of arrival."""
        return not self.requested, self.number


class PlayQueue:
    """Has no threads, and no clock but the one passed in."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        self.bounds = bounds
        self._clock = clock
        self.waiting: list[PlaySlot] = []
        self.running: list[PlaySlot] = []
        self._count = 0

    def join(self, *, requested: bool, hosts: int) -> PlaySlot:
        self._count += 1
        slot = PlaySlot(requested, hosts, self._count, clock=self._clock)
        self.waiting.append(slot)
        return slot

    def leave(self, slot: PlaySlot) -> None:
        """The play has ended, or gave up waiting."""
        for slots in (self.waiting, self.running):
            if slot in slots:
                slots.remove(slot)

    def admit(self) -> None:
        """Start the plays that fit, in order: no play overtakes the first in the queue."""
        for slot in sorted(self.waiting, key=lambda one: one.order):
            active = [one for one in self.running if not self.is_stalled(one)]
            if len(active) >= self.bounds.plays:
                return
            free_mb = self.bounds.memory_mb - sum(one.megabytes for one in self.running)
            slot.forks = self.bounds.forks_for(slot.hosts, free_mb, self.bounds.plays - len(active) - 1)
            full = len(self.running) >= 2 * self.bounds.plays
            if full or (self.running and slot.megabytes > free_mb):
                self._stop_oldest()
                return
            self.waiting.remove(slot)
            self.running.append(slot)
            slot.record_event()

    def is_stalled(self, slot: PlaySlot) -> bool:
        return slot.last_event is not None and self._clock() - slot.last_event >= self.bounds.stall_seconds

    def stop_stalled(self, *, requested: bool) -> None:
        for slot in self.running:
            if self.is_stalled(slot) and (requested or not slot.requested):
                slot.is_to_stop = True

    def _stop_oldest(self) -> None:
        """One at a time: a stopped play keeps its place until its processes have ended."""
        stalled = [one for one in self.running if self.is_stalled(one)]
        if stalled and not any(one.is_to_stop for one in self.running):
            min(stalled, key=lambda one: one.last_event or 0).is_to_stop = True


class PlayGate:
    """Lets threads wait in the queue."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue = PlayQueue(bounds, clock)
        self._changed = threading.Condition()

    def enter(self, *, requested: bool, hosts: int, give_up: Callable[[], bool]) -> PlaySlot | None:
        """Wait for a place; None if `give_up` returned true first."""
        with self._changed:
            slot = self._queue.join(requested=requested, hosts=hosts)
            self._queue.admit()
            while slot.last_event is None:
                slot.waited = True
                if give_up():
                    self._queue.leave(slot)
                    return None
                self._changed.wait(LOOK_SECONDS)
                self._queue.admit()
            return slot

    def leave(self, slot: PlaySlot) -> None:
        with self._changed:
            self._queue.leave(slot)
            self._changed.notify_all()

    def counts(self) -> PlayCounts:
        with self._changed:
            queue = self._queue
            return PlayCounts(len(queue.running), len(queue.waiting), sum(map(queue.is_stalled, queue.running)))

    def stop_stalled(self, *, requested: bool) -> None:
        """Stop stalled routine looks, because the run is about to end; with `requested`, every stalled play."""
        with self._changed:
            self._queue.stop_stalled(requested=requested)
