"""A changed configuration of a cluster that runs: proven, put live and watched on the host; recorded here.

The play itself reverts a change that fails, so a refused configuration leaves the cluster as it was. It is not tried
again until it changes; other errors are tried again, less and less often.
"""

from runner.intent.errors import IntentError
from runner.model.host_data import printable
from runner.model.names import host_name
from runner.model.plan import Act, AdapterError, Detail, Play, SetMember, Step, Wait
from runner.model.platform import InstanceStatus, Member, MemberStatus
from runner.slurm import desired_config, notes
from runner.slurm.cluster_config import cluster_name, read_config
from runner.slurm.components import CONTROLLER
from runner.slurm.controller import ready_workers
from runner.slurm.decide import claims
from runner.slurm.decide.members import obstacle
from runner.slurm.node_names import node_name
from runner.slurm.notes import ConfigTrial, ControllerNotes, RefusedConfig, SlurmNotes
from runner.slurm.readiness import is_responding
from runner.slurm.world import World

# Slurm does not accept it, or did not serve with it: the same configuration would end the same way.
REFUSALS = ("config_refused", "config_taken_back", "config_invalid")
MESSAGE_BYTES = 1000
# What a worker reports of itself after it was asked to follow.
FOLLOWED = ("config_version", "package_version", "users_version")


def settle(world: World, controller: Member) -> list[Step]:
    """Writes that a changed configuration needs before and after its play; none if nothing changes."""
    stored = notes.controller(controller)
    live, trial, desired = stored.applied_config, stored.change, desired_config.digest(world.instance, world.members)
    if controller.status != MemberStatus.READY or live is None or stored.problems:
        return []
    if trial and world.did("change", controller):
        return _conclude(world, controller, trial)
    if desired == live and stored.config_refused:
        return [_set("the desired configuration is live", controller, ControllerNotes(config_refused=None))]
    own = desired_config.contributors(world.members)
    if desired == live and own != (stored.contributors or []):
        return [_set("partitions of projects are live", controller, ControllerNotes(contributors=own))]
    if not desired_config.is_pending(world.instance, controller, world.members) or (trial and trial.digest == desired):
        return []
    if trial and desired_config.is_refused(world.instance, controller, world.members):
        # What is on trial is not desired any more, and what is desired was refused: the host goes back to what it had.
        back = ControllerNotes(change=ConfigTrial(digest=live, begun_at=world.now))
        return [] if trial.digest == live else [_set("back to what was live", controller, back)]
    problem = _problem(world, controller) if desired != live else None
    if problem:
        return [refuse(world, controller, desired, problem, change=trial)]
    # What was on trial before may have gone live, and no run has reported it.
    begun = ConfigTrial(digest=desired, unsure=True if trial else None, begun_at=world.now)
    return [_set("the desired configuration changed", controller, ControllerNotes(change=begun))]


def play(world: World, controller: Member, terms: Detail | None = None) -> list[Step]:
    """The run that puts the configuration live, if one is on trial and due."""
    trial = desired_config.on_trial(controller)
    if not trial or controller.status != MemberStatus.READY or world.did("change", controller):
        return []
    later = trial.not_due(world.now)
    if later:
        return [Wait(f"the changed configuration: {later}", host_name(controller))]
    held = claims.not_now(world, controller)
    if held:
        return [Wait(held, host_name(controller))]
    why = "the desired configuration changed: it goes live if Slurm accepts it"
    # A new user must exist on the workers before the controller lets that user submit.
    workers = ready_workers(world.members) if _users_changed(world, controller) else []
    held_workers = [one for one in workers if obstacle(world, one)]
    if held_workers:
        return _waits(world, held_workers)
    acts: set[Act] = {("change", controller.id), *(("join", member.id) for member in workers)}
    terms = {**(terms or {}), **({"keep_drains": True} if workers else {})}
    return [Play(why, "deploy", (controller, *workers), frozenset(acts), terms=terms)]


def _users_changed(world: World, controller: Member) -> bool:
    current = notes.of(controller).users_version
    return bool(current) and current != desired_config.users(world.instance)


def needs_look(world: World, controller: Member) -> bool:
    """A run that failed brings no snapshot back, and a configuration that was refused unread had no run at all."""
    if world.snapshot is not None or world.did("look", controller):
        return False
    touched = any(world.did(kind, controller) for kind in ("change", "upgrade", "rollback"))
    return touched or _is_unreported(world, controller)


def _is_unreported(world: World, controller: Member) -> bool:
    """Whether the instance does not show yet which configuration went live, or was refused."""
    settled = desired_config.settled([controller])
    running, shown = world.instance.status == InstanceStatus.RUNNING, world.instance.notes.config_digest
    return running and settled is not None and not desired_config.on_trial(controller) and shown != settled


