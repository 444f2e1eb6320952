"""Node names of members in Slurm."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from runner.model.platform import Member, MemberStatus
from runner.slurm import notes
from runner.slurm.components import CONTROLLER, WORKER


def node_name(member: Member) -> str | None:
    """The worker's node name in Slurm; None for a controller, and until the worker's host has reported it."""
    return notes.worker(member).worker_hostname if member.component_key != CONTROLLER else None


def names_on_record(members: Iterable[Member]) -> dict[str, UUID]:
    """Which member has which node, by the records."""
    return {name: one.id for one in members if one.status != MemberStatus.DELETED and (name := node_name(one))}


def nodes_on_record(members: Iterable[Member], on_record: Iterable[Member]) -> dict[str, Any]:
    """For plays with a worker whose node has no name on record yet: the names that its host may not give."""
    if all(member.component_key != WORKER or node_name(member) for member in members):
        return {}
    names = names_on_record(on_record)
    return {"slurm_nodes_on_record": {name: str(member_id) for name, member_id in names.items()}}
