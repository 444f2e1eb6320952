"""upgrade of a whole instance, and what rollback shares with it: what is left is read from packages and daemons.

An upgrade first carries out a changed configuration that is pending, on the packages that are there, so that Slurm's
refusal leaves those untouched. Then one play moves the controller and all workers that serve. Run again after an
interruption it finds most of it done.

While slurmdbd converts its database the play ends with `conversion_running`. That is neither a failure nor an attempt:
the operation stays running, the progress is written, and the next tick's play continues.
"""

import re
from collections.abc import Callable, Sequence

from runner.intent.errors import IntentError
from runner.model import limits
from runner.model.names import host_name
from runner.model.plan import Act, AdapterError, Detail, Play, SetMember, Step, Wait
from runner.model.platform import Health, InstanceStatus, Member, MemberStatus, Operation
from runner.model.world import Outcome
from runner.slurm import desired_config, notes
from runner.slurm.controller import only_controller, ready_workers
from runner.slurm.decide.instance import configure, queue, whole_cluster
from runner.slurm.decide.members import controller_error
from runner.slurm.decide.workers.results import message_of
from runner.slurm.lifecycle_notes import UpgradeNote
from runner.slurm.notes import ControllerNotes, Conversion
from runner.slurm.settings import SlurmSettings
from runner.slurm.world import World

# A Debian version or a series; the host asks again before it uses it.
_VERSION = re.compile(r"[0-9]{2}\.[0-9]{2}(\.[0-9]+(-[A-Za-z0-9.+~]{1,60})?)?")
PARAMETERS = ("slurm_version", "accept_no_way_back")
# What a host reports of itself after the move.
MOVED = ("package_version", "applied_config")
CONVERSION_RUNNING = "conversion_running"


def check(_world: World, operation: Operation) -> None:
    _terms(operation)


def carry_out(world: World, operation: Operation) -> list[Step]:
    return move(world, operation, _configuration)


Before = Callable[[World, Operation, UpgradeNote, Member], list[Step]]


def move(world: World, operation: Operation, before: Before) -> list[Step]:
    """Other packages on every host; `before` gives the steps that come first."""
    note, controller = queue.progress(world, operation, UpgradeNote), only_controller(world.members)
    begun = note or UpgradeNote.begin(operation, world.now)
    if controller is None or controller.status != MemberStatus.READY:
        error = AdapterError(
            "controller_not_ready", "no controller is in service: see its status, then request it again"
        )
        return _end(world, operation, begun, error)
    if note is None:
        version = notes.of(controller).package_version
        return queue.write_note(world, begun.but(package_version_before=version))
    return before(world, operation, note, controller) or _packages(world, operation, note, controller)


def _terms(operation: Operation) -> Detail:
    """Variables of the play; raises IntentError for parameters that cannot be used."""
    unknown = sorted(set(operation.parameters) - set(PARAMETERS))
    if unknown:
        raise IntentError("parameters_invalid", f"upgrade takes {', '.join(PARAMETERS)}, not {', '.join(unknown)}")
    version = operation.parameters.get("slurm_version")
    if version is not None and not (isinstance(version, str) and _VERSION.fullmatch(version)):
        raise IntentError("version_invalid", "slurm_version is neither a package version nor a series such as 24.11")
    accepted = operation.parameters.get("accept_no_way_back", False)
    if not isinstance(accepted, bool):
        raise IntentError("parameters_invalid", "accept_no_way_back must be true or false")
    return {"slurm_version": version or "", "slurm_accept_no_way_back": accepted, "slurm_change": str(operation.id)}


def _configuration(world: World, operation: Operation, note: UpgradeNote, controller: Member) -> list[Step]:
    """Steps for a changed configuration that is pending; none once it is live."""
    tried, trial = world.did("change", controller), desired_config.on_trial(controller)
    if desired_config.is_refused(world.instance, controller, world.members):
        refusal = desired_config.refused(controller)
        if refusal and (tried or refusal.code == "config_invalid"):
            return _end(world, operation, note, AdapterError(refusal.code, refusal.message))
        # A person requested the upgrade, so the configuration is tried once more.
        again = ControllerNotes(config_refused=None).changes
        return [SetMember("the upgrade tries the configuration again", controller, controller.status, again)]
    steps = configure.settle(world, controller)
    if steps or not trial:
        return steps
    if tried and trial.is_spent(world.policy.max_attempts):
        error = controller.notes.last_adapter_error
        message = f"the changed configuration could not be put live: {message_of(error)}"
        return _end(world, operation, note, AdapterError(error.code if error else "change_unfinished", message))
    waiting: list[Step] = [Wait("the next tick continues with the configuration", host_name(controller))]
    return configure.play(world, controller, {"slurm_change": str(operation.id)}) or waiting


