"""Decides which instances are ticked, when, and when a run is over. Pure: no threads and no clock."""

import enum
import math
from collections.abc import Iterable
from uuid import UUID

from runner.model.platform import AppInstance, InstanceStatus


class Kind(enum.Enum):
    """What a tick that is under way is to the run."""

    WORK = "the run goes on until it ends: a first tick, or requested work"
    ROUTINE = "a later tick that has found no requested work"
    CHECK = "a tick of an ending run: it ends at once if no work is requested"


class Schedule:
    """A pass every `pause` seconds ticks every instance that is not being ticked already.

    Without `forever` a run ends when its work is done: the first tick of each instance, and what is requested
    meanwhile. Then routine ticks that are under way come to their end, and no further one begins. Passes go on until
    then, and only check whether work is requested: if so, the run is not ending any more. A check alone causes no
    further pass, so a run ends even if the platform is slow.
    """

    def __init__(self, pause: float, *, forever: bool) -> None:
        self._pause = pause
        self._forever = forever
        self._next_pass: float | None = None  # None before the first
        self._under_way: dict[UUID, Kind] = {}

    def is_pass_due(self, now: float) -> bool:
        return self._next_pass is None or self.seconds_to_pass(now) <= 0

    def seconds_to_pass(self, now: float) -> float:
        """Seconds until the next pass; infinite if there is none."""
        has_passes = self._forever or {Kind.WORK, Kind.ROUTINE} & set(self._under_way.values())
        return max(0.0, (self._next_pass or now) - now) if has_passes else math.inf

    def begin_pass(self, now: float) -> None:
        """To be called before instances are read, so that a read that fails is repeated after the pause."""
        self._next_pass = now + self._pause

    def begin(self, instances: Iterable[AppInstance], *, first: bool) -> list[AppInstance]:
        """The instances to be ticked now, most urgent first; from here on they count as under way."""
        kind = Kind.WORK if first else Kind.CHECK if self.is_ending else Kind.ROUTINE
        chosen = sorted((one for one in instances if one.id not in self._under_way), key=_urgency)
        self._under_way |= {one.id: kind for one in chosen}
        return chosen

    def work_found(self, instance_id: UUID) -> None:
        """The tick of this instance has found requested work."""
        self._under_way[instance_id] = Kind.WORK

    def end(self, instance_id: UUID) -> None:
        del self._under_way[instance_id]

    def is_under_way(self, instance_id: UUID) -> bool:
        return instance_id in self._under_way

    @property
    def is_over(self) -> bool:
        return not self._under_way and not self._forever

    @property
    def is_ending(self) -> bool:
        """Whether no work is under way that the run goes on for."""
        return not self._forever and Kind.WORK not in self._under_way.values()


def _urgency(instance: AppInstance) -> tuple[bool, str]:
    """Instances that are deployed, deleted or started come before running ones; then the one observed longest ago."""
    at = instance.notes.observed_at
    return instance.status == InstanceStatus.RUNNING, at.isoformat() if at else ""
