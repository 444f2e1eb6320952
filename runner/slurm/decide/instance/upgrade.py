"""upgrade and rollback of a whole instance: what is left to do is read from what packages and daemons show.

An upgrade first carries out a changed configuration that is pending, on the packages that are there, so that Slurm's
refusal leaves those untouched. Then one play moves the controller and all workers that serve. Run again after an
interruption it finds most of it done.

While slurmdbd converts its database the play ends with `conversion_running`. That is neither a failure nor an attempt:
the operation stays running, the progress is written, and the next tick's play goes on.
"""

import re
from collections.abc import Sequence

from runner.intent.errors import IntentError
from runner.model import limits
from runner.model.names import CONTROLLER, host_name
from runner.model.plan import Act, AdapterError, Detail, Play, SetMember, Step, Wait, stamp
from runner.model.platform import Health, Member, MemberStatus, Operation
from runner.model.world import Outcome
from runner.slurm import desired_config
from runner.slurm.decide.instance import configure, queue
from runner.slurm.decide.members import controller_error
from runner.slurm.world import World

# A Debian version or a series; the host asks again before it uses it.
_VERSION = re.compile(r"[0-9]{2}\.[0-9]{2}(\.[0-9]+(-[A-Za-z0-9.+~]{1,60})?)?")
KNOWN = ("slurm_version", "accept_no_way_back")
CONVERSION_RUNNING = "conversion_running"
CONVERTING = "converting database"


def check_upgrade(_world: World, operation: Operation) -> None:
    _terms(operation)


def check_rollback(_world: World, operation: Operation) -> None:
    if operation.parameters:
        named = ", ".join(sorted(operation.parameters))
        raise IntentError("parameter_unknown", f"rollback takes no parameters: {named}")


def upgrade(world: World, operation: Operation) -> list[Step]:
    controller = configure.the_controller(world)
    if controller is None or controller.status != MemberStatus.READY:
        return _end(world, operation, AdapterError("controller_not_ready", "there is no controller that serves"))
    if not queue.noted(world, operation):
        known = controller.adapter_detail.get("package_version")
        return queue.say(world, operation, phase="started", attempt=0, package_version_before=known)
    return _configuration(world, operation, controller) or _packages(world, operation, controller, "upgrade")


def rollback(world: World, operation: Operation) -> list[Step]:
    controller = configure.the_controller(world)
    if controller is None or controller.status != MemberStatus.READY:
        return _end(world, operation, AdapterError("controller_not_ready", "there is no controller to return to"))
    if not queue.noted(world, operation):
        return queue.say(world, operation, phase="started", attempt=0)
    return _packages(world, operation, controller, "rollback")


def _terms(operation: Operation) -> Detail:
    """What the play is told; raises IntentError for what cannot be used."""
    unknown = sorted(set(operation.parameters) - set(KNOWN))
    if unknown:
        raise IntentError("parameter_unknown", f"upgrade takes {', '.join(KNOWN)}, not {', '.join(unknown)}")
    version = operation.parameters.get("slurm_version")
    if version is not None and not (isinstance(version, str) and _VERSION.fullmatch(version)):
        said = "slurm_version is neither a package version nor a series such as 24.11"
        raise IntentError("version_invalid", said)
    accepted = operation.parameters.get("accept_no_way_back", False)
    if not isinstance(accepted, bool):
        raise IntentError("parameter_invalid", "accept_no_way_back is true or false")
    return {"slurm_version": version or "", "slurm_accept_no_way_back": accepted, "slurm_change": str(operation.id)}


def _configuration(world: World, operation: Operation, controller: Member) -> list[Step]:
    """Steps for a changed configuration that is pending; none once it is live."""
    tried, trial = world.did("change", controller), desired_config.on_trial(controller)
    if desired_config.is_refused(world.instance, controller):
        known = desired_config.refused(controller)
        if tried or known.get("code") == "config_invalid":
            return _end(world, operation, AdapterError(str(known.get("code")), str(known.get("message"))))
        # Asked for by a person, so it is tried once more.
        return [SetMember("the upgrade carries it again", controller, controller.status, {"wish_refused": None})]
    steps = configure.settle(world, controller)
    if steps or not trial:
        return steps
    if tried and int(trial.get("attempt") or 0) >= world.policy.max_attempts:
        error = controller.adapter_detail.get("last_adapter_error") or {}
        message = f"the changed configuration could not be put live: {error.get('message')}"
        return _end(world, operation, AdapterError(str(error.get("code") or "change_unfinished"), message))
    waiting: list[Step] = [Wait("the next tick goes on with the configuration", host_name(controller))]
    return configure.play(world, controller, {"slurm_change": str(operation.id)}) or waiting