def _packages(world: World, operation: Operation, note: UpgradeNote, controller: Member) -> list[Step]:
    workers = ready_workers(world.members)
    verb = note.verb
    if world.did(verb, controller):
        return _judge(world, operation, note, controller, workers)
    later = note.attempts.not_due(world.now)
    if later:
        return [Wait(later, host_name(controller))]
    acts: frozenset[Act] = frozenset((verb, one.id) for one in (controller, *workers))
    terms = _terms(operation) if verb == "upgrade" else {"slurm_change": str(operation.id)}
    own = world.policy.app or SlurmSettings()
    terms |= {
        "slurm_conversion_round": own.conversion_look_seconds,
        "slurm_conversion_idle": own.conversion_idle_seconds,
        "slurm_conversion_limit": own.conversion_limit_seconds,
    }
    why = f"{verb}: the controller, then {len(workers)} worker(s)"
    return [Play(why, verb, (controller, *workers), acts, terms=terms)]


def _judge(
    world: World, operation: Operation, note: UpgradeNote, controller: Member, workers: Sequence[Member]
) -> list[Step]:
    outcome = world.outcomes.get(controller.id)
    if outcome is None:
        return [Wait("the run was cut off; the next tick continues", host_name(controller))]
    # Waited for without a limit, so the code alone is not enough: the play reports how far the conversion is.
    is_running = outcome.error is not None and outcome.error.code == CONVERSION_RUNNING
    progress = ControllerNotes.read(outcome.detail).conversion if is_running else None
    if progress:
        return _converting(world, note, controller, progress)
    failed = {one.id: o.error for one in workers if (o := world.outcomes.get(one.id)) and o.error}
    own = controller_error(world, outcome)
    error = own or next(iter(failed.values()), None)
    again = whole_cluster.after_failure(world, note, error) if error and error.klass == "retryable" else None
    if error and again:
        waiting = Wait(f"{error.code}: it is tried again", host_name(controller))
        return [*queue.write_note(world, again), waiting]
    steps = [*_reported(world, controller, workers), *_no_conversion(controller)]
    result: Detail = {
        **(outcome.detail.get("upgraded") or _returned(note, outcome)),
        "workers": {
            "moved": len(workers) - len(failed),
            "failed": sorted(map(str, failed))[: limits.SAMPLE],
            "failed_count": len(failed),
        },
    }
    if error and not own:
        message = f"the controller has moved, but {len(failed)} of {len(workers)} workers have not; the first: "
        error = AdapterError("partly_failed", message + error.message)
    return [*steps, *_end(world, operation, note.but(summary=result), error)]


def _returned(note: UpgradeNote, outcome: Outcome) -> Detail:
    """What a rollback's play reports. A play that continues after a killed one finds the packages moved, so `from` is
    the version that was noted before the first play."""
    found: Detail = outcome.detail.get("returned") or {}
    before = note.package_version_before
    return {**found, "from": before} if found and before else found


def _converting(world: World, note: UpgradeNote, controller: Member, progress: Conversion) -> list[Step]:
    """The progress in the member's record and in the note; nothing is counted, however often it is looked at."""
    steps: list[Step] = []
    changes = ControllerNotes(conversion=progress).changes
    if controller.differs(changes):
        steps.append(
            SetMember("slurmdbd converts its database", controller, controller.status, changes, consumes_outcome=False)
        )
    steps += queue.write_note(world, note.but(phase="converting database", conversion=progress))
    return [*steps, Wait("slurmdbd converts its database; the next tick looks again", host_name(controller))]


def called_off(world: World, note: UpgradeNote) -> list[Step]:
    """Cancelled: slurmdbd continues a conversion, and a later upgrade continues from there."""
    controller = only_controller(world.members)
    cleared = _no_conversion(controller) if controller else []
    return [*cleared, *queue.write_note(world, note.but(result="cancelled", conversion=None))]


VERB = queue.Verb((InstanceStatus.RUNNING,), carry_out, check, called_off)


def _no_conversion(controller: Member) -> list[Step]:
    if not notes.controller(controller).conversion:
        return []
    cleared = ControllerNotes(conversion=None).changes
    return [SetMember("no conversion is waited for", controller, controller.status, cleared, consumes_outcome=False)]


def _reported(world: World, controller: Member, workers: Sequence[Member]) -> list[Step]:
    """What each host reported. After a rollback the desired configuration is not live, and is not tried again."""
    steps: list[Step] = []
    for member in (controller, *workers):
        outcome = world.outcomes.get(member.id)
        if outcome is None or outcome.error:
            continue
        reported = ControllerNotes.read(outcome.detail)
        changes = {key: value for key, value in reported.stored_fields(MOVED).items() if value}
        desired = desired_config.digest(world.instance, world.members)
        if reported.applied_config not in (None, desired):
            message = "rolled back: the desired configuration is not live. Configure the instance again to change it"
            refused = configure.refuse(world, member, desired, AdapterError("config_rolled_back", message))
            changes |= refused.detail
        if member.differs(changes):
            steps.append(SetMember("as its host reported", member, member.status, changes))
    return steps


def _end(world: World, operation: Operation, note: UpgradeNote, error: AdapterError | None) -> list[Step]:
    """Health is what it was before: the next report has it from a look."""
    before = world.instance.health
    health = Health(before) if before in set(Health) else Health.UNKNOWN
    ended = note.but(phase="failed" if error else "done", conversion=None)
    return whole_cluster.end(world, operation, ended, error=error, health=health, reasons=[])