def follow(world: World, controller: Member) -> list[Step]:
    """Workers that run another configuration than their controller, as far as is known, and can be asked.

    One that another runner holds is left out and named; a later tick asks it.
    """
    if world.snapshot is None or world.snapshot.nodes is None:
        return []
    acts: frozenset[Act]
    lacking = [member for member in world.members if _lacks_users(world, member, controller)]
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
    """Members that can be claimed now, and a Wait that names the holder of each of the others."""
    held = claims.not_now(world, controller)
    if held:
        return [], [Wait(held, host_name(one)) for one in members]
    return [one for one in members if not obstacle(world, one)], _waits(world, members)


def _waits(world: World, members: list[Member]) -> list[Step]:
    return [Wait(why, host_name(one)) for one in members if (why := obstacle(world, one))]


def followed(world: World, _controller: Member) -> list[Step]:
    """What workers reported of themselves when they were asked to follow."""
    steps: list[Step] = []
    for member in world.members:
        outcome = world.outcomes.get(member.id)
        updated = world.did("follow", member) or world.did("join", member)
        if not outcome or outcome.error or not updated or not _is_responding(world, member):
            continue
        reported: Detail = {key: outcome.detail[key] for key in FOLLOWED if outcome.detail.get(key)}
        if member.differs(reported):
            steps.append(SetMember("it runs the controller's configuration", member, member.status, reported))
    return steps


def refuse(
    world: World, controller: Member, digest: str, error: AdapterError, change: ConfigTrial | None = None
) -> SetMember:
    refused = RefusedConfig(
        digest=digest, code=error.code, message=printable(error.message, MESSAGE_BYTES, keep="\n"), at=world.now
    )
    return _set(f"{error.code}: {error.message}", controller, ControllerNotes(config_refused=refused, change=change))


def _conclude(world: World, controller: Member, trial: ConfigTrial) -> list[Step]:
    outcome, stored = world.outcomes.get(controller.id), notes.controller(controller)
    if outcome is None:
        return []  # its result is unknown: the next tick looks
    if outcome.error and outcome.error.code in REFUSALS:
        ask_again = ConfigTrial(digest=str(stored.applied_config), begun_at=world.now) if trial.unsure else None
        return [refuse(world, controller, trial.digest, outcome.error, change=ask_again)]
    reported = ControllerNotes.read(outcome.detail)
    if not outcome.error and reported.applied_config:
        refused = stored.config_refused
        changes = ControllerNotes(
            applied_config=reported.applied_config,
            config_refused=refused if refused and refused.digest != reported.applied_config else None,
            change=None,
            users_version=reported.users_version or stored.users_version,
        )
        return [_set("the cluster serves with the new configuration", controller, changes)]
    error = outcome.error or AdapterError(
        "change_unfinished", "the run ended before it reported what is live", "retryable"
    )
    tried = trial.failed(world.now, error.code, world.policy.retry_seconds)
    changes = ControllerNotes(change=tried, last_adapter_error=error.as_note(world.now))
    return [_set(f"{error.code}: it is tried again", controller, changes)]


def _problem(world: World, controller: Member) -> AdapterError | None:
    """Why a configuration is refused before any host is touched."""
    try:
        config = read_config(world.instance)
    except IntentError as error:
        return AdapterError("config_invalid", error.message)
    now = notes.controller(controller).cluster_name
    if now and cluster_name(world.instance, config) != now:
        message = f"a cluster keeps its name: this one is {now}. Take cluster_name back, or deploy another cluster"
        return AdapterError("config_invalid", message)
    return None


def _is_behind(world: World, member: Member, serves: str) -> bool:
    current = notes.of(member).config_version
    return current not in (None, serves) and not world.did("follow", member) and _is_responding(world, member)


def _lacks_users(world: World, member: Member, controller: Member) -> bool:
    current, wanted = (notes.of(one).users_version for one in (member, controller))
    if not wanted or current in (None, wanted) or world.did("join", member):
        return False
    refused = desired_config.is_refused(world.instance, controller, world.members)
    return not refused and _is_responding(world, member)


def _is_responding(world: World, member: Member) -> bool:
    """Whether the worker serves and its slurmd responds to the controller."""
    if member.component_key == CONTROLLER or member.status != MemberStatus.READY or world.snapshot is None:
        return False
    node = (world.snapshot.nodes or {}).get(node_name(member) or "")
    return node is not None and is_responding(node)


def _set(why: str, controller: Member, changes: SlurmNotes) -> SetMember:
    return SetMember(why, controller, controller.status, changes.changes)
