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
from runner.model.names import CONTROLLER, WORKER
from runner.model.plan import AdapterError, Announce, Detail, Refuse, SetInstance, SetMember, Step
from runner.model.platform import Health, InstanceStatus, Member, MemberStatus, Operation
from runner.slurm.decide.instance import queue, whole_cluster
from runner.slurm.decide.members import UNFINISHED, fail, host_problem
from runner.slurm.decide.workers import leave
from runner.slurm.decide.workers.join import joined_by
from runner.slurm.decide.workers.operations import joined_results
from runner.slurm.world import World

# The policy of a cluster that is being deployed, which this verb puts to use.
Cluster = Callable[[World], list[Step]]


class Terms(BaseModel):
    """`parameters` of retry: none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def verb(cluster: Cluster) -> queue.Verb:
    """If the retry is cancelled, the deploy continues.

    The controller comes up; workers that were not ready fail and can be added again.
    """
    return queue.Verb((InstanceStatus.FAILED,), lambda world, operation: carry_out(world, operation, cluster), check)


def check(world: World, operation: Operation) -> None:
    leave.read_as(Terms, operation.parameters)
    status = world.instance.status
    if status != InstanceStatus.FAILED:
        raise IntentError("instance_state", f"the instance is {status}: only a deploy that has failed is tried again")


def carry_out(world: World, operation: Operation, cluster: Cluster) -> list[Step]:
    known, mine = queue.noted(world, operation), joined_by(world, operation)
    if known.get("verdict"):
        return whole_cluster.ended(operation, known, joined_results(mine))
    if not known:
        reasons = [{"code": "retrying", "message": "the deploy is tried again; what is there already is kept"}]
        return queue.say(world, operation, status=InstanceStatus.DEPLOYING, phase="retrying", reasons=reasons)
    again = [_try_again(world, member, operation) for member in _failed(world, operation)]
    if again:
        return list(again)
    unfinished = [member for member in mine if member.status in UNFINISHED]
    if whole_cluster.controller_of(world).status == MemberStatus.READY and not unfinished:
        return _end(world, operation, mine)
    stand_in = (_as_add(operation, unfinished),) if unfinished else ()
    return _ours(operation, cluster(world.later(operations=stand_in, instance_operations=())))


def _failed(world: World, operation: Operation) -> list[Member]:
    """Whose attempt is over and was not made by this operation; of several on one machine the latest."""
    latest: dict[tuple[str, UUID | None], Member] = {}
    for member in sorted(world.members, key=lambda one: (str(one.created_at), str(one.id))):
        if member.status != MemberStatus.DELETED and member.component_key in (CONTROLLER, WORKER):
            latest[member.component_key, member.allocation_id] = member
    return [
        member
        for member in latest.values()
        if member.status == MemberStatus.FAILED
        and not leave.note(member)
        and member.adapter_detail.get("retried_by") != str(operation.id)
    ]


def _try_again(world: World, member: Member, operation: Operation) -> SetMember:
    said: Detail = {"retried_by": str(operation.id), "attempt": 0, "next_attempt_at": None}
    if member.component_key == WORKER:
        said["operation_id"] = str(operation.id)
    error, _ = host_problem(world, member)
    if error:  # its machine is gone or cannot be used: no attempt could help
        failed = fail(world, member, error)
        return replace(failed, detail=failed.detail | said)
    why = "the deploy is tried again"
    return SetMember(why, member, MemberStatus.REQUESTED, said | {"last_adapter_error": None})


def _as_add(operation: Operation, members: Sequence[Member]) -> Operation:
    """The operation as what it stands in for: it joins these workers."""
    allocations = [member.allocation_id for member in members]
    return operation.model_copy(
        update={"operation": "add", "component_key": WORKER, "allocation_ids": allocations, "parameters": {}}
    )


def _ours(operation: Operation, steps: list[Step]) -> list[Step]:
    """Steps of the deploy's add are attributed to the retry; if the instance fails again, the retry ends."""
    told: list[Step] = []
    for step in steps:
        if isinstance(step, Refuse):
            told.append(Refuse(step.why, operation, step.code))
            continue
        ends = isinstance(step, SetInstance) and step.status == InstanceStatus.FAILED
        if (ends or isinstance(step, Announce)) and not any(isinstance(one, Refuse) for one in told):
            last = next(one for one in steps if isinstance(one, SetInstance))
            (reason, *_) = last.detail["reasons"]
            told.append(Refuse(str(reason["message"]), operation, str(reason["code"])))
        told.append(step)
    return told


def _end(world: World, operation: Operation, mine: Sequence[Member]) -> list[Step]:
    failed = [member for member in mine if member.status != MemberStatus.READY]
    error = None
    if failed:
        first = failed[0].adapter_detail.get("last_adapter_error") or {}
        why = f"{len(failed)} of {len(mine)} workers failed again; the first: {first.get('message', 'no reason known')}"
        error = AdapterError("partly_failed", why)
    result = joined_results(mine)
    # What the cluster is now is said next, by the same code that says it after any deploy.
    return whole_cluster.end(
        world, operation, result, error=error, health=Health.PROGRESSING, reasons=[], phase="deployed"
    )
