"""A changed wish on a cluster that runs: proven, put live and watched on the host; told, or refused, here.

The play takes a change back by itself, so a wish that was refused leaves the cluster as it was. It is not tried again
until it changes; whatever else goes wrong is tried again, less and less often.
"""

from datetime import timedelta

from runner.intent.errors import IntentError
from runner.model.names import CONTROLLER, host_name
from runner.model.plan import Act, AdapterError, Detail, Play, SetMember, Step, Wait, stamp
from runner.model.platform import InstanceStatus, Member, MemberStatus
from runner.model.shapes import read_time
from runner.slurm import desired_config
from runner.slurm.cluster_config import cluster_name, read_config
from runner.slurm.decide import claims
from runner.slurm.decide.members import obstacle
from runner.slurm.node_rules import SERVING_STATES
from runner.slurm.world import World

# Slurm will not have it, or did not serve with it: the same wish would end the same way.
REFUSALS = ("config_refused", "config_taken_back", "config_invalid")
MESSAGE_CHARS = 1000
MAX_DOUBLINGS = 5
# What a worker tells of itself after it was asked to follow.
FOLLOWED = ("config_version", "package_version", "people_version")


def the_controller(world: World) -> Member | None:
    found = [one for one in world.members if one.component_key == CONTROLLER and one.status != MemberStatus.DELETED]
    return found[0] if len(found) == 1 else None


def settle(world: World, controller: Member) -> list[Step]:
    """Writes that a changed wish needs before and after its play; none if there is nothing to say."""
    if controller.status != MemberStatus.READY or desired_config.live(controller) is None:
        return []
    trial, wanted, live = (
        desired_config.on_trial(controller),
        desired_config.digest(world.instance),
        desired_config.live(controller),
    )
    if trial and world.did("change", controller):
        return _conclude(world, controller, trial)
    if wanted == live and desired_config.refused(controller):
        return [_say("what is wished is what is live", controller, wish_refused=None)]
    if not desired_config.is_pending(world.instance, controller) or trial.get("digest") == wanted:
        return []
    if trial and desired_config.is_refused(world.instance, controller):
        # What is on trial is wished no more, and what is wished cannot be: the host goes back to what it had.
        same = trial.get("digest") == live
        return [] if same else [_say("back to what was live", controller, change={"digest": live, "attempt": 0})]
    problem = _problem(world, controller) if wanted != live else None
    if problem:
        return [refuse(world, controller, wanted, problem, change=trial or None)]
    # What was on trial before may have gone live without anybody having said so.
    unsure = {"unsure": True} if trial else {}
    return [_say("another configuration is wished", controller, change={"digest": wanted, "attempt": 0, **unsure})]


def play(world: World, controller: Member, terms: Detail | None = None) -> list[Step]:
    """The run that puts the wish live, if one is on trial and due."""
    trial = desired_config.on_trial(controller)
    if not trial or controller.status != MemberStatus.READY or world.did("change", controller):
        return []
    due = read_time(trial.get("next_attempt_at"))
    if due and due > world.now:
        return [Wait(f"the changed configuration is tried again at {stamp(due)}", host_name(controller))]
    held = claims.not_now(world, controller)
    if held:
        return [Wait(held, host_name(controller))]
    why = "what is wished has changed: it goes live if Slurm accepts it"
    # Whoever is declared anew must exist on the workers before the controller lets them submit.
    workers = _ready_workers(world) if _people_changed(world, controller) else []
    held_workers = [one for one in workers if obstacle(world, one)]
    if held_workers:
        return _waits(world, held_workers)
    acts: set[Act] = {("change", controller.id), *(("join", member.id) for member in workers)}
    terms = {**(terms or {}), **({"keep_drains": True} if workers else {})}
    return [Play(why, "deploy", (controller, *workers), frozenset(acts), terms=terms)]


def _people_changed(world: World, controller: Member) -> bool:
    known = controller.adapter_detail.get("people_version")
    return bool(known) and known != desired_config.people(world.instance)


def _ready_workers(world: World) -> list[Member]:
    return [one for one in world.members if one.component_key != CONTROLLER and one.status == MemberStatus.READY]


def needs_look(world: World, controller: Member) -> bool:
    """A run that failed brings no snapshot back, and a wish that was refused unread had no run at all."""
    if world.snapshot is not None or world.did("look", controller):
        return False
    touched = any(world.did(kind, controller) for kind in ("change", "upgrade", "rollback"))
    return touched or _is_unsaid(world, controller)


def _is_unsaid(world: World, controller: Member) -> bool:
    """Whether the instance does not say yet which wish it was that went live, or was refused."""
    dealt_with = desired_config.dealt_with([controller])
    said = (world.instance.status_detail or {}).get("wish")
    running = world.instance.status == InstanceStatus.RUNNING
    return running and dealt_with is not None and not desired_config.on_trial(controller) and said != dealt_with


