"""Instances that are decommissioned: small builders for tests of a decommission."""

from typing import Any

from runner.model.platform import Member, Operation
from runner.model.world import World
from tests.unit.lifecycle import ask_whole, cluster
from tests.unit.worlds import controller


def decommission(age: int = 0, **parameters: Any) -> Operation:
    return ask_whole("decommission", age=age, parameters=parameters)


def running(*members: Member, asked: tuple[Operation, ...] = (), operations: tuple[Operation, ...] = ()) -> World:
    now = cluster(*members, operations=operations)
    recorded = {"controller_hostname": "ctl", "phase": "serving", "host_touched": True}
    served = controller(status="ready", adapter_detail=recorded)
    return now.later(members=(served, *members), instance_operations=asked)


def deleting(now: World) -> World:
    """As the platform does it when a person deletes the instance."""
    return now.later(instance=now.instance.model_copy(update={"status": "deleting"}))


def ctl(now: World) -> Member:
    return next(one for one in now.members if one.component_key == "controller")
