"""The name by which Slurm knows a member."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from runner.intent.addresses import HOSTNAME
from runner.model.names import WORKER
from runner.model.platform import Member, MemberStatus


def node_name(member: Member) -> str | None:
    """The name Slurm knows the member by, if it is one: it was told by a host and will be given to the controller."""
    known = member.adapter_detail.get("worker_hostname")
    return known if isinstance(known, str) and HOSTNAME.fullmatch(known) else None


def names_on_record(members: Iterable[Member]) -> dict[str, UUID]:
    """Which member has which node, by the records."""
    return {name: one.id for one in members if one.status != MemberStatus.DELETED and (name := node_name(one))}


def nodes_on_record(members: Iterable[Member], on_record: Iterable[Member]) -> dict[str, Any]:
    """For plays with a worker whose node has no name on record yet: the names that its host may not give."""
    if all(member.component_key != WORKER or node_name(member) for member in members):
        return {}
    names = names_on_record(on_record)
    return {"slurm_nodes_on_record": {name: str(member_id) for name, member_id in names.items()}}
