"""Decides which instances are ticked, when, and when a run is over. Pure: no threads and no clock."""

import math
from collections.abc import Iterable
from uuid import UUID

from runner.model.platform import AppInstance, InstanceStatus


class Schedule:
    """A pass every `pause` seconds ticks every instance that is not being ticked already.

    Without `forever` a run ends when its work is done: the first tick of each instance, and what is requested
    meanwhile. While there is such work, the other instances are ticked in every pass. Then no further tick begins, and
    routine observations that are under way come to their end.
    """

    def __init__(self, pause: float, *, forever: bool) -> None:
        self._pause = pause
        self._forever = forever
        self._next_pass: float | None = None  # None before the first
        self._under_way: dict[UUID, bool] = {}  # and whether the run waits for it

    def is_pass_due(self, now: float) -> bool:
        return self._next_pass is None or (self._continues and now >= self._next_pass)

    def seconds_to_pass(self, now: float) -> float:
        """Seconds until the next pass; infinite if there is none."""
        return max(0.0, (self._next_pass or now) - now) if self._continues else math.inf

    def begin_pass(self, now: float) -> None:
        """To be called before instances are read, so that a read that fails is repeated after the pause."""
        self._next_pass = now + self._pause

    def begin(self, instances: Iterable[AppInstance], *, first: bool) -> list[AppInstance]:
        """The instances to be ticked now, most urgent first; from here on they count as under way."""
        chosen = sorted((one for one in instances if one.id not in self._under_way), key=_urgency)
        self._under_way |= {one.id: first for one in chosen}
        return chosen

    def mark_requested(self, instance_id: UUID) -> None:
        """The tick of this instance has found requested work."""
        self._under_way[instance_id] = True

    def end(self, instance_id: UUID) -> None:
        del self._under_way[instance_id]

    def is_under_way(self, instance_id: UUID) -> bool:
        return instance_id in self._under_way

    @property
    def is_over(self) -> bool:
        return not self._under_way and not self._forever

    @property
    def is_ending(self) -> bool:
        """Whether only routine observations are under way, for which a run does not wait."""
        return bool(self._under_way) and not self._continues

    @property
    def _continues(self) -> bool:
        return self._forever or any(self._under_way.values())


def _urgency(instance: AppInstance) -> tuple[bool, str]:
    """Instances that are deployed, deleted or started come before running ones; then the one observed longest ago."""
    at = instance.notes.observed_at
    return instance.status == InstanceStatus.RUNNING, at.isoformat() if at else ""
