"""What would be done, without doing it: decide's steps, imagined as carried out, up to the first play."""

from datetime import timedelta
from uuid import NAMESPACE_OID, uuid5

from runner import claims, detail
from runner.decide import decide
from runner.plan import (
    AdapterError,
    Claim,
    Detail,
    Finish,
    ForgetSecrets,
    Forgo,
    NewMember,
    Pin,
    Plan,
    Refuse,
    Resolve,
    SetInstance,
    SetMember,
    Step,
    stamp,
)
from runner.platform.models import Member, MemberStatus, Operation, OperationStatus, Resolution
from runner.world import World

MAX_ROUNDS = 200
LEASE = timedelta(minutes=2)


def foresee(world: World) -> list[Step]:
    """All steps of a tick that can be told without touching a host."""
    steps: list[Step] = []
    for _ in range(MAX_ROUNDS):
        plan: Plan = decide(world)
        steps += [step for step in plan.steps if step not in steps]
        if plan.idle or plan.play:
            return steps
        for step in plan.writes:
            world = imagine(world, step)
    raise AssertionError("the plan does not settle: this is a bug in decide")


def imagine(world: World, step: Step) -> World:
    """The world if the step's write worked."""
    until = world.now + LEASE
    match step:
        case Claim(subject=Operation() as operation):
            claimed = {
                "status": OperationStatus.RUNNING,
                "claimed_by": world.runner_id,
                "lease_expires_at": until,
                "attempt": operation.attempt + 1,
            }
            took_over = world.took_over or claims.ran_out(operation)
            return world.with_operation(operation.model_copy(update=claimed)).later(took_over=took_over)
        case Claim(subject=Member() as member, status=status, hold=hold):
            lease = {"claimed_by": world.runner_id, "lease_expires_at": stamp(until)} if hold else {}
            return _numbered(world, member, status, {**member.adapter_detail, **lease})
        case NewMember(operation=operation, component_key=key, allocation_id=allocation):
            made = Member(
                id=uuid5(NAMESPACE_OID, f"{operation.id}/{allocation}"),
                app_instance_id=world.instance.id,
                component_key=key,
                allocation_id=allocation,
                status=MemberStatus.REQUESTED,
                adapter_detail=detail.blank(key, operation.id) | {claims.FENCE: 1},
            )
            return world.with_number(made, 1) if claims.is_first_claim(operation) else world.with_member(made)
        case Pin(members=members):
            unseen = AdapterError("host_key_missing", "a plan touches no host: its keys are not read")
            return world.later(unseen={**world.unseen, **dict.fromkeys((one.id for one in members), unseen)})
        case SetMember(member=member, status=status, detail=changes, judges=judges, numbers=numbers):
            said = {**detail.filled(member), **changes}
            new_member = member.model_copy(update={"status": status, "adapter_detail": said})
            world = _numbered(world, member, status, said) if numbers else world.with_member(new_member)
            return world.judged(member) if judges else world
        case SetInstance(status=status, health=health, detail=said, access=access):
            new = {"status": status, "health": health, "status_detail": said, "access": access or world.instance.access}
            return world.later(instance=world.instance.model_copy(update=new))
        case ForgetSecrets():
            return world.later(forgotten=True)
        case Resolve():
            return world.later(packages=Resolution(decision="allow"))
        case Forgo():
            return world.without_play(step)
        case Finish(operation=operation) | Refuse(operation=operation):
            return world.without_operation(operation)
    return world


def _numbered(world: World, member: Member, status: str, said: Detail) -> World:
    fence = (claims.number(member) or 0) + 1
    new = {"status": status, "adapter_detail": said | {claims.FENCE: fence}}
    return world.with_number(member.model_copy(update=new), fence)
