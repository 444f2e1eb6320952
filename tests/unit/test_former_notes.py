"""Notes and host ledgers of an earlier release are read by this one. tests/e2e/former_release.py recorded them."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from ansible.module_utils.host import ledger as converge_ledger

from runner.model.member_notes import Stopped
from runner.model.plan import Play, stamp
from runner.model.platform import Allocation, AppInstance, Member, Operation, Resolution
from runner.model.records import Record
from runner.model.world import World
from runner.slurm import notes
from runner.slurm.decide import decide
from runner.slurm.lifecycle_notes import DecommissionNote, StopNote, of_instance
from tests.unit.lifecycle import ask_whole
from tests.unit.worlds import settle

FIXTURES = Path(__file__).parent / "fixtures" / "notes" / "a605804"
SUITES = sorted(path.name for path in FIXTURES.iterdir())
RECORDS = sorted(
    f"{path.parent.name}/{path.stem}" for path in FIXTURES.glob("*/*.json") if not path.stem.startswith("ledger")
)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMDo0Kz2oO2eJ0Tt6wE8N9dXq0cR6a0y6l3Yk1V9m5aT"
# Names that have changed since. `leave` and `stopped` have tests of their own below.
RENAMED = {"wish": "applied_config", "wish_refused": "config_refused", "people_version": "users_version"}
OF_INSTANCE = {"wish": "config_digest"}


def stored(record: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / f"{record}.json").read_text())
    return found


def recorded(record: str) -> World:
    """The world as a tick finds it a moment after the earlier release has written it."""
    found = stored(record)
    instance = AppInstance.model_validate(found["instance"])
    seen = instance.notes.observed_at
    assert seen is not None
    members = tuple(Member.model_validate(one) for one in found["members"])
    return World(
        instance=instance,
        now=seen + timedelta(seconds=5),
        runner_id="new",
        members=members,
        operations=_open(found["member_operations"], of_instance=False),
        instance_operations=_open(found["instance_operations"], of_instance=True),
        allocations={one.allocation_id: _active(one.allocation_id) for one in members if one.allocation_id},
        packages=Resolution(decision="allow"),
    )


def _open(operations: list[dict[str, Any]], *, of_instance: bool) -> tuple[Operation, ...]:
    read = (Operation.model_validate(one).model_copy(update={"of_instance": of_instance}) for one in operations)
    return tuple(one for one in read if one.status in ("accepted", "running"))


def _active(allocation_id: UUID) -> Allocation:
    connection = {"host": "192.0.2.7", "port": 22, "username": "gpuaas", "host_keys": [KEY]}
    return Allocation(id=allocation_id, status="active", connection=connection)


def plain(value: Any) -> Any:
    """A typed value in the form of JSON."""
    if isinstance(value, datetime):
        return stamp(value)
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, Record):
        return value.stored()
    return str(value) if isinstance(value, UUID) else value


def typed(read: Any, raw: dict[str, Any], renamed: dict[str, str]) -> dict[str, Any]:
    """The fields that the earlier release wrote, as this one reads them, by the name that they had."""
    return {name: plain(getattr(read, renamed.get(name, name))) for name in raw}


def the_worker(world: World, hostname: str) -> Member:
    return next(one for one in world.members if one.adapter_detail.get("worker_hostname") == hostname)


def next_play(world: World) -> Play:
    _, _, play = settle(world, decide)
    assert play is not None
    return play


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_that_an_earlier_release_wrote_is_read_with_its_value(record: str) -> None:
    world, found = recorded(record), stored(record)
    for member, raw in zip(world.members, found["members"], strict=True):
        read = notes.of(member)
        assert read.problems == ()
        written = {key: value for key, value in raw["adapter_detail"].items() if value is not None}
        for name in ("leave", "stopped"):
            assert (getattr(read, name) is not None) == (name in written), name
            written.pop(name, None)
        assert len(written) > 15 and typed(read, written, RENAMED) == written
    of_instance = dict(found["instance"]["status_detail"])
    of_instance.pop("lifecycle", None)
    assert typed(notes.instance(world.instance), of_instance, OF_INSTANCE) == of_instance


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("name", ["serving", "same_node"])
def test_a_serving_cluster_of_an_earlier_release_needs_nothing(suite: str, name: str) -> None:
    assert decide(recorded(f"{suite}/{name}")).idle


@pytest.mark.parametrize("suite", SUITES)
def test_a_stopped_cluster_of_an_earlier_release_stays_stopped_until_it_is_started(suite: str) -> None:
    world = recorded(f"{suite}/stopped")
    assert decide(world).idle
    assert {one.notes.stopped for one in world.members} == {Stopped(was="ready", phase="serving")}
    noted = of_instance(world.instance)
    assert isinstance(noted, StopNote)
    assert (noted.result, noted.phase, noted.partitions) == ("done", "stopped", {"main": "UP"})
    play = next_play(world.later(instance_operations=(ask_whole("start"),)))
    assert (play.playbook, play.work) == ("deploy", {"partitions": {"main": "UP"}})
    assert play.acts == {("start", one.id) for one in world.members}


@pytest.mark.parametrize("suite", SUITES)
def test_a_drain_of_an_earlier_release_is_continued_and_not_concluded(suite: str) -> None:
    world = recorded(f"{suite}/draining")
    (drain,) = world.operations
    leave = notes.worker(the_worker(world, "gs-3")).leave
    assert leave and (leave.operation_id, leave.verb, leave.result) == (drain.id, "drain", None)
    assert leave.started_at < world.now
    play = next_play(world)
    order = {"nodes": ["gs-3"], "reason": f"gpuaas:{drain.id}: drain requested"}
    assert (play.playbook, play.work["drain"]) == ("drain_worker", [order])


def test_a_decommission_of_an_earlier_release_is_continued_where_it_was() -> None:
    world = recorded("trixie/decommissioning")
    (asked,) = world.instance_operations
    noted = of_instance(world.instance)
    assert isinstance(noted, DecommissionNote)
    assert (noted.operation_id, noted.result, noted.keep_logs) == (asked.id, None, False)
    gone, left = (notes.worker(the_worker(world, name)) for name in ("gs-2", "gs-3"))
    assert gone.leave and (gone.leave.result, gone.host_cleaned) == ("done", True)
    assert left.leave and (left.leave.operation_id, left.leave.verb, left.leave.result) == (
        asked.id,
        "decommission",
        None,
    )
    play = next_play(world.later(now=world.now + timedelta(minutes=5)))
    assert play.playbook == "drain_worker" and [order["nodes"] for order in play.work["drain"]] == [["gs-3"]]


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("name", ["ledger_controller", "ledger_worker", "ledger_same_node"])
def test_a_ledger_of_an_earlier_release_is_read_whole(suite: str, name: str) -> None:
    path = FIXTURES / suite / f"{name}.json"
    document = json.loads(path.read_text())
    assert document["format"] == 1
    ledger = converge_ledger.read(path)
    assert ledger and ledger.entries == document["entries"]
    assert ledger.baseline == document["baseline"] and ledger.instance is None
