"""Which member is the controller, and which members are in service."""

from collections.abc import Iterable

from runner.model.platform import Member, MemberStatus
from runner.slurm.components import CONTROLLER


def controllers(members: Iterable[Member]) -> list[Member]:
    """All that are not deleted. A cluster has one; records may show none or several."""
    return [one for one in members if one.component_key == CONTROLLER and one.status != MemberStatus.DELETED]


def find_controller(members: Iterable[Member]) -> Member | None:
    """The first one."""
    return next(iter(controllers(members)), None)


def only_controller(members: Iterable[Member]) -> Member | None:
    """The controller, if there is exactly one: where acting on the wrong one would do harm."""
    found = controllers(members)
    return found[0] if len(found) == 1 else None


def ready_controllers(members: Iterable[Member]) -> list[Member]:
    return [one for one in controllers(members) if one.status == MemberStatus.READY]


def ready_workers(members: Iterable[Member]) -> list[Member]:
    return [one for one in members if one.component_key != CONTROLLER and one.status == MemberStatus.READY]
