"""The whole policy of the web farm: a pure function from what is observed to what is done next.

The tables at the end are its order. The first row that has something to do decides; the next round asks again.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from examples.web_farm import members
from examples.web_farm.members import alive, is_ours, operation_of
from examples.web_farm.operations import finish, member_operations
from examples.web_farm.plays import bring_up, look_again, play_for, ready_to_run, remove_webs
from examples.web_farm.report import report
from runner.model.plan import AdapterError, Claim, ForgetSecrets, Plan, Refuse, Step, Wait, Warn, for_operation
from runner.model.platform import OPEN, InstanceStatus, MemberStatus, Operation
from runner.model.world import World

SERVED = ("tenant_dedicated", "project", "web-farm")


def decide(world: World) -> Plan:
    steps: list[Step] = []
    for name, rule in RULES if not _is_going(world) else TEARDOWN:
        found = [replace(step, rule=name) for step in rule(world) or ()]
        steps += found
        if any(not isinstance(step, Wait) for step in found) or (found and name in GUARDS):
            break
    return ready_to_run(world, steps)


# -- guards ---------------------------------------------------------------------------------------------------


def _incomplete(world: World) -> list[Step]:
    gone = world.instance.status == InstanceStatus.DELETED
    return [Wait("nothing is requested", "instance")] if gone or not world.complete else []


def _unreadable(world: World) -> list[Step]:
    return [Warn(f"{one}: nothing is changed until it can be read", one.kind) for one in world.unreadable]


def _scope(world: World) -> list[Step]:
    one = world.instance
    if (one.operating_mode, one.control_plane_scope, one.runtime_backend) == SERVED:
        return []
    why = f"this app serves {', '.join(SERVED)} and no other scope: no host is touched"
    ends: list[Step] = [
        Refuse(why, each, "scope_not_served") for each in (*world.operations, *world.instance_operations)
    ]
    if one.status == InstanceStatus.REQUESTED:
        ends += report(world, AdapterError("scope_not_served", why))
    return [*ends, Wait(why, "instance")]


# -- what came out of the last play ---------------------------------------------------------------------------


def _conclusions(world: World) -> list[Step]:
    """Of each member that the play was for; the balancer in service may have been there for others only."""
    return [
        replace(members.concluded(world, one, outcome), operation=operation_of(world, one))
        for one in alive(world)
        if (outcome := world.outcomes.get(one.id))
    ]


# -- the end of a farm ----------------------------------------------------------------------------------------


def _is_going(world: World) -> bool:
    asked = any(one.operation == "decommission" for one in world.instance_operations)
    return world.instance.status == InstanceStatus.DELETING or asked


def _decommission(world: World) -> list[Step]:
    """Every host is cleaned; the instance is deleted when its last member is."""
    operation = next((one for one in world.instance_operations if one.operation == "decommission"), None)
    if operation and not is_ours(world, operation):
        why = members.held(world, operation.claimed_by, operation.lease_expires_at)
        return [Wait(why, operation.label) if why else Claim("decommission was requested", operation)]
    steps = _teardown(world, operation)
    return for_operation(operation, steps) if operation else steps


def _teardown(world: World, operation: Operation | None) -> list[Step]:
    whom = operation.id if operation else world.instance.id
    if world.instance.status != InstanceStatus.DELETING:
        return report(world, status=InstanceStatus.DELETING)
    begun = [step for one in alive(world) if (step := members.leaves(one, whom))]
    going = [one for one in alive(world) if one.status == MemberStatus.DELETING]
    if begun or going:
        return list(begun) or play_for(world, "decommission", going, first=False)
    if alive(world):
        if operation:
            return [finish(operation, world.members, MemberStatus.DELETED)]
        return [Wait("a host could not be cleaned: request decommission again once it can", "instance")]
    if not world.forgotten:
        return [Wait(world.not_forgotten.message, "instance")] if world.not_forgotten else [ForgetSecrets("all left")]
    # The operation ends first: of an instance that is deleted nothing is read any more.
    if operation:
        return [finish(operation, world.members, MemberStatus.DELETED)]
    return report(world, status=InstanceStatus.DELETED)


def _instance_operations(world: World) -> list[Step]:
    return [
        Refuse("a farm's only operation is decommission", one, "operation_unknown")
        for one in world.instance_operations
        if one.operation != "decommission" and one.status in OPEN
    ]


def _end_member_operations(world: World) -> list[Step]:
    return [Refuse("the farm is being decommissioned", one, "instance_state") for one in world.operations]


def _report(world: World) -> list[Step]:
    return [*report(world)]


Rule = tuple[str, Callable[[World], Iterable[Step]]]
GUARDS = ("incomplete", "unreadable", "scope")
RULES: tuple[Rule, ...] = (
    ("incomplete", _incomplete),
    ("unreadable", _unreadable),
    ("scope", _scope),
    ("conclude", _conclusions),
    ("operations on the instance", _instance_operations),
    ("operations on members", member_operations),
    ("remove", remove_webs),
    ("bring up", bring_up),
    ("report", _report),
    ("look", look_again),
)
TEARDOWN: tuple[Rule, ...] = (
    ("incomplete", _incomplete),
    ("unreadable", _unreadable),
    ("conclude", _conclusions),
    ("operations on members", _end_member_operations),
    ("decommission", _decommission),
)
