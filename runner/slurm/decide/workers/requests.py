"""What the open operations want done on hosts now, gathered so that it becomes as few plays as possible."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from runner.model.limits import named
from runner.model.plan import Act, Detail, Play
from runner.model.platform import Member, Operation
from runner.slurm import notes
from runner.slurm.decide.workers.evict import affected_job
from runner.slurm.node_names import node_name
from runner.slurm.snapshot import Job
from runner.slurm.world import World


@dataclass
class WantedPlays:
    joins: list[Member] = field(default_factory=list)
    drains: dict[str, list[Member]] = field(default_factory=dict)  # by the reason that the node gets
    resumes: dict[str, list[Member]] = field(default_factory=dict)  # by the owner that the node's reason must name
    # Jobs by their address, each with the member that it is in the way of.
    requeues: dict[str, Member] = field(default_factory=dict)
    unpins: dict[str, Member] = field(default_factory=dict)
    cancels: dict[str, Member] = field(default_factory=dict)
    removes: list[Member] = field(default_factory=list)
    homes: list[Member] = field(default_factory=list)  # those of `removes` whose users' homes are deleted too
    forgets: list[Member] = field(default_factory=list)
    operations: dict[UUID, Operation] = field(default_factory=dict)  # by the member that each is about

    @classmethod
    def evicting(cls, how: str, jobs: Sequence[Job], member: Member) -> Self:
        """Jobs out of a member's way. A requeue of one that waits for the node by name clears its required nodes."""
        running = {job.address: member for job in jobs if job.state != "PENDING"}
        waiting = {job.address: member for job in jobs if job.state == "PENDING"}
        return cls(cancels=running | waiting) if how == "cancel" else cls(requeues=running, unpins=waiting)

    def add(self, other: "WantedPlays") -> None:
        self.joins += other.joins
        for reason, members in other.drains.items():
            self.drains.setdefault(reason, []).extend(members)
        for owner, members in other.resumes.items():
            self.resumes.setdefault(owner, []).extend(members)
        self.requeues |= other.requeues
        self.unpins |= other.unpins
        self.cancels |= other.cancels
        self.removes += other.removes
        self.homes += other.homes
        self.forgets += other.forgets
        self.operations |= other.operations

    @property
    def members(self) -> list[Member]:
        """Every member that a request to the controller concerns."""
        named = [*self.joins, *self.removes, *self.forgets]
        named += [*self.requeues.values(), *self.unpins.values(), *self.cancels.values()]
        named += [one for group in (self.drains, self.resumes) for members in group.values() for one in members]
        return list({one.id: one for one in named}.values())

    def join_play(self, controller: Member) -> Play | None:
        if not self.joins:
            return None
        joining = (controller, *self.joins)
        acts: frozenset[Act] = frozenset(("join", member.id) for member in joining)
        return Play(
            f"{len(self.joins)} worker(s) join in one run",
            "add_worker",
            joining,
            acts,
            operations=self.operations_of(self.joins),
        )

    def drain_play(self, world: World, controller: Member) -> Play | None:
        """All commands that only the controller runs, in one run, with one call for each reason."""
        acts: set[Act] = {("drain", member.id) for members in self.drains.values() for member in members}
        acts |= {("resume", member.id) for members in self.resumes.values() for member in members}
        evicted = (*self.requeues.values(), *self.unpins.values(), *self.cancels.values())
        acts |= {("evict", member.id) for member in evicted}
        if not acts:
            return None
        changed = {member_id for _, member_id in acts}
        found = self.operations_of(one for one in self.members if one.id in changed)
        work: Detail = {
            "drain": [{"nodes": _nodes(members), "reason": reason} for reason, members in sorted(self.drains.items())],
            "resume": [{"nodes": _nodes(members), "owner": owner} for owner, members in sorted(self.resumes.items())],
            "requeue": sorted(self.requeues),
            "unpin": sorted(self.unpins),
            "cancel": sorted(self.cancels),
        }
        return Play(self._about(world), "drain_worker", (controller,), frozenset(acts), work, operations=found)

    def remove_play(self, controller: Member) -> Play | None:
        if not self.removes and not self.forgets:
            return None
        acts: set[Act] = {("remove", member.id) for member in self.removes}
        acts |= {("forget", member.id) for member in self.forgets}
        why = f"remove {named(_nodes([*self.removes, *self.forgets])) or 'workers that never joined'}"
        work, terms = {"delete": _nodes(self.forgets)}, {"decommission_homes_of": [str(one.id) for one in self.homes]}
        found = self.operations_of([*self.removes, *self.forgets])
        return Play(why, "remove_worker", (controller, *self.removes), frozenset(acts), work, terms, operations=found)

    def operations_of(self, members: Iterable[Member]) -> dict[UUID, Operation]:
        """The operations that these members are changed for. A member of a cancelled operation has none."""
        return {one.id: self.operations[one.id] for one in members if one.id in self.operations}

    def _about(self, world: World) -> str:
        """For a reader of the plan: which nodes, and which jobs were last seen in the way."""
        parts = []
        for members in self.drains.values():
            parts += [f"drain {node_name(member)}{_in_the_way(world, member)}" for member in members]
        for members in self.resumes.values():
            parts += [f"undrain {node_name(member)} if the drain is ours" for member in members]
        commands = {"requeue": self.requeues, "clear the required nodes of": self.unpins, "cancel": self.cancels}
        for command, jobs in commands.items():
            if jobs:
                parts.append(f"{command} job(s) {named([affected_job(command, address) for address in sorted(jobs)])}")
        return named(parts, "; ")


def _nodes(members: list[Member]) -> list[str]:
    return sorted({found for member in members if (found := node_name(member))})


def _in_the_way(world: World, member: Member) -> str:
    hostname = node_name(member)
    if world.snapshot and hostname:
        jobs = [job.address for job in world.snapshot.jobs_of(hostname)]
    else:
        jobs = [str(one) for one in notes.worker(member).jobs or []]
    return f" (in the way: job {', '.join(jobs)})" if jobs else ""
