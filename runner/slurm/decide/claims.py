"""No play changes a host without a claim and a fence. runner/model/claims.py has the invariant.

The play is planned first, then what it changes is claimed, then it is planned again and runs. Which members are left
out because another runner holds them is decided where the play is made; a play that still names one of them waits.
"""

from collections.abc import Iterable
from dataclasses import replace

from runner.model import claims, progress
from runner.model.limits import RECORD_BYTES, size
from runner.model.names import host_name
from runner.model.plan import AdapterError, Claim, Finish, Plan, Play, Refuse, SetMember, Step, Wait, Warn
from runner.model.platform import UNFINISHED, InstanceStatus, Member, MemberStatus, Operation, OperationStatus
from runner.model.records import NEWER, NotedError
from runner.slurm import detail, notes
from runner.slurm.components import CONTROLLER
from runner.slurm.decide.members import held_by_another, is_claimed, is_ours, obstacle
from runner.slurm.fitting import fitted
from runner.slurm.notes import SlurmNotes
from runner.slurm.world import World

CHANGES_ALL = frozenset(
    {"deploy", "follow_attachments", "stop", "restart", "upgrade", "rollback", "rotate", "decommission"}
)
CHANGES_WORKERS = frozenset({"add_worker", "remove_worker", "follow"})
# Slurm's state is changed by commands on the controller's host.
THROUGH_CONTROLLER = frozenset({"add_worker", "remove_worker", "drain_worker", "quiesce", "follow"})


def require_claims(world: World, plan: Plan) -> Plan:
    """The plan with the fences of its play, or the claims that come before it."""
    play = plan.play
    if play is None:
        return plan
    if any(isinstance(step, Finish | Refuse) for step in plan.steps):
        # Ending an operation ends its claim, and this play may need that claim: plan it in the next round.
        return Plan(tuple(step for step in plan.steps if step is not play))
    shared = _shared(world, play)
    changed = changed_by(play)
    blocked = [Wait(why, host_name(one)) for one in changed if (why := obstacle(world, one))]
    if blocked:
        return Plan((*(step for step in plan.steps if isinstance(step, Wait)), *blocked))
    exclusive = [one for one in changed if one not in shared]
    lacking = [one for one in exclusive if not _may_change(world, one)]
    lacking += [one for one in shared if _needs_fence(world, one)]
    if lacking:
        why = f"playbooks/{play.playbook}.yml changes its host"
        own = {one.id for one in lacking if one not in shared and not _is_covered(world, one)}
        return Plan(tuple(Claim(why, one, one.status, hold=one.id in own) for one in lacking))
    fences = {one.id: world.fences[one.id] for one in exclusive}
    fences |= {one.id: world.fences.get(one.id) or claims.fence(one) or 0 for one in shared}
    fenced = replace(play, fences=fences, first=frozenset(one.id for one in changed if _is_first(play, one)))
    return Plan(tuple(fenced if step is play else step for step in plan.steps))


def changed_by(play: Play) -> tuple[Member, ...]:
    """Members whose hosts the play changes, or on whose hosts it changes Slurm's state."""
    all_members = play.playbook in CHANGES_ALL
    workers = play.playbook in CHANGES_WORKERS
    through = play.playbook in THROUGH_CONTROLLER
    return tuple(
        one for one in play.members if all_members or (through if one.component_key == CONTROLLER else workers)
    )


def note_unreadable(world: World) -> list[Step]:
    """Members of which a note cannot be read get an error, and lose it once everything can be read again."""
    steps: list[Step] = []
    for member in world.members:
        if member.status == MemberStatus.DELETED:
            continue
        noted = member.notes.last_adapter_error
        error = _note_error(member)
        if error and (noted is None or (noted.code, noted.message) != (error.code, error.message)):
            step = _note(member, error.as_note(world.now), error.message)
            # A write that does not fit would end every tick of the instance here.
            steps.append(step if _fits(step) else Warn(error.message, host_name(member)))
        elif error is None and noted and noted.code in claims.NOTE_CODES:
            steps.append(_note(member, None, "every note of it can be read again"))
    return steps


def _note_error(member: Member) -> AdapterError | None:
    """What is wrong with the first of its notes that cannot be read, and what to do about it."""
    problem = next(iter(notes.of(member).problems), None)
    if problem is None:
        return None
    if problem.name == claims.FENCE:
        message = (
            f"adapter_detail.{claims.FENCE} of {host_name(member)} is not a whole number, so its host cannot be"
            " changed. Set it to a number that is not below the host's own in /run/gpuaas-slurm/fences.json"
        )
        return AdapterError(claims.UNREADABLE, message)
    action = (
        "Run the newer version of gpuaas-slurm for this project, and stop this one"
        if problem.code == NEWER
        else "Correct the note in the member's record, or set it to null if nothing of it is under way"
    )
    message = f"adapter_detail.{problem.message}. {host_name(member)} is left alone until it can be read. {action}"
    return AdapterError(problem.code, message)


def _note(member: Member, error: NotedError | None, why: str) -> SetMember:
    changes = SlurmNotes(last_adapter_error=error).changes
    return SetMember(why, member, member.status, changes, consumes_outcome=False)


def _fits(step: SetMember) -> bool:
    member = step.member
    return size(fitted(member.component_key, detail.filled(member) | step.detail)) <= RECORD_BYTES


def not_now(world: World, controller: Member) -> str | None:
    """Why no work starts through the controller now: another runner is at work, and we hold no operation."""
    held = obstacle(world, controller)
    if held or _is_ours(world, (*world.operations, *world.instance_operations)):
        return held
    for operation in world.operations:
        held = held_by_another(world, operation.claimed_by, operation.lease_expires_at)
        if operation.status == OperationStatus.RUNNING and held:
            return f"{operation.label}: {held}"
    return None


def _is_first(play: Play, member: Member) -> bool:
    """Whether the play sets up a host that has nothing of ours yet. A member that was stopped has something."""
    return member.status in UNFINISHED and not progress.is_stopped(member) and ("join", member.id) in play.acts


def _is_ours(world: World, operations: Iterable[Operation]) -> bool:
    return any(
        one.status == OperationStatus.RUNNING and is_ours(world, one.claimed_by, one.lease_expires_at)
        for one in operations
    )


def _is_covered(world: World, member: Member) -> bool:
    """Whether a claim of ours, on an operation or on the teardown, covers the member: then it needs none of its own."""
    if _is_ours(world, world.instance_operations):
        return True
    if world.instance.status == InstanceStatus.DELETING:
        return any(is_claimed(world, one) for one in world.members)  # by the keeper, see instance/decommission.py
    return _is_ours(world, (one for one in world.operations if claims.concerns(one, member)))


def _may_change(world: World, member: Member) -> bool:
    return is_claimed(world, member) or (member.id in world.fences and _is_covered(world, member))


def _shared(world: World, play: Play) -> list[Member]:
    """The controller, if the play only runs Slurm's commands there, for an operation on workers that we hold."""
    if play.playbook not in THROUGH_CONTROLLER or not _is_ours(world, world.operations):
        return []
    if _is_ours(world, world.instance_operations) or world.instance.status == InstanceStatus.DELETING:
        return []
    return [one for one in play.members if one.component_key == CONTROLLER]


def _needs_fence(world: World, controller: Member) -> bool:
    """Whether the controller has no fence yet, or a runner that disappeared may still use the present one."""
    disappeared = world.took_over or claims.lease(controller)[0] is not None
    return controller.id not in world.fences and (disappeared or not claims.fence(controller))
