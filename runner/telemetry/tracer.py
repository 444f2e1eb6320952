"""What the core tells about its work for traces. `Tracer` ignores it; spans.py has the one that makes spans of it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from runner import context
from runner.model.plan import Play, Step
from runner.model.platform import AppInstance
from runner.model.world import World
from runner.translate import Event, RunResult


@dataclass
class TracedCall:
    """One attempt of a call. `traceparent` is sent with it, if there is one; `status` is None without an answer."""

    traceparent: str | None
    status: int | None = None


class TracedPlay:
    """A play under way."""

    result: RunResult | None = None  # None if the play ended with an exception

    def saw(self, event: Event, error_code: str | None) -> None:
        """One of the play's own events, and the code of the error that it means for its member."""


@dataclass
class TracedTick:
    failed: bool = False


class Tracer:
    is_on = False  # whether it is worth finding out what is only needed here

    @contextlib.contextmanager
    def ticking(self, _instance: AppInstance, _tick_id: str, /) -> Iterator[TracedTick]:
        yield TracedTick()

    @contextlib.contextmanager
    def playing(self, _step: Play, _world: World, /) -> Iterator[TracedPlay]:
        yield TracedPlay()

    @contextlib.contextmanager
    def calling(self, _peer: str, _method: str, _route: str, /) -> Iterator[TracedCall]:
        """One attempt of a call to a peer: `platform` or `vault`."""
        yield TracedCall(context.given_traceparent())

    def wrote(self, step: Step, before: AppInstance, now: datetime) -> None:
        """A step was written to the platform. `before` is the instance as it was; `now` by the platform's clock."""
