"""Machines in mind, for ticks against a real platform: a play takes a moment and succeeds."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from runner.inventory import CONTROLLER
from runner.plan import Play
from runner.platform.models import Member
from runner.settings import Settings
from runner.slurm import ControllerState, Node, Snapshot
from runner.translate import Story
from runner.world import Outcome, World


class Hosts:
    """Machines in mind. Remembers each play's members and who ran it, and notices two plays on one member."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.runs: list[tuple[str, str, frozenset[UUID]]] = []
        self.overlaps: list[UUID] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self._busy: set[UUID] = set()
        self._lock = threading.Lock()

    def play(self, step: Play, _world: World, _access: Any, runner: Settings, **_: Any) -> Story:
        touched = {m.id for m in step.members if step.playbook == "deploy" or m.component_key != CONTROLLER}
        touched |= {member_id for kind, member_id in step.acts if kind == "restart"}
        with self._lock:
            self.overlaps += self._busy & touched
            self._busy |= touched
            self.runs.append((runner.runner_id, step.playbook, frozenset(touched)))
        self.meanwhile()
        time.sleep(0.2)
        with self._lock:
            self._busy -= touched
            return Story({m.id: self._outcome(m) for m in step.members}, self._snapshot())

    def _outcome(self, member: Member) -> Outcome:
        if member.component_key == CONTROLLER:
            return Outcome("serving")
        name = f"w{member.id.hex[:8]}"
        self.nodes[name] = Node(state="IDLE", cpus=2, memory_mb=1000)
        return Outcome("registering", {"worker_hostname": name, "cpus": 2, "memory_mb": 1000, "gpus": 0})

    def _snapshot(self) -> Snapshot:
        active = dict.fromkeys(("munge", "slurmctld", "slurmdbd", "mariadb"), "active")
        known = {"ping": "UP", "config_version": "sha256:x", "submit_account": "default", "hostname": "ctl"}
        state = ControllerState(**active, **known)  # type: ignore[arg-type]
        return Snapshot(observed_at=datetime.now(UTC), controller=state, nodes=dict(self.nodes), jobs=[])
