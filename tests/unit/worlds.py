"""Worlds to decide about: small builders, so that a test states only what matters to it."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from runner.model.entitlements import Entitlement, Entitlements
from runner.model.plan import AdapterError, Plan, Play, Step, stamp
from runner.model.platform import NOT_FOUND, Allocation, AppInstance, Member, Operation, Resolution
from runner.model.world import Outcome, World
from runner.slurm import detail
from runner.slurm.snapshot import ControllerState, Node, Snapshot
from tests.unit.claims_oracle import check_claimed
from tests.unit.platform_oracle import check_accepted

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SOON = NOW + timedelta(minutes=1)
ME = "runner-under-test"
OTHER = "other"
THEIR_CLAIM: dict[str, Any] = {"claimed_by": OTHER, "lease_expires_at": stamp(SOON)}
THEY_HOLD_IT = f"runner {OTHER} holds it until {stamp(SOON)}"
PROJECT = UUID(int=1)
KEY = "ssh-ed25519 " + "A" * 68
UNREACHABLE = AdapterError("host_unreachable", "no route", "retryable")
_ids = itertools.count(1)


def fresh_id() -> UUID:
    """An id above all earlier ones: what is decided by the order of ids is the same each time, as properties need."""
    return UUID(int=next(_ids) << 96)


def entitled(*projects: UUID) -> Entitlements:
    """What the platform answers where these projects may use the app."""
    fields: Any = {"app_slug": "slurm-reference", "status": "enabled"}
    return Entitlements(tuple(Entitlement(id=UUID(int=11), project_id=one, **fields) for one in projects))


def allocation(number: int, **changes: Any) -> Allocation:
    fields: dict[str, Any] = {
        "id": UUID(int=100 + number),
        "status": "active",
        "connection": {"host": f"10.0.0.{number}", "port": 22, "username": "ops", "host_keys": [KEY]},
        "gpus": 0,
    }
    return Allocation(**(fields | changes))


def not_found(number: int) -> Allocation:
    """One for which the platform answered 404."""
    return Allocation(id=UUID(int=100 + number), status=NOT_FOUND)


def keyless(number: int) -> Allocation:
    """A machine whose host keys the platform does not send."""
    return allocation(number, connection={"host": f"10.0.0.{number}", "port": 22, "username": "ops"})


def instance(**changes: Any) -> AppInstance:
    fields: dict[str, Any] = {
        "id": UUID(int=7),
        "org_id": UUID(int=2),
        "project_id": PROJECT,
        "app_slug": "slurm-reference",
        "app_version": "1.0.0",
        "operating_mode": "tenant_dedicated",
        "control_plane_scope": "project",
        "runtime_backend": "slurm",
        "status": "requested",
        "health": "unknown",
        "placement_intent": {
            "mode": "split",
            "controller_allocation_id": str(UUID(int=101)),
            "worker_allocation_ids": [str(UUID(int=102)), str(UUID(int=103))],
        },
        "config": {},
        "access_credential_id": UUID(int=9),
        "effective_policy": {"regions": None, "skus": None},
        "correlation_id": "corr-1",
    }
    return AppInstance(**(fields | changes))


def controller(**changes: Any) -> Member:
    recorded = changes.pop("adapter_detail", {})
    fields: dict[str, Any] = {
        "id": UUID(int=0xC0 << 120),
        "app_instance_id": UUID(int=7),
        "component_key": "controller",
        "allocation_id": UUID(int=101),
        "status": "requested",
        "adapter_detail": detail.blank("controller") | recorded,
    }
    return Member(**(fields | changes))


def worker(operation: Operation, number: int, **changes: Any) -> Member:
    recorded = changes.pop("adapter_detail", {})
    fields: dict[str, Any] = {
        "id": fresh_id(),
        "app_instance_id": UUID(int=7),
        "component_key": "worker",
        "allocation_id": UUID(int=100 + number),
        "status": "requested",
        "adapter_detail": detail.blank("worker", operation.id) | recorded,
    }
    return Member(**(fields | changes))


def add(*numbers: int, **changes: Any) -> Operation:
    fields: dict[str, Any] = {
        "id": fresh_id(),
        "operation": "add",
        "component_key": "worker",
        "allocation_ids": [UUID(int=100 + number) for number in numbers],
        "status": "accepted",
        "correlation_id": "corr-1",
        "created_at": NOW - timedelta(minutes=1),
    }
    return Operation(**(fields | changes))


def claimed_by_us(operation: Operation) -> Operation:
    return operation.model_copy(update={"status": "running", "claimed_by": ME, "lease_expires_at": SOON})


def claimed_by_another(operation: Operation) -> Operation:
    """The operation as another runner carries it out."""
    return operation.model_copy(update={"status": "running", "claimed_by": OTHER, "lease_expires_at": SOON})


def held(member: Member, **changes: Any) -> Member:
    """The member as another runner holds it."""
    return member.model_copy(update={"adapter_detail": member.adapter_detail | THEIR_CLAIM | changes})


def world(**changes: Any) -> World:
    fields: dict[str, Any] = {
        "instance": instance(),
        "now": NOW,
        "runner_id": ME,
        "members": (controller(),),
        "operations": (),
        "allocations": {one.id: one for one in (allocation(n) for n in range(1, 9))},
        "packages": Resolution(decision="allow"),
        "entitlements": entitled(PROJECT),
    }
    return World(**(fields | changes))


def deployed(*members: Member, **changes: Any) -> World:
    """A cluster that runs, with these workers, and was observed just now."""
    status = {"observed_at": stamp(NOW), "reasons": []}
    running = instance(status="running", health="healthy", status_detail=status)
    return world(instance=running, members=(controller(status="ready"), *members), **changes)


def node(**changes: Any) -> Node:
    fields: dict[str, Any] = {"state": "IDLE", "flags": {"DYNAMIC_NORM"}, "cpus": 2, "memory_mb": 1000}
    return Node(**(fields | changes))


def snapshot(nodes: dict[str, Node] | None, **controller_changes: Any) -> Snapshot:
    good: dict[str, Any] = {
        "hostname": "ctl",
        "munge": "active",
        "slurmctld": "active",
        "slurmdbd": "active",
        "mariadb": "active",
        "ping": "UP",
        "slurm_version": "22.05.8",
        "package_version": "22.05.8-4",
        "config_version": "sha256:abc",
        "cluster_name": "gs0",
        "started_at": NOW,
        "submit_account": "default",
    }
    seen = ControllerState(**(good | controller_changes))
    return Snapshot(observed_at=NOW, controller=seen, nodes=nodes, samples=[], partitions={"main": "UP"})


def joined(hostname: str) -> Outcome:
    return Outcome("registering", {"worker_hostname": hostname, "cpus": 2, "memory_mb": 1000, "gpus": 0})


def after(now: World, play: Play, outcomes: dict[UUID, Outcome], seen: Snapshot | None) -> World:
    """The world when a play is over and has brought this back."""
    return now.after_play(play, outcomes, seen)


def settle(start: World, decide: Any, *, rounds: int = 50) -> tuple[World, list[Step], Play | None]:
    """Decide and carry out in memory until a play is planned or nothing is left to do."""
    steps: list[Step] = []
    now = start
    for _ in range(rounds):
        plan: Plan = decide(now)
        steps += plan.steps
        for step in plan.before_play:
            check_accepted(now, step)
            now = now.after(step)
        if plan.idle or plan.play:
            if plan.play:
                check_claimed(now, plan.play)
            return now, steps, plan.play
    raise AssertionError(f"does not settle: {steps[-5:]}")


def of_kind(steps: Sequence[Step], kind: type[Any]) -> list[Any]:
    return [step for step in steps if isinstance(step, kind)]
