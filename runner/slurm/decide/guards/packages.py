"""No play that can install packages runs before package policy has answered where they may come from.

Policy is asked once a tick, and only if there is such a play. If it denies, members that were to get Slurm fail and no
host is touched. A play for hosts that have Slurm already continues, and may install nothing.
"""

from dataclasses import replace

from runner.intent import package_source
from runner.intent.errors import IntentError
from runner.model.plan import AdapterError, Detail, Plan, Play, Resolve, SkipPlay
from runner.model.platform import UNFINISHED, Member
from runner.slurm.world import World

# The variable that carries the answer of policy into a play.
SOURCE_VARIABLE = "slurm_package_source"
INSTALLING = ("deploy", "add_worker", "upgrade", "rollback")


def apply_package_policy(world: World, plan: Plan) -> Plan:
    """The plan, as far as policy allows it."""
    play = plan.play
    if play is None or play.playbook not in INSTALLING:
        return plan
    if world.packages is None:
        # Before any of the plan's writes: some of them are made for the play that follows at once.
        return Plan((Resolve(f"playbooks/{play.playbook}.yml may install packages"),))
    try:
        source = package_source.read(world.packages)
    except IntentError as denial:
        receivers = _receivers(play)
        if receivers:
            error = AdapterError(denial.code, denial.message)
            return _instead(plan, SkipPlay(f"{error.code}: {error.message}", play, receivers, error))
        return _instead(plan, _with_source(play, {"denied": f"rule {package_source.rule_of(world.packages)}"}))
    if source is None:
        return plan
    return _instead(plan, replace(_with_source(play, source.terms()), package_credential=source.credential_id))


def _receivers(play: Play) -> tuple[Member, ...]:
    """Members that get packages: all that move to another version, or those that join for the first time."""
    if play.playbook in ("upgrade", "rollback"):
        return play.members
    return tuple(one for one in play.members if one.status in UNFINISHED and ("join", one.id) in play.acts)


def _with_source(play: Play, source: Detail) -> Play:
    return replace(play, terms={**play.terms, SOURCE_VARIABLE: source})


def _instead(plan: Plan, last: Play | SkipPlay) -> Plan:
    return Plan((*(step for step in plan.steps if not isinstance(step, Play)), last))
