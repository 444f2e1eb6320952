"""Which plays run now: bounds on plays at once and on their memory, with requested work first.

A play that has sent no event for a while is stalled. It no longer counts against the bound on plays, so that hosts that
hang do not keep others waiting. Together plays never exceed twice the bound: the oldest stalled one is stopped then.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

# Memory of an ansible-playbook process and of each of its forks, measured as proportional set size, rounded up.
PLAY_MB, FORK_MB = 70, 28
# How often a play that waits looks whether another one has stalled meanwhile.
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Bounds:
    plays: int
    forks: int
    memory_mb: int
    stall_seconds: float

    def forks_for(self, hosts: int) -> int:
        """How many hosts a play works on at once, within the bounds on forks and on memory."""
        return max(1, min(self.forks, hosts, (self.memory_mb - PLAY_MB) // FORK_MB))


@dataclass(eq=False)
class Turn:
    """The place of one play, first in the queue and then among those that run."""

    requested: bool
    forks: int
    number: int
    clock: Callable[[], float] = time.monotonic
    last_event: float | None = None  # None while it waits
    stopped: bool = False  # to be stopped, because others wait for its place
    waited: bool = False

    def heard(self) -> None:
        """The play has sent an event."""
        self.last_event = self.clock()

    @property
    def megabytes(self) -> int:
        return PLAY_MB + FORK_MB * self.forks

    @property
    def order(self) -> tuple[bool, int]:
        """Requested work first, then in the order of arrival."""
        return not self.requested, self.number


class PlayQueue:
    """No threads, and no clock but the one that is passed in."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float]) -> None:
        self.bounds = bounds
        self._clock = clock
        self.waiting: list[Turn] = []
        self.running: list[Turn] = []
        self._count = 0

    def join(self, *, requested: bool, hosts: int) -> Turn:
        self._count += 1
        turn = Turn(requested, self.bounds.forks_for(hosts), self._count, self._clock)
        self.waiting.append(turn)
        return turn

    def leave(self, turn: Turn) -> None:
        """The play has ended, or does not want its place any more."""
        for turns in (self.waiting, self.running):
            if turn in turns:
                turns.remove(turn)

    def admit(self) -> None:
        """Start whatever may start, in order: no play overtakes the first in the queue."""
        for turn in sorted(self.waiting, key=lambda one: one.order):
            lively = [one for one in self.running if not self.is_stalled(one)]
            if len(lively) >= self.bounds.plays:
                return
            memory = sum(one.megabytes for one in self.running)
            full = len(self.running) >= 2 * self.bounds.plays
            if full or (self.running and memory + turn.megabytes > self.bounds.memory_mb):
                self._stop_oldest()
                return
            self.waiting.remove(turn)
            self.running.append(turn)
            turn.heard()

    def is_stalled(self, turn: Turn) -> bool:
        return turn.last_event is not None and self._clock() - turn.last_event >= self.bounds.stall_seconds

    def stop_stalled(self) -> None:
        for turn in self.running:
            turn.stopped = turn.stopped or self.is_stalled(turn)

    def _stop_oldest(self) -> None:
        """One at a time: a play that was stopped holds its place until its processes have ended."""
        stalled = [one for one in self.running if self.is_stalled(one)]
        if stalled and not any(one.stopped for one in self.running):
            min(stalled, key=lambda one: one.last_event or 0).stopped = True


class PlayGate:
    """The queue for threads."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue = PlayQueue(bounds, clock)
        self._changed = threading.Condition()

    def enter(self, *, requested: bool, hosts: int, give_up: Callable[[], bool]) -> Turn | None:
        """Wait for a place; None if `give_up` became true first."""
        with self._changed:
            turn = self._queue.join(requested=requested, hosts=hosts)
            self._queue.admit()
            while turn.last_event is None:
                turn.waited = True
                if give_up():
                    self._queue.leave(turn)
                    return None
                self._changed.wait(LOOK_SECONDS)
                self._queue.admit()
            return turn

    def leave(self, turn: Turn) -> None:
        with self._changed:
            self._queue.leave(turn)
            self._changed.notify_all()

    def stop_stalled(self) -> None:
        """Stop every play that has stalled: the run is about to end."""
        with self._changed:
            self._queue.stop_stalled()
