"""No play that can install packages runs before policy has said where they may come from.

Asked once a tick, and only when there is such a play. A no is the end for whoever was to get Slurm, and no host is
touched. A play for hosts that have it already goes on, and may install nothing.
"""

from dataclasses import replace

from runner.intent import package_source
from runner.intent.errors import IntentError
from runner.model.plan import AdapterError, Detail, Plan, Play, Resolve, SkipPlay
from runner.model.platform import Member
from runner.slurm.decide.members import UNFINISHED
from runner.slurm.world import World

INSTALLING = ("deploy", "add_worker", "upgrade", "rollback")


def apply_package_policy(world: World, plan: Plan) -> Plan:
    """The plan as policy allows it."""
    play = plan.play
    if play is None or play.playbook not in INSTALLING:
        return plan
    if world.packages is None:
        # Before any of the plan's writes: some of them are made for the play that follows at once.
        return Plan((Resolve(f"playbooks/{play.playbook}.yml may install packages"),))
    try:
        source = package_source.read(world.packages)
    except IntentError as no:
        comers = _comers(play)
        if comers:
            forgone = SkipPlay(f"{no.code}: {no.message}", play, comers, AdapterError(no.code, no.message))
            return _instead(plan, forgone)
        return _instead(plan, _told(play, {"denied": f"rule {package_source.rule_of(world.packages)}"}))
    if source is None:
        return plan
    return _instead(plan, replace(_told(play, source.terms()), package_credential=source.credential_id))


def _comers(play: Play) -> tuple[Member, ...]:
    """Whose packages the play is about: all that move to another version, or those that join for the first time."""
    if play.playbook in ("upgrade", "rollback"):
        return play.members
    return tuple(one for one in play.members if one.status in UNFINISHED and ("join", one.id) in play.acts)


def _told(play: Play, source: Detail) -> Play:
    return replace(play, terms={**play.terms, "slurm_package_source": source})


def _instead(plan: Plan, last: Play | SkipPlay) -> Plan:
    return Plan((*(step for step in plan.steps if not isinstance(step, Play)), last))
