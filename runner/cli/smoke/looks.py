"""What a smoke run checks once, without waiting: identities, allocations, records, answers, the access bundle."""

from collections.abc import Callable

from runner.cli import explain, follow, requests, story
from runner.cli.smoke import pilot
from runner.cli.smoke.run import CheckFailed, Run
from runner.intent.connection import read_address
from runner.intent.errors import IntentError
from runner.model.errors import NotFound
from runner.model.gaps import Basis, Gap, Kind, PilotKind
from runner.platform.client import Client
from runner.slurm.app import SLURM
from runner.smoke.plan import At, Look
from runner.smoke.questions import answers, unanswered
from runner.smoke.state import member_at


def identities(run: Run, _look: Look) -> str:
    found = [_who(client) for client in (run.operator, run.runner)]
    for client in (run.operator, run.runner):
        client.instances(app_slug=run.settings.app_slug)
    return f"requests are {found[0]}'s, the work is {found[1]}'s"


def _who(client: Client) -> str:
    """The client notes it as a gap if the platform does not have the call; nothing here depends on it."""
    try:
        caller = client.me()
    except NotFound:
        return "a caller without a name"
    return f"{caller.actor_type}/{caller.subject}"


def allocations(run: Run, _look: Look) -> str:
    """The runner sees them as well, with an address; they serve in no other instance."""
    seen = {one.id: one for one in run.runner.allocations()}
    used = requests.allocation_uses(run.operator, run.settings)
    for allocation_id in run.allocations:
        found = seen.get(allocation_id)
        if found is None:
            raise CheckFailed("allocation_not_found", f"the runner's token does not see allocation {allocation_id}")
        if found.status != "active":
            raise CheckFailed("allocation_not_active", f"allocation {allocation_id} is {found.status}, not active")
        if allocation_id in used:
            message = f"allocation {allocation_id} serves as {used[allocation_id]}: give one that is free"
            raise CheckFailed("allocation_in_use", message)
        try:
            read_address(found)
        except IntentError as error:
            raise CheckFailed(error.code, error.message) from None
    return f"{len(run.allocations)} allocations are active and free"


def records(run: Run, _look: Look) -> str:
    instance, members = run.instance, run.runner.members(run.instance.id)
    lead = member_at(At(SLURM.components.lead, 0), members, run.allocations)
    if lead is None:
        raise CheckFailed("no_lead", f"instance {instance.id} has no {SLURM.components.lead} on the first allocation")
    if story.REQUESTED not in [one.get("type") for one in run.operator.events(instance.id)]:
        run.gaps.add(
            Gap(
                "GET /app-instances/{id}/events",
                Basis.ASSUMED,
                f"the event {story.REQUESTED} of a deploy",
                "the list has no such event",
                Kind.READ_SURFACE,
                "explain takes the time of the deploy from the instance's record",
                PilotKind.EVENT,
            )
        )
    return f"{SLURM.components.lead} {lead.id} is {lead.status}"


def questions(run: Run, look: Look) -> str:
    """Of a step's request, from the API alone, with the operator's token."""
    operation = run.asked.get(look.about or "")
    if operation is None:
        raise CheckFailed("no_operation", f"step {look.about} has left no operation")
    operation = run.operator.operation_again(run.instance.id, operation)
    instance = run.operator.instance(run.instance.id)
    listed = requests.operations(run.operator, instance)
    on_record = follow.read_records(run.operator, run.settings, instance, listed)
    found = story.find(on_record, run.operator.events(instance.id), operation.correlation_id)
    if found is None:
        raise CheckFailed("no_record", f"no record has the correlation id {operation.correlation_id}")
    given = answers(explain.account(found, ()), instance, operation)
    if lacking := unanswered(given):
        raise CheckFailed("question_unanswered", f"of {operation.label} the API does not say: {', '.join(lacking)}")
    return "; ".join(f"{question}: {answer}" for question, answer in given.items())


def access(run: Run, look: Look) -> str:
    instance = run.operator.instance(run.instance.id)
    bundle = instance.access or {}
    if lacking := [name for name in look.fields if not bundle.get(name)]:
        raise CheckFailed("access_incomplete", f"the access bundle lacks {', '.join(lacking)}")
    return f"cluster {bundle.get('cluster_name')}, as of {bundle.get('observed_at')}"


CHECKS: dict[str, Callable[[Run, Look], str]] = {
    "identities": identities,
    "allocations": allocations,
    "records": records,
    "questions": questions,
    "access": access,
    "publish": pilot.publish,
    "entitlement": pilot.entitlement,
    "move": pilot.move,
    "move_back": pilot.move_back,
}
