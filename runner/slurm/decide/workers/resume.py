"""Resume: a worker that an operation drained serves again. A drain that a person or Slurm set is never undone.

Progress is kept in the member's `leave` note, like that of a drain. It replaces the note of the drain that is undone.
"""

from typing import Final
from uuid import UUID

from runner.model.names import host_name
from runner.model.plan import AdapterError, SetMember, Wait
from runner.model.platform import Member, MemberStatus
from runner.slurm import detail, notes
from runner.slurm.decide.workers import leave
from runner.slurm.decide.workers.clean_host import Progress
from runner.slurm.decide.workers.requests import WantedPlays
from runner.slurm.node_names import node_name
from runner.slurm.node_rules import ANY_OPERATION, drain_holder
from runner.slurm.notes import WorkerLeave, WorkerNotes
from runner.slurm.readiness import worker_problem
from runner.slurm.world import World

NAME: Final = "resume"
RESUMED = "resumed"


def resume(world: World, member: Member, operation_id: UUID) -> Progress:
    """The next step. Conclusions come from the look at the controller that follows the command."""
    note = leave.of_operation(member, operation_id)
    settled = leave.done_or_waiting(world, member, note)
    if settled:
        return settled
    if note is None:
        begun = WorkerLeave(operation_id=operation_id, verb=NAME, started_at=world.now)
        changes = leave.without_former_error(member) | WorkerNotes(leave=begun).changes
        return [SetMember("resume begins", member, member.status, changes)], WantedPlays()
    hostname, snapshot = node_name(member), world.snapshot
    if hostname is None:
        message = f"{host_name(member)} never joined: there is nothing to resume"
        return _fails(world, member, note, AdapterError("node_absent", message))
    if not world.did("resume", member):
        return [], WantedPlays(resumes={ANY_OPERATION: [member]})
    if snapshot is None or snapshot.nodes is None:
        return leave.no_answer(member)
    node = snapshot.nodes.get(hostname)
    if node is None:
        message = f"the controller has no node {hostname}: remove the member, or add its allocation again"
        return _fails(world, member, note, AdapterError("node_absent", message))
    holder = drain_holder(node.flags, node.reason, node.reason_by)
    if holder == "us":
        return [Wait(f"{hostname} is still {node.summary}; it is tried again", host_name(member))], WantedPlays()
    if holder != "none":
        whose = "Slurm itself" if holder == "slurm" else "a person"
        message = (
            f"{hostname} was drained by {whose} ({node.reason or 'no reason given'}), not by an operation: it was left"
            f" as it is. If it may serve, run on the controller: scontrol update NodeName={hostname} State=RESUME"
        )
        return _fails(world, member, note, AdapterError("drain_not_ours", message))
    # One whose slurmd is down serves again when it is back; health shows it until then, and repair sees to it.
    seen = detail.of_worker(snapshot, hostname) | WorkerNotes(phase=RESUMED).changes
    status = member.status
    if worker_problem(snapshot, notes.worker(member)) is None:
        status = MemberStatus.READY
        seen |= detail.back_in_service(member)
    seen |= WorkerNotes(leave=note.ended("done")).changes
    return [SetMember("not drained any more", member, status, seen)], WantedPlays()


def _fails(world: World, member: Member, note: WorkerLeave, error: AdapterError) -> Progress:
    changes = WorkerNotes(leave=note.ended("failed", error.as_note(world.now))).changes
    return [SetMember(f"{error.code}: {error.message}", member, member.status, changes)], WantedPlays()
