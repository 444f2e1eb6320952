"""Workers that have had a claim, and a world of given members."""

from typing import Any

from runner.model.platform import Member
from runner.slurm.world import World
from tests.unit.lifecycle import cluster, serving


def wrk(number: int = 2, status: str = "ready", **detail: Any) -> Member:
    return serving(number, status=status, adapter_detail={"fence": 2} | detail)


def seen(*members: Member, **changes: Any) -> World:
    return cluster().later(members=members, **changes)
