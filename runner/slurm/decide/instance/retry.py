"""retry: a failed deploy is tried again, and what is already there is kept.

With its first write the instance is deploying again. Members that failed get a new attempt that belongs to this
operation, which then stands in for the `add` of the deploy: everything else is done as in any deploy. A member that is
ready stays as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from runner.intent.errors import IntentError
from runner.model.instance_notes import Reason, StatusDetail
from runner.model.member_notes import MemberNotes
from runner.model.plan import AdapterError, Play, Refuse, SetInstance, SetMember, Step
from runner.model.platform import UNFINISHED, Health, InstanceStatus, Member, MemberStatus, Operation
from runner.slurm.components import CONTROLLER, WORKER
from runner.slurm.decide.instance import queue, whole_cluster
from runner.slurm.decide.members import fail, host_problem, unreadable_note
from runner.slurm.decide.workers.join import joined_by
from runner.slurm.decide.workers.results import joined_results, message_of
from runner.slurm.decide.workers.terms import read_as
from runner.slurm.lifecycle_notes import RetryNote
from runner.slurm.world import World

NO_REASON = Reason(code="instance_failed", message="the deploy has failed again, without a reason")
# The policy of a cluster that is being deployed, which this verb puts to use.
Cluster = Callable[[World], list[Step]]


class Terms(BaseModel):
    """`parameters` of retry: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def verb(cluster: Cluster) -> queue.Verb:
    """If the retry is cancelled, the deploy continues.

    The controller comes up; workers that were not ready fail and can be added again.
    """
    return queue.Verb(
        (InstanceStatus.FAILED,),
        lambda world, operation: carry_out(world, operation, cluster),
        check,
        result=lambda world, operation: joined_results(joined_by(world, operation)),
    )


def check(world: World, operation: Operation) -> None:
    read_as(Terms, operation.parameters)
    status = world.instance.status
    if status != InstanceStatus.FAILED:
        raise IntentError("instance_state", f"the instance is {status}: only a failed deploy is tried again")


def carry_out(world: World, operation: Operation, cluster: Cluster) -> list[Step]:
    note, joined = queue.progress(world, operation, RetryNote), joined_by(world, operation)
    if note is None:
        reasons = [Reason(code="retrying", message="the deploy is tried again; members that are ready are kept")]
        begun = RetryNote.begin(operation, world.now)
        return queue.write_note(world, begun, status=InstanceStatus.DEPLOYING, reasons=reasons)
    again = [_try_again(world, member, operation) for member in _failed(world, operation)]
    if again:
        return list(again)
    unfinished = [member for member in joined if member.status in UNFINISHED]
    if whole_cluster.controller_of(world).status == MemberStatus.READY and not unfinished:
        return _end(world, operation, note, joined)
    stand_in = (_as_add(operation, unfinished),) if unfinished else ()
    return _ours(operation, cluster(world.later(operations=stand_in, instance_operations=())))


def _failed(world: World, operation: Operation) -> list[Member]:
    """Members whose attempt is over and was not made by this operation; of several on one machine the latest."""
    latest: dict[tuple[str, UUID | None], Member] = {}
    for member in sorted(world.members, key=lambda one: (str(one.created_at), str(one.id))):
        if member.status != MemberStatus.DELETED and member.component_key in (CONTROLLER, WORKER):
            latest[member.component_key, member.allocation_id] = member
    return [
        member
        for member in latest.values()
        if member.status == MemberStatus.FAILED
        and not member.notes.leave
        and member.notes.retried_by != operation.id
        and not unreadable_note(member)
    ]


def _try_again(world: World, member: Member, operation: Operation) -> SetMember:
    changes = MemberNotes(retried_by=operation.id, attempt=0, next_attempt_at=None).changes
    if member.component_key == WORKER:
        changes |= MemberNotes(operation_id=operation.id).changes
    error, _ = host_problem(world, member)
    if error:  # its machine is gone or cannot be used: no attempt could help
        failed = fail(world, member, error)
        return replace(failed, detail=failed.detail | changes)
    why = "the deploy is tried again"
    return SetMember(why, member, MemberStatus.REQUESTED, changes | MemberNotes(last_adapter_error=None).changes)


def _as_add(operation: Operation, members: Sequence[Member]) -> Operation:
    """The operation as what it stands in for: it joins these workers."""
    allocations = [member.allocation_id for member in members]
    return operation.model_copy(
        update={"operation": "add", "component_key": WORKER, "allocation_ids": allocations, "parameters": {}}
    )


def _ours(operation: Operation, steps: list[Step]) -> list[Step]:
    """Steps of the deploy's add are attributed to the retry; if the instance fails again, the retry ends."""
    ours: list[Step] = []
    for step in (_without_stand_in(operation, one) for one in steps):
        if isinstance(step, Refuse):
            ours.append(step)
            continue
        refused = any(isinstance(one, Refuse) for one in ours)
        if isinstance(step, SetInstance) and step.status == InstanceStatus.FAILED and not refused:
            (reason, *_) = StatusDetail.read(step.detail).reasons or [NO_REASON]
            ours.append(Refuse(reason.message, operation, reason.code))
        ours.append(step)
    return ours


def _without_stand_in(operation: Operation, step: Step) -> Step:
    if isinstance(step, Play):
        return replace(step, operations=dict.fromkeys((one.id for one in step.members), operation))
    return replace(step, operation=operation)


def _end(world: World, operation: Operation, note: RetryNote, joined: Sequence[Member]) -> list[Step]:
    failed = [member for member in joined if member.status != MemberStatus.READY]
    error = None
    if failed:
        first = message_of(failed[0].notes.last_adapter_error)
        error = AdapterError(
            "partly_failed", f"{len(failed)} of {len(joined)} workers failed again; the first: {first}"
        )
    # The cluster's health is reported next, by the same code as after any deploy.
    ended = note.but(phase="deployed")
    return whole_cluster.end(
        world, operation, ended, error=error, health=Health.PROGRESSING, reasons=[], result=joined_results(joined)
    )
