"""Who pays for the machines of a shared runtime: its owner, except for workers that a project contributed. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from runner.model.platform import AppInstance, Member, MemberStatus
from runner.slurm.components import CONTROLLER


@dataclass(frozen=True)
class Charge:
    """The allocations of one project, by what they serve as."""

    project_id: UUID | None
    controllers: int = 0
    reserved_workers: int = 0
    contributed_workers: int = 0

    @property
    def sentence(self) -> str:
        parts = {
            "controller": self.controllers,
            "reserved worker": self.reserved_workers,
            "contributed worker": self.contributed_workers,
        }
        named = [f"{count} {what}{'' if count == 1 else 's'}" for what, count in parts.items() if count]
        return f"project {self.project_id} pays for {', '.join(named) or 'nothing now'}"


def charges(runtime: AppInstance, members: Iterable[Member]) -> list[Charge]:
    """One entry for each project that pays, the owner first."""
    alive = [one for one in members if one.status != MemberStatus.DELETED]
    own = [one for one in alive if one.source_project_id is None]
    leads = sum(one.component_key == CONTROLLER for one in own)
    found = [Charge(runtime.owner_project_id, controllers=leads, reserved_workers=len(own) - leads)]
    for project in sorted({one.source_project_id for one in alive if one.source_project_id}, key=str):
        count = sum(one.source_project_id == project for one in alive)
        found.append(Charge(project, contributed_workers=count))
    return found
