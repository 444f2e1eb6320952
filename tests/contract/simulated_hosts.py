"""Simulated hosts, for ticks against a real platform: a play takes a moment and succeeds."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from runner.act import plays
from runner.act.play_queue import PlaySlot
from runner.loop import run as loop
from runner.loop.shared import Summary
from runner.model.plan import Play
from runner.model.platform import Member
from runner.model.world import Outcome, World
from runner.platform.client import Client
from runner.settings import Settings
from runner.slurm import attached, desired_config
from runner.slurm.app import SLURM
from runner.slurm.components import CONTROLLER
from runner.slurm.snapshot import ControllerState, Node, Snapshot
from runner.slurm.tenant.accounting_state import remembered
from runner.translate import RunResult
from tests.platform_process import Project
from tests.runner_process import settings

READING = ("observe", "drain_worker", "quiesce")
ASKING_THE_CONTROLLER = ("add_worker", "remove_worker", "follow")  # these change the workers alone
Numbers = dict[UUID, list[tuple[str, int]]]  # per member, the claims of its plays in order: runner and number


def changed_by(step: Play) -> set[UUID]:
    """The members whose hosts a play changes, by its playbook; the runner's claims are not used for this."""
    if step.playbook in READING:
        return {member_id for kind, member_id in step.acts if kind == "restart"}
    workers_only = step.playbook in ASKING_THE_CONTROLLER
    return {one.id for one in step.members if not workers_only or one.component_key != CONTROLLER}


def misnumbered(numbers: Numbers) -> list[tuple[UUID, list[tuple[str, int]]]]:
    """Members that a host would have refused, or that two runners changed under one number."""
    wrong = []
    for member_id, used in numbers.items():
        fences = [fence for _, fence in used]
        shared = len(set(fences)) < len(set(used))
        if fences != sorted(fences) or shared:
            wrong.append((member_id, used))
    return wrong


def run_once(project: Project, **changes: Any) -> Summary:
    """One tick in this process with these settings."""
    own = settings(project, **changes)
    with Client(own) as client:
        return loop.run(client, own, SLURM)


def work(project: Project, **changes: Any) -> list[str]:
    """One tick as above; gives its problems."""
    return run_once(project, **changes).problems


def _users_version(world: World) -> str:
    if not world.instance.is_shared:
        return desired_config.users(world.instance)
    return attached.projects(world.instance, world.members, world.attachments).users_version


