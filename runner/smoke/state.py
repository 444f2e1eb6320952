"""Whether the records show what a step has to end in. Pure."""

from collections.abc import Sequence
from uuid import UUID

from runner.model.names import host_name
from runner.model.platform import AppInstance, Member, MemberStatus
from runner.smoke.plan import At, State


def member_at(at: At, members: Sequence[Member], allocations: Sequence[UUID]) -> Member | None:
    """The member of that component on that allocation: the one that is not deleted, else the last that was."""
    found = [one for one in members if (one.component_key, one.allocation_id) == (at.component, allocations[at.place])]
    found.sort(key=lambda one: (one.status != MemberStatus.DELETED, str(one.created_at)))
    return found[-1] if found else None


def lacks(state: State, instance: AppInstance, members: Sequence[Member], allocations: Sequence[UUID]) -> str | None:
    """What is not yet as the state requires it, in a sentence."""
    if state.instance and instance.status != state.instance:
        return f"the instance is {instance.status}, not {state.instance}"
    if state.health and instance.health != state.health:
        return f"its health is {instance.health}, not {state.health}"
    if state.member is None:
        return None
    member = member_at(state.member, members, allocations)
    if member is None:
        place = f"allocation {allocations[state.member.place]}"
        return f"no {state.member.component} is on {place}"
    return f"{host_name(member)} is {member.status}, not {state.status}" if member.status != state.status else None


def has_failed(state: State, instance: AppInstance, members: Sequence[Member], allocations: Sequence[UUID]) -> bool:
    """Whether it cannot come any more without a person: the instance or the member has failed."""
    member = member_at(state.member, members, allocations) if state.member else None
    return instance.status == "failed" or (member is not None and member.status == MemberStatus.FAILED != state.status)
