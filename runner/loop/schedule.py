"""Which instances are ticked, when, and when a run is over. Pure: no threads, and no clock but the time passed in."""

import math
from collections.abc import Iterable
from uuid import UUID

from runner.model.platform import AppInstance, InstanceStatus
from runner.model.world import observed_at


class Schedule:
    """A pass every `pause` seconds ticks every instance that is not being ticked already.

    A run that is not to go on for ever ends when its work is done. Its work is the first tick of each instance, and
    whatever is requested meanwhile. As long as some of it is under way, the other instances are ticked in every pass.
    Then no further tick begins, and the routine looks that are under way come to their end.
    """

    def __init__(self, pause: float, *, forever: bool) -> None:
        self._pause = pause
        self._forever = forever
        self._next_pass: float | None = None  # None before the first
        self._under_way: dict[UUID, bool] = {}  # with whether it is work that a run waits for

    def is_pass_due(self, now: float) -> bool:
        return self._next_pass is None or (self._goes_on and now >= self._next_pass)

    def seconds_to_pass(self, now: float) -> float:
        """Without end if there is to be none."""
        return max(0.0, (self._next_pass or now) - now) if self._goes_on else math.inf

    def begin_pass(self, now: float) -> None:
        """To be called before instances are read, so that a list that cannot be read is read again after the pause."""
        self._next_pass = now + self._pause

    def begin(self, instances: Iterable[AppInstance], *, first: bool) -> list[AppInstance]:
        """Those to be ticked now, most urgent first; each counts as under way from here on."""
        chosen = sorted((one for one in instances if one.id not in self._under_way), key=_urgency)
        self._under_way |= {one.id: first for one in chosen}
        return chosen

    def requested(self, instance_id: UUID) -> None:
        """The tick of this instance has found requested work."""
        self._under_way[instance_id] = True

    def ended(self, instance_id: UUID) -> None:
        del self._under_way[instance_id]

    def is_under_way(self, instance_id: UUID) -> bool:
        return instance_id in self._under_way

    @property
    def is_over(self) -> bool:
        return not self._under_way and not self._forever

    @property
    def is_ending(self) -> bool:
        """Whether only routine looks are under way, which do not keep a run going."""
        return bool(self._under_way) and not self._goes_on

    @property
    def _goes_on(self) -> bool:
        return self._forever or any(self._under_way.values())


def _urgency(instance: AppInstance) -> tuple[bool, str]:
    """What is being deployed, deleted or started comes before what runs; then what was not looked at for longest."""
    seen = observed_at(instance)
    return instance.status == InstanceStatus.RUNNING, seen.isoformat() if seen else ""
