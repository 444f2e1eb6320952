"""Which member is the controller."""

from collections.abc import Iterable

from runner.model.names import CONTROLLER
from runner.model.platform import Member, MemberStatus


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
