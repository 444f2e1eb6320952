"""What the core tells about its work, as it happens. `Meter` ignores all of it; metrics.py has the one that counts."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from runner.model.plan import Step
from runner.model.platform import AppInstance
from runner.model.world import World
from runner.translate import RunResult


class PlayCounts(NamedTuple):
    """Plays of this process at one moment. A stalled play is also a running one."""

    running: int
    waiting: int
    stalled: int


class Meter:
    is_on = False  # whether it is worth finding out what is only needed here

    def passed(self, instances: Sequence[AppInstance]) -> None:
        """The list of instances was read."""

    def tick_ended(self, seconds: float, *, failed: bool) -> None: ...

    def saw(self, world: World) -> None:
        """One instance, as a tick sees it now."""

    def wrote(self, step: Step, now: datetime) -> None:
        """A step was written to the platform."""

    @contextlib.contextmanager
    def playing(self, playbook: str) -> Iterator[Callable[[RunResult], RunResult]]:
        """Measure a play. Its result is passed through the function that this gives."""
        began, results = time.monotonic(), list[RunResult]()

        def ended(result: RunResult) -> RunResult:
            results.append(result)
            return result

        try:
            yield ended
        finally:
            self.play_ended(playbook, results[0] if results else None, time.monotonic() - began)

    def play_ended(self, playbook: str, result: RunResult | None, seconds: float) -> None:
        """`result` is None if the play ended with an exception."""

    def watch_plays(self, counts: Callable[[], PlayCounts]) -> None:
        """`counts` is called from any thread."""

    def api_call(self, method: str, route: str, status: int | None, seconds: float) -> None:
        """One attempt of a call to the platform; `status` is None if there was no answer."""

    def vault_call(self, method: str, route: str, status: int | None, seconds: float) -> None: ...

    def certificate(self, peer: str, ends: float | None) -> None:
        """The end of a certificate, in seconds since 1970; None if it could not be read."""

    def token(self, name: str, ends: float) -> None: ...
