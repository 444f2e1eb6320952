"""Requests of a smoke run, each with the keys and the correlation id that are derived from its run id and its step."""

from collections.abc import Callable, Sequence

from runner.cli import requests
from runner.cli.smoke.run import CheckFailed, Run
from runner.model.errors import PlatformError, Unauthenticated, Unavailable
from runner.model.gaps import Basis, Gap, Kind
from runner.model.platform import AppInstance, Operation
from runner.smoke.plan import Ask, Deploy, Step, correlation_id, idempotency_key, instance_name, nowhere
from runner.smoke.state import member_at


def deploy(run: Run, step: Step, wanted: Deploy, app_version: str) -> AppInstance:
    """The instance of this run: the one that it has made, else a new one."""
    lead = str(run.allocations[wanted.lead])
    if run.found is not None:
        named = (run.found.placement_intent or {}).get("controller_allocation_id")
        if named != lead:
            raise CheckFailed("other_allocations", f"this run was begun with {named} as its first allocation")
        return run.found
    run.found = requests.deploy(
        run.operator,
        run.settings,
        controller=lead,
        workers=[str(run.allocations[place]) for place in wanted.others],
        same_node=wanted.lead in wanted.others,
        name=instance_name(run.run_id),
        config={},
        app_version=app_version,
        key=idempotency_key(run.run_id, step.name),
    )
    _note_other_id(run, step, run.found.correlation_id)
    return run.found


def seeded(run: Run, ask: Ask) -> Operation | None:
    """The operation that the deploy, or the adapter in its place, has requested."""
    named = {run.allocations[place] for place in ask.places}
    listed = requests.operations(run.operator, run.instance)
    return next((one for one in listed if one.operation == ask.verb and named <= {*one.allocation_ids}), None)


def note_not_seeded(run: Run, ask: Ask) -> None:
    """The gap that a deploy leaves the first members to the adapter."""
    expected = f"a deploy requests the first {ask.verb} itself"
    meanwhile = "the adapter requests it, in its first tick"
    call = "POST /app-instances"
    run.gaps.add(Gap(call, Basis.STATED, expected, "no such operation", Kind.PRIMITIVE, meanwhile))


def request(run: Run, step: Step, ask: Ask, say: Callable[[str], None]) -> Operation:
    made = _request_in_vain(run, step, ask, say) if ask.nowhere else _post(run, step, ask)
    _note_other_id(run, step, made.correlation_id)
    return made


def _request_in_vain(run: Run, step: Step, ask: Ask, say: Callable[[str], None]) -> Operation:
    """An operation on an allocation that does not exist; if the platform takes none, on one that is in use."""
    body = {
        "operation": ask.verb,
        "component_key": ask.component,
        "parameters": dict(ask.parameters),
        "allocation_ids": [str(nowhere(run.run_id))],
    }
    key = idempotency_key(run.run_id, step.name)
    try:
        return _sent(run, ask, lambda: run.operator.create_operation(run.instance.id, body, key=key))
    except (Unavailable, Unauthenticated):
        raise
    except PlatformError as error:
        say(f"  the platform itself refuses it ({error.code}), so it names an allocation that is in use")
        return _post(run, step, ask)


def _post(run: Run, step: Step, ask: Ask) -> Operation:
    key, parameters = idempotency_key(run.run_id, step.name), dict(ask.parameters)
    if ask.component is None:
        return requests.request_of_instance(run.operator, run.instance, ask.verb, parameters, key)
    body = {"members": _members(run, ask), "allocations": [str(run.allocations[place]) for place in ask.places]}

    def send() -> Operation:
        return requests.request(
            run.operator,
            run.instance,
            ask.verb,
            component_key=str(ask.component),
            parameters=parameters,
            key=key,
            **body,
        )

    return _sent(run, ask, send)


def _sent(run: Run, ask: Ask, send: Callable[[], Operation]) -> Operation:
    """One request of a run is sent twice, as a client does that got no answer."""
    made = send()
    if not ask.follows and send().id != made.id:
        raise _not_idempotent(run)
    return made


def _members(run: Run, ask: Ask) -> Sequence[str]:
    if ask.member is None:
        return []
    member = member_at(ask.member, run.operator.members(run.instance.id), run.allocations)
    if member is None:
        raise CheckFailed("member_not_found", f"no {ask.member.component} is there to {ask.verb}")
    return [str(member.id)]


def _not_idempotent(run: Run) -> CheckFailed:
    message = "the same Idempotency-Key made a second operation"
    expected = "a repeated Idempotency-Key returns the first record"
    call, meanwhile = "POST /member-operations", "a retried write may happen twice; the adapter refuses the second"
    run.gaps.add(Gap(call, Basis.STATED, expected, message, Kind.PRIMITIVE, meanwhile))
    return CheckFailed("not_idempotent", message)


def _note_other_id(run: Run, step: Step, kept: str) -> None:
    """The run's correlation id must be on what it requested: without it a killed run is not found again."""
    if kept == correlation_id(run.run_id, step.name):
        return
    expected = "X-Correlation-Id of the request is kept in the record"
    meanwhile = "the platform's own id is reported; a run that was killed cannot be continued"
    call = "POST /app-instances and operations"
    run.gaps.add(Gap(call, Basis.ASSUMED, expected, f"another id: {kept}", Kind.PRIMITIVE, meanwhile))
