"""Ticks in memory: whole lifecycles of workers, decided for real and carried out on a fake Slurm."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from runner.model.plan import Play, Step
from runner.model.platform import Member, Operation
from runner.model.world import World
from runner.slurm.decide import decide
from tests.unit.fake_slurm import FakeNode, FakeSlurm
from tests.unit.worlds import NOW, add, deployed, fresh_id, settle, worker


def serving(number: int, **changes: Any) -> Member:
    recorded = {
        "worker_hostname": f"w{number}",
        "registered_in_controller": True,
        "phase": "serving",
        "cpus": 2,
        "memory_mb": 1000,
        "gpus": 0,
    } | changes.pop("adapter_detail", {})
    return worker(add(number), number, status=changes.pop("status", "ready"), adapter_detail=recorded, **changes)


def ask(verb: str, *members: Member, allocations: tuple[int, ...] = (), **changes: Any) -> Operation:
    return Operation(
        id=changes.pop("id", None) or fresh_id(),
        operation=verb,
        component_key="worker",
        member_ids=[member.id for member in members],
        allocation_ids=[UUID(int=100 + number) for number in allocations],
        parameters=changes.pop("parameters", {}),
        status="accepted",
        correlation_id="corr-2",
        created_at=NOW + timedelta(seconds=changes.pop("age", 0)),
        **changes,
    )


def ask_whole(verb: str, **changes: Any) -> Operation:
    """An operation on the whole instance."""
    return Operation(
        id=changes.pop("id", None) or fresh_id(),
        operation=verb,
        parameters=changes.pop("parameters", {}),
        status="accepted",
        correlation_id="corr-3",
        created_at=NOW + timedelta(seconds=changes.pop("age", 0)),
        of_instance=True,
        **changes,
    )


def cluster(*members: Member, operations: tuple[Operation, ...] = (), whole: tuple[Operation, ...] = ()) -> World:
    return deployed(*members, operations=operations, instance_operations=whole)


def tick(now: World, slurm: FakeSlurm, *, seconds: int = 60) -> tuple[World, list[Step], list[Play]]:
    """One tick, with its plays carried out; leases are handed back at its end, as the runner does."""
    steps: list[Step] = []
    plays: list[Play] = []
    for _ in range(20):
        now, more, play = settle(now, decide)
        steps += more
        if play is None:
            break
        plays.append(play)
        now = slurm.run(now, play)
    else:
        raise AssertionError("plays without end")
    return between(now, seconds), steps, plays


def between(now: World, seconds: int = 60) -> World:
    """The world as the next tick finds it: everything was handed back."""
    free = {"claimed_by": None, "lease_expires_at": None}
    return now.later(
        members=tuple(
            one.model_copy(update={"adapter_detail": one.adapter_detail | free})
            if one.adapter_detail.get("claimed_by") == now.runner_id
            else one
            for one in now.members
        ),
        operations=tuple(one.model_copy(update={"lease_expires_at": now.now}) for one in now.operations),
        instance_operations=tuple(
            one.model_copy(update={"lease_expires_at": now.now}) for one in now.instance_operations
        ),
        now=now.now + timedelta(seconds=seconds),
        played=frozenset(),
        outcomes={},
        snapshot=None,
        forgotten=False,
        not_forgotten=None,
        fences={},
        took_over=False,
    )


def killed_in(now: World, slurm: FakeSlurm, playbook: str, *, done: bool) -> World:
    """A tick whose runner is killed in that play, before it does anything or right after it has done everything."""
    for _ in range(20):
        now, _, play = settle(now, decide)
        assert play is not None, f"no {playbook} was played"
        if play.playbook == playbook:
            if done:
                slurm.run(now, play)
            return between(now, 200)
        now = slurm.run(now, play)
    raise AssertionError("plays without end")


def the(now: World, member: Member) -> Member:
    return next(one for one in now.members if one.id == member.id)


# -- whole clusters ------------------------------------------------------------------------------------------


def two_workers() -> FakeSlurm:
    return FakeSlurm({"w2": FakeNode(), "w3": FakeNode()})


def both_ready() -> tuple[Any, Any]:
    return serving(2), serving(3)


def note_of(now: World) -> dict[str, Any]:
    found: dict[str, Any] = (now.instance.status_detail or {})["lifecycle"]
    return found


def reported(now: World) -> tuple[str, str | None, list[str]]:
    reasons = (now.instance.status_detail or {})["reasons"]
    return now.instance.status, now.instance.health, [reason["code"] for reason in reasons]


def playbooks(plays: list[Play]) -> list[str]:
    return [play.playbook for play in plays]


def asked_of(now: World, operation: Operation) -> World:
    return now.later(instance_operations=(*now.instance_operations, operation))


def when_stopped(slurm: FakeSlurm, *members: Any, **changes: Any) -> World:
    now, _, _ = tick(cluster(*members, whole=(ask_whole("stop"),), **changes), slurm)
    assert now.instance.status == "stopped"
    return now
