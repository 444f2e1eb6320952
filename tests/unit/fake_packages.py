"""Slurm's packages in memory: what is installed on each host, which version each daemon runs, and what to return to."""

from collections.abc import Callable
from dataclasses import dataclass, field

from runner.model.plan import AdapterError

FIRST = "22.05.8-4"
NEXT = "22.05.9-1"
CONTROLLER_HOST = "ctl"


@dataclass
class Point:
    """How it was before a change; `returned_by` is the operation that went back to it."""

    change: str
    version: str
    returned_by: str | None = None


@dataclass
class FakePackages:
    offered: str = NEXT
    installed: dict[str, str] = field(default_factory=dict)  # by host; one that is not listed has FIRST
    running: dict[str, str] = field(default_factory=dict)  # by daemon: slurmdbd, slurmctld, and slurmd by node
    moving: dict[str, str] = field(default_factory=dict)  # by host: from which version, while a move goes on
    point: Point | None = None
    before: dict[str, str] = field(default_factory=dict)  # by change: the version that its backup was made of

    def on(self, host: str) -> str:
        return self.installed.get(host, FIRST)

    def of(self, daemon: str) -> str:
        return self.running.get(daemon, FIRST)

    @property
    def outdated(self) -> list[str]:
        """Daemons of the controller whose program was replaced since they started."""
        return [one for one in ("slurmdbd", "slurmctld") if self.of(one) != self.on(CONTROLLER_HOST)]

    def target(self, verb: str, change: str, wanted: str) -> str | AdapterError:
        """The version to move to, or why nothing is touched."""
        if verb == "upgrade":
            return wanted if "-" in wanted else self.offered
        if self.point is None or self.point.returned_by not in (None, change):
            return AdapterError("nothing_to_return_to", "Nothing was touched: there is nothing to return to")
        return self.point.version

    def begin(self, verb: str, change: str, target: str) -> str:
        """Keep what is needed to finish or to return; the version from which the play reports that it moved.

        An upgrade knows it from its backup, also in a later run; a rollback reports what it finds installed.
        """
        now = self.on(CONTROLLER_HOST)
        if verb == "rollback":
            return now
        before = self.before.setdefault(change, self.moving.get(CONTROLLER_HOST, now))
        if target != now and (self.point is None or self.point.change != change):
            self.point = Point(change, now)
        return before

    def move(
        self, host: str, daemons: list[str], target: str, restart: Callable[[str], None], moment: Callable[[], None]
    ) -> None:
        """Packages first, then the daemons in order. A run that is cut off is finished by the next."""
        if self.on(host) != target:
            moment()
            self.moving.setdefault(host, self.on(host))
            self.installed[host] = target
        for daemon in daemons:
            if self.of(daemon) != target:
                moment()
                restart(daemon)
                self.running[daemon] = target
        moment()
        self.moving.pop(host, None)


def upstream(version: str) -> str:
    return version.partition("-")[0]