class Hosts:
    """Simulated hosts. They record each play's members and its runner, detect two plays on one member, and check claim
    numbers as a host does: a number belongs to one runner, and numbers never decrease."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.dead: set[str] = set()  # reported as down until a play converges them
        self.config_version = "sha256:x"
        self.runs: list[tuple[str, str, frozenset[UUID]]] = []
        self.overlaps: list[UUID] = []
        self.numbers: Numbers = {}
        self.meanwhile: Callable[[], None] = lambda: None
        self.hanging: set[str] = set()  # instances whose plays do not end as long as they are in here
        self.hung: set[str] = set()  # those that are hanging
        self.order: list[tuple[str, str]] = []  # instance and playbook of each play, in the order of their start
        self.projects: dict[str, Any] = {}  # of a shared cluster: its accounts and lists of partitions
        self.remembered: dict[str, dict[str, str]] = {}  # by account, as the text of its QoS keeps them
        self.followed = 0  # how often these were carried out
        self.busy_accounts: list[str] = []
        self.at_once = self.most_at_once = 0
        self._busy: set[UUID] = set()
        self._lock = threading.Lock()

    def play(
        self,
        step: Play,
        world: World,
        _app: Any,
        _access: Any,
        runner: Settings,
        *,
        give_up: Callable[[], bool],
        slot: PlaySlot,
        **_: Any,
    ) -> RunResult:
        touched = changed_by(step)
        with self._lock:
            self.overlaps += self._busy & touched
            self._busy |= touched
            self.runs.append((runner.runner_id, step.playbook, frozenset(touched)))
            for member_id in touched & step.fences.keys():
                self.numbers.setdefault(member_id, []).append((runner.runner_id, step.fences[member_id]))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.order.append((str(world.instance.id), step.playbook))
        self.meanwhile()
        time.sleep(0.2)
        stopped = self._hang(str(world.instance.id), give_up, slot)
        with self._lock:
            self.at_once -= 1
            self._busy -= touched
            if stopped:
                error = plays.stalled_error(runner)
                return RunResult() if give_up() else plays.stopped_result(RunResult(), step, error, SLURM)
            self._update_slurm(step)
            return RunResult({m.id: self._outcome(step, m, world) for m in step.members}, self.snapshot())

    def _hang(self, instance_id: str, give_up: Callable[[], bool], slot: PlaySlot) -> bool:
        """Whether the play was stopped while it hung."""
        while instance_id in self.hanging:
            self.hung.add(instance_id)
            if give_up() or slot.is_to_stop:
                self.hung.discard(instance_id)
                return True
            time.sleep(0.02)
        self.hung.discard(instance_id)
        return False

    @property
    def changing(self) -> list[tuple[str, str]]:
        """Runner and playbook of each play that changes hosts."""
        return [(who, playbook) for who, playbook, touched in self.runs if touched]

    def misnumbered(self) -> list[tuple[UUID, list[tuple[str, int]]]]:
        return misnumbered(self.numbers)

    def _update_slurm(self, step: Play) -> None:
        for order in step.work.get("drain", []):
            for name in order["nodes"]:
                node = self.nodes[name]
                flags = frozenset({*node.flags, "DRAIN"})
                self.nodes[name] = node.model_copy(update={"reason": order["reason"], "flags": flags})

    def _outcome(self, step: Play, member: Member, world: World) -> Outcome:
        users = _users_version(world)
        if step.playbook == "follow_attachments":
            return self._follow_attachments(step, member, users)
        if member.component_key == CONTROLLER:
            live = (
                {"applied_config": desired_config.digest(world.instance, world.members), "users_version": users}
                if step.playbook == "deploy"
                else {}
            )
            return Outcome("serving", live)
        name = f"w{member.id.hex[:8]}"
        self.dead.discard(name)
        if step.playbook == "remove_worker":
            self.nodes.pop(name, None)
            return Outcome("removed", {"residue": []})
        reported = {"config_version": self.config_version, "users_version": users}
        if step.playbook == "follow":
            return Outcome("serving", reported)
        self.nodes.setdefault(name, Node(state="IDLE", cpus=2, memory_mb=1000))
        return Outcome("registering", {"worker_hostname": name, "cpus": 2, "memory_mb": 1000, "gpus": 0, **reported})

    def _follow_attachments(self, step: Play, member: Member, users: str) -> Outcome:
        if member.component_key != CONTROLLER:
            return Outcome("serving", {"users_version": users})
        self.projects = step.terms["slurm_projects"]
        for one in self.projects["accounts"]:
            self.remembered.setdefault(one["name"], {}).update(remembered(one["memory"]))
        self.followed += 1
        found: dict[str, Any] = {
            f"projects_{what}": [] for what in ("closed_by_hand", "foreign", "refused", "unresolved")
        }
        return Outcome("serving", {**found, "projects_busy": list(self.busy_accounts), "users_version": users})

    def may_submit(self, account: str, partition: str = "main") -> bool:
        """Whether the cluster was last made to take jobs of the account there."""
        opened = {one["name"] for one in self.projects.get("accounts", ()) if one["open"]}
        return account in opened and account in self.projects["partitions"].get(partition, ())

    def snapshot(self) -> Snapshot:
        active = dict.fromkeys(("munge", "slurmctld", "slurmdbd", "mariadb"), "active")
        fields = {"ping": "UP", "config_version": self.config_version, "submit_account": "default", "hostname": "ctl"}
        state = ControllerState(**active, **fields)  # type: ignore[arg-type]
        down = {
            "state": "DOWN",
            "flags": frozenset({"NOT_RESPONDING"}),
            "reason": "Not responding",
            "reason_by": "slurm",
        }
        nodes = {name: node.model_copy(update=down) if name in self.dead else node for name, node in self.nodes.items()}
        return Snapshot(
            observed_at=datetime.now(UTC),
            remembered={name: [*kept.values()] for name, kept in self.remembered.items()},
            controller=state,
            nodes=nodes,
            jobs=[],
            reservations=[],
            partitions={"main": "UP"},
        )
