"""A simulated cluster in which daemons die, workers stop answering and a configuration is changed by hand."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from runner.model.plan import AdapterError, Play
from runner.model.platform import Member
from runner.model.world import Outcome, World
from runner.slurm.snapshot import Node, Snapshot
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.lifecycle import cluster, serving, the
from tests.unit.worlds import NOW, UNREACHABLE, after

DAEMONS = ("munge", "mariadb", "slurmdbd", "slurmctld")


def _not_responding(node: Node, given_up: bool) -> dict[str, Any]:
    down = {"state": "DOWN", "reason": node.reason or "Not responding", "reason_by": None if node.reason else "slurm"}
    return {"flags": node.flags | {"NOT_RESPONDING"}, **(down if given_up else {})}


@dataclass
class Drifting(FakeSlurm):
    """A cluster in which daemons die; a play that converges starts them again, unless something holds them down."""

    stopped: set[str] = field(default_factory=set)
    config_changed: bool = False
    dead: set[str] = field(default_factory=set)
    held_down: set[str] = field(default_factory=set)
    touched: list[str] = field(default_factory=list)
    breaks_off: bool = False
    given_up: bool = True  # Slurm shows a dead worker as not responding first, and as down after a while

    def seen(self) -> Snapshot | None:
        found = super().seen()
        if found is None:
            return None
        nodes: Any = {
            name: node.model_copy(update=_not_responding(node, self.given_up)) if name in self.dead else node
            for name, node in (found.nodes or {}).items()
        }
        daemons: dict[str, Any] = dict.fromkeys(self.stopped, "inactive")
        if self.stopped & {"munge", "slurmctld"}:
            nodes, daemons["ping"] = None, "DOWN"
        ruler = found.controller.model_copy(update={"config_intact": not self.config_changed, **daemons})
        return found.model_copy(update={"controller": ruler, "nodes": nodes})

    def run(self, world: World, play: Play) -> World:
        if not self.answers or not any(kind == "repair" for kind, _ in play.acts):
            return super().run(world, play)
        if play.playbook == "deploy":
            self.touched.append("controller")
            self.stopped &= self.held_down
            self.config_changed = False
            if self.breaks_off:
                broken = AdapterError("unit_failed", "it does not start", "repairable")
                return after(world, play, {play.members[0].id: Outcome("accounting", {}, broken)}, None)
            return after(world, play, {play.members[0].id: Outcome("serving")}, self.seen())
        outcomes: dict[UUID, Outcome] = {}
        for member in play.members[1:]:
            name = member.adapter_detail["worker_hostname"]
            if name in self.hosts_down:
                outcomes[member.id] = Outcome("preflight", {}, UNREACHABLE)
                continue
            self.touched.append(name)
            if name not in self.held_down:
                self.dead.discard(name)
            outcomes[member.id] = Outcome("serving", {"worker_hostname": name})
        # Where every worker fell out, the run ends before the controller is asked.
        everyone_gone = all(outcome.error for outcome in outcomes.values())
        return after(world, play, outcomes, None if everyone_gone else self.seen())


def world_of(slurm: FakeSlurm, *workers: Member, **changes: Any) -> World:
    now = cluster(*workers)
    stale = NOW - timedelta(days=1)
    status = {"observed_at": stale.isoformat(), "reasons": []}
    return now.later(
        instance=now.instance.model_copy(update={"status_detail": status | changes.pop("status", {})}),
        **changes,
    )


def repairs(plays: Iterable[Play]) -> list[Play]:
    return [play for play in plays if any(kind == "repair" for kind, _ in play.acts)]


def note(now: World, member: Member) -> dict[str, Any]:
    return the(now, member).adapter_detail.get("repair") or {}


def a_cluster(**broken: Any) -> tuple[Drifting, Member, World]:
    one = serving(2)
    slurm = Drifting({"w2": FakeNode({7}), "w3": FakeNode()}, **broken)
    return slurm, one, world_of(slurm, one, serving(3))
