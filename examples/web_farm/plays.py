"""The plays of a farm: who needs which, and what has to come before it. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from examples.web_farm import members
from examples.web_farm.components import WEB
from examples.web_farm.members import address, balancer, is_ours, operation_of, webs
from runner.intent import host_keys, package_source
from runner.intent.errors import IntentError
from runner.model import claims
from runner.model.names import host_name
from runner.model.plan import AdapterError, Claim, Detail, Pin, Plan, Play, Resolve, SetMember, SkipPlay, Step, Wait
from runner.model.platform import UNFINISHED, InstanceStatus, Member, MemberStatus
from runner.model.world import World, is_stale

SOURCE_VARIABLE = "farm_package_source"
# Playbooks that only read, and those that may install packages.
READS, INSTALLS = ("observe",), ("converge",)


def look(world: World) -> Play | None:
    lead = balancer(world)
    if lead is None or lead.status != MemberStatus.READY:
        return None
    acts = frozenset({("look", lead.id)})
    return Play("what is known is old", "observe", (lead,), acts=acts, work=_work(world))


def remove_webs(world: World) -> list[Step]:
    """The balancer first forgets the web members that leave, then their hosts are cleaned."""
    return play_for(world, "remove", webs(world, MemberStatus.DELETING), first=False)


def bring_up(world: World) -> list[Step]:
    lead, coming = balancer(world), webs(world, *UNFINISHED)
    cancelled: list[Step] = [
        members.failed(world, one, AdapterError("operation_cancelled", "the add that made it was cancelled"))
        for one in coming
        if operation_of(world, one) is None
    ]
    ours = [one for one in coming if (operation := operation_of(world, one)) and is_ours(world, operation)]
    coming_lead = [lead] if lead and lead.status in UNFINISHED else []
    return cancelled or play_for(world, "converge", [*coming_lead, *ours], first=True)


def play_for(world: World, playbook: str, wanted: Iterable[Member], *, first: bool) -> list[Step]:
    """One run for every member that needs it, with the balancer, whose configuration names them."""
    blocked: list[Step] = []
    ready: list[Member] = []
    for one in wanted:
        step = members.before_play(world, one, playbook)
        if step is None:
            ready.append(one)
        else:
            blocked.append(replace(step, operation=operation_of(world, one)))
    lead = balancer(world)
    if not ready or any(isinstance(step, SetMember) for step in blocked):
        return blocked
    if lead and lead not in ready:
        obstacle = members.before_play(world, lead, playbook)
        if obstacle or lead.status in UNFINISHED:
            reason = obstacle.why if obstacle else "its balancer is not up yet"
            return [*blocked, *(Wait(reason, host_name(one)) for one in ready)]
        ready.append(lead)
    operations = {one.id: found for one in ready if (found := operation_of(world, one))}
    acts = frozenset((playbook, one.id) for one in ready)
    new = frozenset(one.id for one in ready if first and one.status in UNFINISHED)
    why = f"{len(ready)} members need it"
    return [*blocked, Play(why, playbook, tuple(ready), acts, _work(world, ready), first=new, operations=operations)]


def _work(world: World, joining: Iterable[Member] = ()) -> Detail:
    """The addresses that the balancer's configuration is to name, if they answer."""
    serving = [*webs(world, MemberStatus.READY), *(one for one in joining if one.component_key == WEB)]
    kept = [one for one in serving if one.status != MemberStatus.DELETING]
    return {"webs": sorted({found for one in kept if (found := address(world, one))})}


def look_again(world: World) -> list[Step]:
    play, instance = look(world), world.instance
    running = instance.status == InstanceStatus.RUNNING and is_stale(instance, world.now, world.policy)
    return [play] if play and running and not world.played else []


def ready_to_run(world: World, steps: list[Step]) -> Plan:
    """The plan, or what has to come before its play: policy's answer, claims, known host keys."""
    play = next((step for step in steps if isinstance(step, Play)), None)
    if play is None or play.playbook in READS:
        return Plan(tuple(steps))
    if play.playbook in INSTALLS:
        if world.packages is None:
            return Plan((Resolve("the play may install packages", rule=play.rule),))
        try:
            source = package_source.read(world.packages)
        except IntentError as denial:
            error = AdapterError(denial.code, denial.message)
            return Plan((SkipPlay(f"{error.code}: {error.message}", play, play.members, error, rule=play.rule),))
        if source:
            terms = {SOURCE_VARIABLE: source.terms()}
            play = replace(play, terms=terms, package_credential=source.credential_id)
    first: list[Step] = [_claim(world, one) for one in play.members if not _may_change(world, one)]
    first = first or _unknown_keys(world, play)
    if first:
        return Plan(tuple(replace(step, rule=play.rule, play_rule=play.rule) for step in first))
    fenced: dict[UUID, int] = {one.id: world.fences[one.id] for one in play.members}
    return Plan((*(step for step in steps if isinstance(step, Wait)), replace(play, fences=fenced)))


def _claim(world: World, member: Member) -> Claim:
    """A claim of the member's operation covers the member; what no operation covers is claimed for itself."""
    status = MemberStatus.RECONCILING if member.status in UNFINISHED else member.status
    return Claim("a play changes its host", member, status, hold=not _is_covered(world, member))


def _is_covered(world: World, member: Member) -> bool:
    operation = operation_of(world, member)
    return operation is not None and is_ours(world, operation)


def _may_change(world: World, member: Member) -> bool:
    if member.id not in world.fences:
        return False
    return _is_covered(world, member) or claims.is_held_by(world.runner_id, member)


def _unknown_keys(world: World, play: Play) -> list[Step]:
    found = tuple(
        one
        for one in play.members
        if (allocation := world.allocation_of(one))
        and host_keys.is_first_sight(allocation, one)
        and one.id not in world.key_scan_errors
    )
    return [Pin("the platform gives no host keys", found)] if found else []
