"""Why work is done: an operation, the deploy, or a cause of the runner's own. Pure.

The correlation id of the cause is on every call to the platform and on every log line of the work. Work that no
operation requests has an id of its own: it names the rule that asked for it, and is made once a tick.
"""

import re
from dataclasses import dataclass, field
from uuid import UUID, uuid5

from runner.model import trace
from runner.model.plan import Claim, Play, Step, Wait, operations_of
from runner.model.platform import AppInstance, InstanceStatus, Member, Operation
from runner.model.trace import TraceContext, read_traceparent
from runner.model.world import World

# In these statuses work without an operation is routine. In others it belongs to the deploy or the deletion.
ROUTINE = (InstanceStatus.RUNNING, InstanceStatus.STOPPED)
NAME_CHARS = 60


@dataclass(frozen=True)
class Cause:
    """`given` is where the request stands in a trace of its sender's; `deploy_of` the instance that is brought up."""

    correlation_id: str
    operation_id: UUID | None = None
    given: TraceContext | None = field(default=None, compare=False)
    deploy_of: UUID | None = field(default=None, compare=False)

    @property
    def trace_id(self) -> str:
        """The sender's trace, else one of our own that each runner derives alike."""
        return self.given.trace_id if self.given else trace.trace_id_of(self.correlation_id)

    @property
    def root_span_id(self) -> str | None:
        """The span of the request as a whole, which ticks are under. Routine work has none."""
        if self.operation_id:
            return trace.span_id_of("operation", self.operation_id)
        return trace.span_id_of("deploy", self.deploy_of) if self.deploy_of else None


def of_operation(operation: Operation) -> Cause:
    return Cause(operation.correlation_id, operation.id, read_traceparent(operation.traceparent))


def of_step(step: Step, world: World) -> Cause:
    """The cause of one step. A step for several operations has the id of the first; see `of_member`."""
    match step:
        case Claim(subject=Operation() as claimed):
            return of_operation(claimed)
    requested = operations_of(step)
    return of_operation(requested[0]) if requested else of_world(world)


def of_member(step: Play, member_id: UUID, world: World) -> Cause:
    """The cause of what a play does to one of its members."""
    operation = step.operations.get(member_id) or step.operation
    return of_operation(operation) if operation else of_world(world)


def of_instance(instance: AppInstance) -> Cause:
    return Cause(instance.correlation_id, given=read_traceparent(instance.traceparent), deploy_of=instance.id)


def of_world(world: World) -> Cause:
    """The cause of what no operation requests."""
    if world.by_hand:
        return Cause(world.by_hand)
    return of_tick(world.instance, world.tick_id, world.routine)


def of_tick(instance: AppInstance, tick_id: str, routine: str = "") -> Cause:
    """The cause of a tick's own work, named by the rule that asked for it once that is known."""
    if instance.status not in ROUTINE:
        return of_instance(instance)
    return Cause(_own_id(instance, routine or "tick", tick_id))


def of_marked(member: Member, instance: AppInstance) -> Cause:
    """The cause of the work for which a member is held, by its own record."""
    notes = member.notes
    if (notes.correlation_id or member.correlation_id) in (None, instance.correlation_id):
        return of_instance(instance)  # under its span, not beside it
    given = TraceContext(notes.trace_id) if notes.trace_id and notes.correlation_id else None
    return Cause(notes.correlation_id or str(member.correlation_id), given=given)


def routine(steps: tuple[Step, ...], world: World) -> World:
    """The world with the name of the routine work that these steps begin; reports after it belong to it."""
    own = [step for step in steps if not isinstance(step, Wait) and not operations_of(step)]
    if not own:
        return world
    first = next((step for step in own if isinstance(step, Play)), own[0])
    name = first.rule if isinstance(first, Play) else first.play_rule or (world.routine or first.rule)
    return world.later(routine=name)


def _own_id(instance: AppInstance, name: str, tick_id: str) -> str:
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:NAME_CHARS]
    return f"{label}-{uuid5(instance.id, f'{name}/{tick_id}')}"
