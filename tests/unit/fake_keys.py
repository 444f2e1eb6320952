"""munge keys in memory: what Vault has, what lies beside the key on each host, and which key each munged holds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from runner.model.plan import AdapterError, Play
from runner.model.platform import Member
from runner.model.world import Outcome
from runner.slurm.components import CONTROLLER
from runner.slurm.node_names import node_name

OWN = AdapterError("path_in_the_way", "a directory")
HELD = AdapterError("rotation_held", "another host", "retryable")
NO_ANSWER = AdapterError("controller_silent", "no answer", "retryable")


class Killed(Exception):
    """The runner was ended here, and its play with it."""


@dataclass
class FakeKeys:
    current: str = "key-0"
    coming: str | None = None
    live: dict[str, str] = field(default_factory=dict)
    staged: dict[str, str] = field(default_factory=dict)
    made: int = 0

    def rotate(self, play: Play, down: set[str], broken: set[str], moment: Callable[[], None]) -> dict[UUID, Outcome]:
        """Do what the play does, and return the outcome of each host. `moment` is called before each change."""
        names = {member.id: _name(member) for member in play.members}
        up = {one: name for one, name in names.items() if name not in down}
        outcomes = {
            one: Outcome(error=AdapterError("host_unreachable", "no route", "retryable", name))
            for one, name in names.items()
            if one not in up
        }
        moment()
        match play.terms["rotation_step"]:
            case "stage":
                return outcomes | self._stage(up, broken, moment)
            case "switch":
                return outcomes | self._switch(up, moment)
        self._drop()
        return outcomes | dict.fromkeys(up, Outcome("rotating"))

    def _stage(self, up: dict[UUID, str], broken: set[str], moment: Callable[[], None]) -> dict[UUID, Outcome]:
        if self.coming is None:
            self.made += 1
            self.coming = f"key-{self.made}"
        for name in up.values():
            moment()
            if name not in broken:
                self.staged[name] = self.coming
        if not broken & set(up.values()):
            return dict.fromkeys(up, Outcome("staged"))
        moment()
        self._drop()
        return {one: Outcome("staging", {}, OWN if name in broken else HELD) for one, name in up.items()}

    def _switch(self, up: dict[UUID, str], moment: Callable[[], None]) -> dict[UUID, Outcome]:
        if CONTROLLER not in up.values():
            return dict.fromkeys(up, Outcome(error=NO_ANSWER))
        if self.coming:
            self.current, self.coming = self.coming, None
        for name in up.values():
            moment()
            self.live[name] = self.current
            self.staged.pop(name, None)
        return dict.fromkeys(up, Outcome("rotated", {"switched_at": 1.0}))

    def disagrees(self, name: str) -> bool:
        """Whether that host's munged holds another key than the controller's, as between two steps of a switch."""
        here, there = self.live.get(name), self.live.get(CONTROLLER)
        return here is not None and there is not None and here != there

    def _drop(self) -> None:
        self.coming = None
        self.staged.clear()


def _name(member: Member) -> str:
    return CONTROLLER if member.component_key == CONTROLLER else node_name(member) or "nameless"