def _packages(world: World, operation: Operation, controller: Member, verb: str) -> list[Step]:
    workers = [one for one in world.members if one.component_key != CONTROLLER and one.status == MemberStatus.READY]
    act = "upgrade" if verb == "upgrade" else "rollback"
    if world.did(act, controller):
        return _judge(world, operation, controller, workers)
    acts: frozenset[Act] = frozenset((act, one.id) for one in (controller, *workers))
    terms = _terms(operation) if verb == "upgrade" else {"slurm_change": str(operation.id)}
    terms |= {
        "slurm_conversion_round": world.policy.conversion_look_seconds,
        "slurm_conversion_idle": world.policy.conversion_idle_seconds,
        "slurm_conversion_limit": world.policy.conversion_limit_seconds,
    }
    why = f"{verb}: the controller, then {len(workers)} worker(s)"
    return [Play(why, verb, (controller, *workers), acts, terms=terms)]


def _judge(world: World, operation: Operation, controller: Member, workers: Sequence[Member]) -> list[Step]:
    outcome = world.outcomes.get(controller.id)
    if outcome is None:
        return [Wait("the run was cut off; the next tick goes on", host_name(controller))]
    # Waited for without a limit, so the code alone is not enough: the play tells how far the conversion is.
    if outcome.error and outcome.error.code == CONVERSION_RUNNING and outcome.detail.get("conversion"):
        return _converting(world, operation, controller, outcome)
    failed = {one.id: o.error for one in workers if (o := world.outcomes.get(one.id)) and o.error}
    own = controller_error(world, outcome)
    error = own or next(iter(failed.values()), None)
    if error and error.klass == "retryable":
        known = queue.noted(world, operation)
        waiting = Wait(f"{error.code}: the next tick tries again", host_name(controller))
        tried = int(known.get("attempt") or 0) + 1
        if known.get("tried_at") == stamp(world.now):
            return [waiting]  # this try is counted already
        if tried < world.policy.max_attempts:
            said = f"{error.code}: {error.message}"[:300]
            tries = queue.say(world, operation, attempt=tried, tried_at=stamp(world.now), last_error=said)
            return [*tries, waiting]
    steps = [*_told(world, controller, workers), *_no_conversion(controller)]
    result: Detail = {
        **(outcome.detail.get("upgraded") or outcome.detail.get("returned") or {}),
        "workers": {
            "moved": len(workers) - len(failed),
            "failed": sorted(map(str, failed))[: limits.SAMPLE],
            "failed_count": len(failed),
        },
    }
    if own:
        return [*steps, *_end(world, operation, own, result)]
    if error:
        message = f"the controller has moved, but {len(failed)} of {len(workers)} workers have not; the first: "
        return [*steps, *_end(world, operation, AdapterError("partly_failed", message + error.message), result)]
    done = queue.say(world, operation, health=_health(world), phase="done", verdict="done", conversion=None)
    return [*steps, *done, queue.succeed(operation, f"{operation.operation} is done", result)]


def _converting(world: World, operation: Operation, controller: Member, outcome: Outcome) -> list[Step]:
    """The progress in the member's record and in the note; nothing is counted, however often it is looked at."""
    progress = outcome.detail.get("conversion")
    steps: list[Step] = []
    if progress and controller.adapter_detail.get("conversion") != progress:
        told: Detail = {"conversion": progress}
        steps.append(
            SetMember("slurmdbd converts its database", controller, controller.status, told, consumes_outcome=False)
        )
    steps += queue.say(world, operation, phase=CONVERTING, conversion=progress)
    return [*steps, Wait("slurmdbd converts its database; the next tick looks again", host_name(controller))]


def called_off(world: World) -> list[Step]:
    """A person cancelled it: what is converted goes on by itself, and a later upgrade goes on from there."""
    controller = configure.the_controller(world)
    cleared = _no_conversion(controller) if controller else []
    return [*cleared, *queue.say(world, None, verdict="cancelled", conversion=None)]


def _no_conversion(controller: Member) -> list[Step]:
    if not controller.adapter_detail.get("conversion"):
        return []
    return [
        SetMember(
            "no conversion is waited for", controller, controller.status, {"conversion": None}, consumes_outcome=False
        )
    ]


def _told(world: World, controller: Member, workers: Sequence[Member]) -> list[Step]:
    """What each host said of itself; what is live after a rollback is not what is wished, and is not tried again."""
    steps: list[Step] = []
    for member in (controller, *workers):
        outcome = world.outcomes.get(member.id)
        if outcome is None or outcome.error:
            continue
        told: Detail = {k: outcome.detail[k] for k in ("package_version", "wish") if outcome.detail.get(k)}
        if "wish" in told and told["wish"] != desired_config.digest(world.instance):
            message = "rolled back: what is wished is not what is live. Configure the instance anew to change it"
            refused = configure.refuse(
                world, member, desired_config.digest(world.instance), AdapterError("config_rolled_back", message)
            )
            told |= refused.detail
        if any(member.adapter_detail.get(key) != value for key, value in told.items()):
            steps.append(SetMember("as its host told", member, member.status, told))
    return steps


def _end(world: World, operation: Operation, error: AdapterError, result: Detail | None = None) -> list[Step]:
    said = queue.say(world, operation, health=_health(world), phase="failed", verdict="failed", conversion=None)
    return [*said, queue.give_up(operation, error, result)]


def _health(world: World) -> Health:
    """What it was before: the next report tells it anew from what is seen."""
    known = world.instance.health
    return Health(known) if known in set(Health) else Health.UNKNOWN
