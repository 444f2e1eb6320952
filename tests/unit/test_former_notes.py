"""Notes and host ledgers of an earlier release are read by this one. tests/e2e/former_release.py recorded them."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from ansible.module_utils.host import ledger as converge_ledger

from runner.model.plan import Finish, ForgetSecrets
from runner.model.platform import Allocation, AppInstance, Member, Operation
from runner.model.world import World
from runner.slurm.decide import decide

FIXTURES = Path(__file__).parent / "fixtures" / "notes" / "a605804"
SUITES = sorted(path.name for path in FIXTURES.iterdir())
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMDo0Kz2oO2eJ0Tt6wE8N9dXq0cR6a0y6l3Yk1V9m5aT"


def recorded(suite: str, name: str) -> World:
    """The world as a tick finds it a moment after the earlier release has written it."""
    found: dict[str, Any] = json.loads((FIXTURES / suite / f"{name}.json").read_text())
    instance = AppInstance.model_validate(found["instance"])
    seen = instance.notes.observed_at or instance.updated_at
    assert seen is not None
    members = tuple(Member.model_validate(one) for one in found["members"])
    assert {str(one.id): one.adapter_detail for one in members} == {
        one["id"]: one["adapter_detail"] for one in found["members"]
    }, "a note of the earlier release was dropped"
    assert instance.status_detail == found["instance"]["status_detail"]
    return World(
        instance=instance,
        now=seen + timedelta(seconds=5),
        runner_id="new",
        members=members,
        operations=_open(found["member_operations"], of_instance=False),
        instance_operations=_open(found["instance_operations"], of_instance=True),
        allocations={one.allocation_id: _active(one.allocation_id) for one in members if one.allocation_id},
    )


def _open(operations: list[dict[str, Any]], *, of_instance: bool) -> tuple[Operation, ...]:
    read = (Operation.model_validate(one).model_copy(update={"of_instance": of_instance}) for one in operations)
    return tuple(one for one in read if one.status in ("accepted", "running"))


def _active(allocation_id: UUID) -> Allocation:
    connection = {"host": "192.0.2.7", "port": 22, "username": "gpuaas", "host_keys": [KEY]}
    return Allocation(id=allocation_id, status="active", connection=connection)


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("name", ["serving", "same_node"])
def test_a_serving_cluster_of_an_earlier_release_needs_nothing(suite: str, name: str) -> None:
    assert decide(recorded(suite, name)).idle


@pytest.mark.parametrize("suite", SUITES)
def test_a_stopped_cluster_of_an_earlier_release_stays_stopped(suite: str) -> None:
    assert decide(recorded(suite, "stopped")).idle


@pytest.mark.parametrize("suite", SUITES)
def test_a_drain_of_an_earlier_release_is_claimed_and_not_concluded(suite: str) -> None:
    world = recorded(suite, "draining")
    plan = decide(world)
    assert [one.operation for one in world.operations] == ["drain"]
    assert plan.steps, "the drain is not taken up"
    assert not [step for step in plan.steps if isinstance(step, Finish | ForgetSecrets)]


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("name", ["ledger_controller", "ledger_worker", "ledger_same_node"])
def test_a_ledger_of_an_earlier_release_is_read_whole(suite: str, name: str) -> None:
    path = FIXTURES / suite / f"{name}.json"
    document = json.loads(path.read_text())
    assert document["format"] == 1
    known = converge_ledger.read(path)
    assert known and known.entries == document["entries"]
    assert known.baseline == document["baseline"] and known.instance is None