def follow(world: World, controller: Member) -> list[Step]:
    """Workers that run another configuration than their controller, as far as is known, and can be asked.

    One that another runner holds is left out and named; a later tick asks it.
    """
    if world.snapshot is None or world.snapshot.nodes is None:
        return []
    acts: frozenset[Act]
    lacking = [member for member in world.members if _lacks_people(world, member, controller)]
    free, waits = _free(world, controller, lacking)
    if free:
        acts = frozenset(("join", member.id) for member in free)
        why = f"{len(free)} worker(s) get the users that are declared now"
        return [*waits, Play(why, "add_worker", (controller, *free), acts, terms={"keep_drains": True})]
    seen = world.snapshot.controller
    if seen.config_intact is False or seen.config_loaded is False:
        return waits  # slurm.conf was edited by hand: repair it before workers follow it
    serves = seen.config_version
    behind = [member for member in world.members if serves and _is_behind(world, member, serves)]
    free, more = _free(world, controller, behind)
    if not free:
        return [*waits, *more]
    acts = frozenset(("follow", member.id) for member in free)
    why = f"{len(free)} worker(s) take the controller's configuration"
    return [*waits, *more, Play(why, "follow", (controller, *free), acts)]


def _free(world: World, controller: Member, members: list[Member]) -> tuple[list[Member], list[Step]]:
    """Who can be claimed now, and a Wait that names the holder for everybody else."""
    held = claims.not_now(world, controller)
    if held:
        return [], [Wait(held, host_name(one)) for one in members]
    return [one for one in members if not obstacle(world, one)], _waits(world, members)


def _waits(world: World, members: list[Member]) -> list[Step]:
    return [Wait(why, host_name(one)) for one in members if (why := obstacle(world, one))]


def followed(world: World) -> list[Step]:
    """What workers told of themselves when they were asked to follow."""
    steps: list[Step] = []
    for member in world.members:
        outcome = world.outcomes.get(member.id)
        asked = world.did("follow", member) or world.did("join", member)
        if not outcome or outcome.error or not asked or not _answers(world, member):
            continue
        told: Detail = {key: outcome.detail[key] for key in FOLLOWED if outcome.detail.get(key)}
        if any(member.adapter_detail.get(key) != value for key, value in told.items()):
            steps.append(SetMember("it runs the controller's configuration", member, member.status, told))
    return steps


def refuse(
    world: World, controller: Member, digest: str, error: AdapterError, change: Detail | None = None
) -> SetMember:
    said = {"digest": digest, "code": error.code, "message": error.message[:MESSAGE_CHARS], "at": stamp(world.now)}
    why = f"{error.code}: {error.message}"
    return _say(why, controller, wish_refused=said, change=change)


def _conclude(world: World, controller: Member, trial: Detail) -> list[Step]:
    outcome = world.outcomes.get(controller.id)
    if outcome is None:
        return []  # nobody knows what became of it: the next tick looks
    if outcome.error and outcome.error.code in REFUSALS:
        ask_again = {"digest": desired_config.live(controller), "attempt": 0} if trial.get("unsure") else None
        return [refuse(world, controller, str(trial.get("digest")), outcome.error, change=ask_again)]
    reached = outcome.detail.get("wish")
    if not outcome.error and isinstance(reached, str) and reached:
        known = desired_config.refused(controller)
        still = known if known.get("digest") != reached else None
        people = outcome.detail.get("people_version") or controller.adapter_detail.get("people_version")
        said = {"wish": reached, "wish_refused": still or None, "change": None, "people_version": people}
        return [_say("it serves with that", controller, **said)]
    error = outcome.error or AdapterError("change_unfinished", "the run ended before it said what is live", "retryable")
    tried = int(trial.get("attempt") or 0) + 1
    pause = world.policy.retry_seconds * 2 ** min(tried - 1, MAX_DOUBLINGS)
    later = trial | {"attempt": tried, "next_attempt_at": stamp(world.now + timedelta(seconds=pause))}
    return [
        _say(
            f"{error.code}: it is tried again", controller, change=later, last_adapter_error=error.as_detail(world.now)
        )
    ]


def _problem(world: World, controller: Member) -> AdapterError | None:
    """Why a wish is refused before any host is touched."""
    try:
        config = read_config(world.instance)
    except IntentError as error:
        return AdapterError("config_invalid", error.message)
    now = controller.adapter_detail.get("cluster_name")
    if now and cluster_name(world.instance, config) != now:
        message = f"a cluster keeps its name: this one is {now}. Take cluster_name back, or deploy another cluster"
        return AdapterError("config_invalid", message)
    return None


def _is_behind(world: World, member: Member, serves: str) -> bool:
    known = member.adapter_detail.get("config_version")
    return known not in (None, serves) and not world.did("follow", member) and _answers(world, member)


def _lacks_people(world: World, member: Member, controller: Member) -> bool:
    known, wanted = (one.adapter_detail.get("people_version") for one in (member, controller))
    if not wanted or known in (None, wanted) or world.did("join", member):
        return False
    return not desired_config.is_refused(world.instance, controller) and _answers(world, member)


def _answers(world: World, member: Member) -> bool:
    """A worker that serves, and whose slurmd the controller hears."""
    if member.component_key == CONTROLLER or member.status != MemberStatus.READY or world.snapshot is None:
        return False
    node = (world.snapshot.nodes or {}).get(str(member.adapter_detail.get("worker_hostname")))
    return node is not None and node.state in SERVING_STATES and "NOT_RESPONDING" not in node.flags


def _say(why: str, controller: Member, **said: object) -> SetMember:
    return SetMember(why, controller, controller.status, dict(said))
